"""Llama and its relatives: RMS norms, rotary positions, gated MLPs, shared key/value heads.

SmolLM and DeepSeek LLM are Llamas. Arcee has MLPs without gates; Helium and ERNIE 4.5 rotate
adjacent pairs. Mistral, Ministral and CWM add sliding windows, Qwen2 and Seed-OSS biases of
queries, keys and values, Qwen3 norms of queries and keys per head. Granite scales embeddings,
outputs of blocks and logits; the scales are multiplied into the weights. SmolLM3 does not rotate in
every fourth layer. EXAONE 3 is a Llama with other names. InternLM2 stores the queries of a
key/value head next to its key and value. Phi 3 has fused projections. GLM rotates adjacent pairs of
half of each head; GLM-4 adds norms after each block.
"""

from dataclasses import replace
from typing import Any

from pathsum.sources.families import (
    Family,
    TensorNames,
    attention_rows,
    block_norms,
    family_layout,
    grouped_rows,
    mlp_rows,
    norm_rows,
    output_rows,
    qk_norm_rows,
    rotary_fields,
)
from pathsum.sources.families.rotary import require_rope
from pathsum.sources.foreign_config import ForeignConfig
from pathsum.sources.mapped_store import CheckpointLayout, Stored

_FUSED_GATE = {
    "W_gate": Stored("mlp.gate_up_proj.weight", "m d -> d m", split=("m", "m"), part=0),
    "W_in": Stored("mlp.gate_up_proj.weight", "m d -> d m", split=("m", "m"), part=1),
    "W_out": Stored("mlp.down_proj.weight", "d m -> m d"),
}
_EXAONE_NAMES = {
    "num_hidden_layers": "num_layers",
    "rms_norm_eps": "layer_norm_epsilon",
    "hidden_act": "activation_function",
}


def _rows(foreign: ForeignConfig) -> dict[str, Stored]:
    """The tensors of a layer of Llama."""
    return {
        **block_norms(),
        **attention_rows(bias=foreign.flag("attention_bias", False)),
        **mlp_rows(bias=foreign.flag("mlp_bias", False)),
    }


def _llama(foreign: ForeignConfig) -> CheckpointLayout:
    return family_layout(foreign, rotary_fields(foreign), _rows(foreign))


def _arcee(foreign: ForeignConfig) -> CheckpointLayout:
    fields = rotary_fields(foreign, mlp=foreign.mlp("relu2"), eps=1e-5)
    names = ("mlp.up_proj", "mlp.down_proj")
    neurons = mlp_rows(*names, bias=foreign.flag("mlp_bias", False))
    attention = attention_rows(bias=foreign.flag("attention_bias", False))
    return family_layout(foreign, fields, {**block_norms(), **attention, **neurons})


def _helium(foreign: ForeignConfig) -> CheckpointLayout:
    fields = rotary_fields(foreign, eps=1e-8, base=100_000.0) | {"rotary_pairing": "adjacent"}
    return family_layout(foreign, fields, _rows(foreign))


def _ernie(foreign: ForeignConfig) -> CheckpointLayout:
    foreign = foreign.with_names({"attention_bias": "use_bias", "mlp_bias": "use_bias"})
    fields = rotary_fields(foreign, eps=1e-5, base=500_000.0) | {"rotary_pairing": "adjacent"}
    return family_layout(foreign, fields, _rows(foreign))


def _cwm(foreign: ForeignConfig) -> CheckpointLayout:
    require_rope(foreign)
    layers = range(foreign.size("num_hidden_layers"))
    default = ["sliding_attention" if layer % 4 else "full_attention" for layer in layers]
    windows = ForeignConfig({"layer_types": default, **foreign.values}, foreign.where).windows()
    fields = rotary_fields(foreign, eps=1e-5, base=1e6) | {"windows": windows}
    return family_layout(foreign, fields, _rows(foreign))


def _seed_oss(foreign: ForeignConfig) -> CheckpointLayout:
    bias, out_bias = foreign.flag("attention_bias", True), foreign.flag("attention_out_bias", False)
    layer = _rows(foreign) | attention_rows(bias=bias, out_bias=out_bias)
    return family_layout(foreign, rotary_fields(foreign), layer)


def _mistral(foreign: ForeignConfig) -> CheckpointLayout:
    layer = {**block_norms(), **attention_rows(), **mlp_rows()}
    return family_layout(foreign, rotary_fields(foreign) | {"windows": foreign.windows()}, layer)


def _qwen2(foreign: ForeignConfig) -> CheckpointLayout:
    fields = rotary_fields(foreign) | {"windows": upper_windows(foreign)}
    layer = {**block_norms(), **attention_rows(bias=True, out_bias=False), **mlp_rows()}
    return family_layout(foreign, fields, layer)


def _qwen3(foreign: ForeignConfig) -> CheckpointLayout:
    fields = rotary_fields(foreign) | {"windows": upper_windows(foreign), "qk_norm": "rms"}
    attention = attention_rows(bias=foreign.flag("attention_bias", False))
    layer = {**block_norms(), **attention, **mlp_rows(), **qk_norm_rows()}
    return family_layout(foreign, fields, layer)


