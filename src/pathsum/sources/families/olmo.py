"""OLMo 1 to 3 and EXAONE 4: a Llama whose norms differ.

OLMo 1 has layer norms without gains or biases. OLMo 2 has RMS norms after each block only, and one
norm over the queries (keys) of all heads. OLMo 3 adds windows in three of four layers, and scales
the rotations of the others only. EXAONE 4 has the norms of OLMo 2, but those of queries and keys
per head; if it has windows, layers without one do not rotate.
"""

from typing import Any

from pathsum.model.config import Config
from pathsum.sources.families import Family, attention_rows, embeddings, mlp_rows, norm_rows
from pathsum.sources.families.llama import (
    GATED,
    PROJECTIONS,
    QK_NORMS,
    alternating_windows,
    llama_fields,
    llama_layout,
)
from pathsum.sources.families.rotary import rope_by_layer_type
from pathsum.sources.foreign_config import ForeignConfig
from pathsum.sources.mapped_store import CheckpointLayout, Stored


def _olmo(foreign: ForeignConfig) -> CheckpointLayout:
    foreign.require_value("clip_qkv", None)
    fields = llama_fields(foreign)
    fields |= {"norm": "layer", "norm_eps": 1e-5}
    layer = _attention(foreign) | mlp_rows(*GATED)
    config = Config(**fields)
    model = embeddings("model.embed_tokens", "lm_head", tied=config.tied)
    layout = llama_layout(foreign, config, layer)
    return CheckpointLayout(config, model, layout.layer, layout.layers, layout.prefix)


def _olmo2(foreign: ForeignConfig) -> CheckpointLayout:
    return _norms_after(foreign, llama_fields(foreign))


def _olmo3(foreign: ForeignConfig) -> CheckpointLayout:
    base = foreign.number("rope_theta", 500_000.0)
    full, local_base = rope_by_layer_type(foreign, base)
    fields = llama_fields(full)
    fields["windows"] = alternating_windows(foreign, every=4)
    if fields["rotary_factors"] or fields["rotary_base"] != local_base:
        fields["rotary_local_base"] = local_base
    return _norms_after(full, fields)


def _attention(foreign: ForeignConfig) -> dict[str, Stored]:
    bias = foreign.flag("attention_bias", False)
    return attention_rows(*PROJECTIONS, bias=bias, out_bias=bias)


def _norms_after(foreign: ForeignConfig, fields: dict[str, Any]) -> CheckpointLayout:
    layer = {
        **_attention(foreign),
        **mlp_rows(*GATED),
        "q_norm_w": Stored("self_attn.q_norm.weight", "(h k) -> h k"),
        "k_norm_w": Stored("self_attn.k_norm.weight", "(g k) -> g k"),
        **norm_rows("post1", "post_attention_layernorm"),
        **norm_rows("post2", "post_feedforward_layernorm"),
    }
    if fields.setdefault("qk_norm", "rms_all") == "rms":
        layer |= QK_NORMS
    return llama_layout(foreign, Config(**fields, norm_place="after"), layer)


def _exaone4(foreign: ForeignConfig) -> CheckpointLayout:
    fields = llama_fields(foreign)
    fields["qk_norm"] = "rms"
    if "sliding_window" in foreign.values:
        windows = alternating_windows(foreign, every=4)
        fields |= {"windows": windows, "rotary_layers": tuple(w is not None for w in windows)}
    return _norms_after(foreign, fields)


OLMO = Family("OLMo", ("olmo",), _olmo)
OLMO2 = Family("OLMo 2", ("olmo2",), _olmo2)
OLMO3 = Family("OLMo 3", ("olmo3",), _olmo3)
EXAONE4 = Family("EXAONE 4", ("exaone4",), _exaone4)
