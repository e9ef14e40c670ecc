"""Gemma 1, 2 and 3: gains stored minus 1, embeddings times √d, gated GELU.

Gemma 2 adds norms after each block, soft caps and alternating windows; Gemma 3 has norms of queries
and keys instead of caps, and another rotary base in layers with windows.
"""

import math
from typing import Any

from pathsum.model.config import Config
from pathsum.sources.families import Family, attention_rows, mlp_rows, norm_rows
from pathsum.sources.families.llama import (
    GATED,
    PROJECTIONS,
    alternating_windows,
    llama_fields,
)
from pathsum.sources.families.rotary import rope_by_layer_type, scale_queries
from pathsum.sources.foreign_config import ForeignConfig
from pathsum.sources.mapped_store import CheckpointLayout, Stored


def _gemma(foreign: ForeignConfig) -> CheckpointLayout:
    return _layout(
        foreign,
        Config(**_fields(foreign)),
        {
            **norm_rows("ln1", "input_layernorm", add=1.0),
            **norm_rows("ln2", "post_attention_layernorm", add=1.0),
        },
    )


def _gemma2(foreign: ForeignConfig) -> CheckpointLayout:
    fields = _fields(foreign) | _scores(foreign)
    fields |= {"norm_place": "both", "windows": alternating_windows(foreign, every=2)}
    return _layout(foreign, Config(**fields), _sandwich())


def _gemma3(foreign: ForeignConfig) -> CheckpointLayout:
    full, local_base = rope_by_layer_type(foreign, foreign.number("rope_local_base_freq", 1e4))
    fields = _fields(full) | _scores(foreign)
    fields |= {
        "norm_place": "both",
        "qk_norm": "rms",
        "windows": alternating_windows(foreign, every=6),
        "rotary_local_base": local_base,
    }
    qk = {
        "q_norm_w": Stored("self_attn.q_norm.weight", "k", add=1.0),
        "k_norm_w": Stored("self_attn.k_norm.weight", "k", add=1.0),
    }
    return _layout(full, Config(**fields), _sandwich() | qk)


def _fields(foreign: ForeignConfig) -> dict[str, Any]:
    # In files of Gemma 1 "gelu" means the approximation; transformers reads them that way.
    for name in ("hidden_activation", "hidden_act"):
        foreign.require_value(name, "gelu_pytorch_tanh", "gelu")
    foreign.require_value("use_bidirectional_attention", False)
    fields = llama_fields(foreign, activation="gelu_tanh_gated")
    # Embeddings are multiplied and the unembedding is not: two tensors for us.
    return fields | {"d_head": foreign.size("head_dim", 256), "tied": False}


def _scores(foreign: ForeignConfig) -> dict[str, Any]:
    return {
        "score_scale": 1 / math.sqrt(foreign.number("query_pre_attn_scalar", 256.0)),
        "score_cap": foreign.cap("attn_logit_softcapping"),
        "logit_cap": foreign.cap("final_logit_softcapping"),
    }


def _sandwich() -> dict[str, Stored]:
    return {
        **norm_rows("ln1", "input_layernorm", add=1.0),
        **norm_rows("post1", "post_attention_layernorm", add=1.0),
        **norm_rows("ln2", "pre_feedforward_layernorm", add=1.0),
        **norm_rows("post2", "post_feedforward_layernorm", add=1.0),
    }


def _layout(foreign: ForeignConfig, config: Config, norms: dict[str, Stored]) -> CheckpointLayout:
    bias = foreign.flag("attention_bias", False)
    table = "model.embed_tokens.weight"
    tied = foreign.flag("tie_word_embeddings", True)
    model = {
        "W_E": Stored(table, "v d", multiply=math.sqrt(config.d_model)),
        "W_U": Stored(table if tied else "lm_head.weight", "v d -> d v"),
        **norm_rows("ln_f", "model.norm", add=1.0),
    }
    layer = {**norms, **attention_rows(*PROJECTIONS, bias=bias, out_bias=bias), **mlp_rows(*GATED)}
    layer = scale_queries(foreign, layer, config)
    return CheckpointLayout(config, model, layer, layers="model.layers.{}.", prefix="model.")


GEMMA = Family("Gemma", ("gemma",), _gemma)
GEMMA2 = Family("Gemma 2", ("gemma2",), _gemma2)
GEMMA3 = Family("Gemma 3", ("gemma3_text",), _gemma3)