def _phi3(foreign: ForeignConfig) -> CheckpointLayout:
    fields = rotary_fields(foreign, eps=1e-5, fraction=1.0) | {"windows": foreign.windows()}
    attention = attention_rows("self_attn.qkv_proj", "self_attn.o_proj")
    return family_layout(foreign, fields, {**block_norms(), **attention, **_FUSED_GATE})


def _granite(foreign: ForeignConfig) -> CheckpointLayout:
    fields, layer = rotary_fields(foreign), _rows(foreign)
    fields["score_scale"] = foreign.number("attention_multiplier", 1.0)
    output_scale = foreign.number("residual_multiplier", 1.0)
    for name in {"W_O", "b_O", "W_out", "b_out"} & layer.keys():
        layer[name] = replace(layer[name], multiply=output_scale)
    return family_layout(
        foreign,
        fields,
        layer,
        embed_scale=foreign.number("embedding_multiplier", 1.0),
        logit_scale=1 / foreign.number("logits_scaling", 1.0),
    )


def _smollm3(foreign: ForeignConfig) -> CheckpointLayout:
    fields = rotary_fields(foreign, base=2e6)
    every = foreign.size("no_rope_layer_interval", 4)
    default = [(layer + 1) % every != 0 for layer in range(fields["n_layers"])]
    fields["rotary_layers"] = tuple(map(bool, foreign.values.get("no_rope_layers", default)))
    if foreign.flag("use_sliding_window", False):
        fields["windows"] = foreign.windows()
    return family_layout(foreign, fields, _rows(foreign))


def _internlm2(foreign: ForeignConfig) -> CheckpointLayout:
    bias = foreign.flag("bias", False)
    layer = {
        **block_norms("attention_norm", "ffn_norm"),
        **grouped_rows("attention.wqkv", bias=bias),
        **output_rows("attention.wo", bias=bias),
        **mlp_rows("feed_forward.w3", "feed_forward.w2", "feed_forward.w1"),
    }
    names = TensorNames(table="tok_embeddings", head="output")
    return family_layout(foreign, rotary_fields(foreign), layer, names)


def _exaone(foreign: ForeignConfig) -> CheckpointLayout:
    foreign = foreign.with_names(_EXAONE_NAMES)
    ends = ("q_proj", "k_proj", "v_proj", "out_proj")
    layer = {
        **block_norms("ln_1", "ln_2"),
        **attention_rows(*(f"attn.attention.{end}" for end in ends)),
        **mlp_rows("mlp.c_fc_1", "mlp.c_proj", "mlp.c_fc_0"),
    }
    names = TensorNames("transformer.", "h.{}.", "wte", "ln_f")
    return family_layout(foreign, rotary_fields(foreign), layer, names)


def _glm(foreign: ForeignConfig, **more: Any) -> CheckpointLayout:
    fields = rotary_fields(foreign, eps=1.5625e-7, fraction=0.5)
    fields |= {"rotary_pairing": "adjacent", **more}
    attention = attention_rows(bias=foreign.flag("attention_bias", True), out_bias=False)
    layer = {**block_norms(), **attention, **_FUSED_GATE}
    if fields.get("norm_place") == "both":
        layer |= norm_rows(post1="post_self_attn_layernorm", post2="post_mlp_layernorm")
    return family_layout(foreign, fields, layer)


def _glm4(foreign: ForeignConfig) -> CheckpointLayout:
    return _glm(foreign, norm_place="both")


def upper_windows(foreign: ForeignConfig) -> tuple[int | None, ...]:
    """Qwen's windows: by default none; with `use_sliding_window`, from `max_window_layers` up."""
    if not foreign.flag("use_sliding_window", False):
        return ()
    if "layer_types" in foreign.values:
        return foreign.windows()
    first, window = foreign.size("max_window_layers"), foreign.size("sliding_window")
    layers = range(foreign.size("num_hidden_layers"))
    return tuple(window if layer >= first else None for layer in layers)


LLAMA = Family("Llama", ("llama",), _llama)
ARCEE = Family("Arcee", ("arcee",), _arcee)
HELIUM = Family("Helium", ("helium",), _helium)
ERNIE = Family("ERNIE 4.5", ("ernie4_5",), _ernie)
CWM = Family("CWM", ("cwm",), _cwm)
SEED_OSS = Family("Seed-OSS", ("seed_oss",), _seed_oss)
MISTRAL = Family("Mistral", ("mistral", "ministral"), _mistral)
SMOLLM3 = Family("SmolLM3", ("smollm3",), _smollm3)
EXAONE3 = Family("EXAONE 3", ("exaone",), _exaone)
INTERNLM2 = Family("InternLM2", ("internlm2",), _internlm2)
GRANITE = Family("Granite", ("granite",), _granite)
GLM = Family("GLM", ("glm",), _glm)
GLM4 = Family("GLM-4", ("glm4",), _glm4)
QWEN2 = Family("Qwen2", ("qwen2",), _qwen2)
QWEN3 = Family("Qwen3", ("qwen3",), _qwen3)
PHI3 = Family("Phi-3", ("phi3",), _phi3)
