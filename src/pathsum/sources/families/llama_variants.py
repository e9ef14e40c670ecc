"""Llamas with other norms or with experts.

OLMo 1 has layer norms without gains or biases. OLMo 2 has RMS norms after each block only, and one
norm over the queries (keys) of all heads. OLMo 3 adds windows in three of four layers, and scales
the rotations of the others only. EXAONE 4 has the norms of OLMo 2, but those of queries and keys
per head; if it has windows, layers without one do not rotate.

Gemma has gains stored minus 1, embeddings times √d, and a gated GELU. Gemma 2 adds norms after each
block, soft caps and alternating windows; Gemma 3 has norms of queries and keys instead of caps, and
another rotary base in layers with windows.

In a mixture of experts, a router chooses a few MLPs of each layer at each position. Mixtral is a
Mistral with experts, Qwen3-MoE a Qwen3. Qwen2-MoE is a Qwen2 with experts and a shared expert: an
MLP at every position, multiplied by the sigmoid of another logit. gpt-oss has attention sinks,
windows in every other layer, and experts with clamped gates. Files of Mixtral and Qwen have
separate tensors for each expert; in memory, transformers 5 stacks experts and fuses gates with
inputs.
"""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pathsum.base.errors import ConfigError
from pathsum.sources.families import (
    Family,
    TensorNames,
    attention_rows,
    block_norms,
    family_layout,
    mlp_rows,
    norm_rows,
    qk_norm_rows,
    rotary_fields,
)
from pathsum.sources.families.llama import upper_windows
from pathsum.sources.families.rotary import require_rope, rope_by_layer_type
from pathsum.sources.foreign_config import ForeignConfig
from pathsum.sources.mapped_store import CheckpointLayout, Stored

_SANDWICH = norm_rows(
    ln1="input_layernorm",
    post1="post_attention_layernorm",
    ln2="pre_feedforward_layernorm",
    post2="post_feedforward_layernorm",
    add=1.0,
)


def _gemma(foreign: ForeignConfig) -> CheckpointLayout:
    return _gemma_layout(foreign, _gemma_fields(foreign), block_norms(add=1.0))


def _gemma2(foreign: ForeignConfig) -> CheckpointLayout:
    fields = _gemma_fields(foreign) | _scores(foreign, score_cap=50.0, logit_cap=30.0)
    fields |= {"norm_place": "both", "windows": foreign.windows_except(every=2)}
    return _gemma_layout(foreign, fields, _SANDWICH)


def _gemma3(foreign: ForeignConfig) -> CheckpointLayout:
    full, local_base = rope_by_layer_type(foreign, foreign.number("rope_local_base_freq", 1e4))
    fields = _gemma_fields(full, base=1e6) | _scores(foreign)
    fields |= {
        "norm_place": "both",
        "qk_norm": "rms",
        "windows": foreign.windows_except(every=6),
        "rotary_local_base": local_base,
    }
    return _gemma_layout(full, fields, _SANDWICH | qk_norm_rows(add=1.0))


def _gemma_fields(foreign: ForeignConfig, base: float = 10_000.0) -> dict[str, Any]:
    # In files of Gemma 1, "gelu" means the approximation, as in transformers.
    for name in ("hidden_activation", "hidden_act"):
        foreign.require_value(name, "gelu_pytorch_tanh", "gelu")
    foreign.require_value("use_bidirectional_attention", False)
    fields = rotary_fields(foreign, mlp="gelu_tanh_gated", base=base, tied=True)
    return fields | {"d_head": foreign.size("head_dim", 256)}


def _scores(
    foreign: ForeignConfig, score_cap: float | None = None, logit_cap: float | None = None
) -> dict[str, Any]:
    return {
        "score_scale": 1 / math.sqrt(foreign.number("query_pre_attn_scalar", 256.0)),
        "score_cap": foreign.cap("attn_logit_softcapping", score_cap),
        "logit_cap": foreign.cap("final_logit_softcapping", logit_cap),
    }


def _gemma_layout(
    foreign: ForeignConfig, fields: dict[str, Any], norms: dict[str, Stored]
) -> CheckpointLayout:
    attention = attention_rows(bias=foreign.flag("attention_bias", False))
    scale = math.sqrt(fields["d_model"])
    last = norm_rows(ln_f="model.norm", add=1.0)
    layer = {**norms, **attention, **mlp_rows()}
    return family_layout(foreign, fields, layer, embed_scale=scale, model=last)


GEMMA = Family("Gemma", ("gemma",), _gemma)
GEMMA2 = Family("Gemma 2", ("gemma2",), _gemma2)
GEMMA3 = Family("Gemma 3", ("gemma3_text",), _gemma3)


def _olmo(foreign: ForeignConfig) -> CheckpointLayout:
    foreign.require_value("clip_qkv", None)
    fields = rotary_fields(foreign, "layer") | {"norm_eps": 1e-5}
    layer = attention_rows(bias=foreign.flag("attention_bias", False)) | mlp_rows()
    return family_layout(foreign, fields, layer, TensorNames(norm=None))


def _olmo2(foreign: ForeignConfig) -> CheckpointLayout:
    return _norms_after(foreign, rotary_fields(foreign, eps=1e-5))


def _olmo3(foreign: ForeignConfig) -> CheckpointLayout:
    base = foreign.number("rope_theta", 500_000.0)
    full, local_base = rope_by_layer_type(foreign, base)
    fields = rotary_fields(full, eps=1e-5, base=base)
    fields["windows"] = foreign.windows_except(every=4)
    if fields["rotary_factors"] or fields["rotary_base"] != local_base:
        fields["rotary_local_base"] = local_base
    return _norms_after(full, fields)


def _exaone4(foreign: ForeignConfig) -> CheckpointLayout:
    fields = rotary_fields(foreign, eps=1e-5) | {"qk_norm": "rms"}
    kinds = foreign.values.get("layer_types", [])
    if "sliding_window" in foreign.values or "sliding_attention" in kinds:
        windows = foreign.windows_except(every=4)
        fields |= {"windows": windows, "rotary_layers": tuple(w is not None for w in windows)}
    return _norms_after(foreign, fields)


def _norms_after(foreign: ForeignConfig, fields: dict[str, Any]) -> CheckpointLayout:
    per_head = fields.setdefault("qk_norm", "rms_all") == "rms"
    layer = {
        **attention_rows(bias=foreign.flag("attention_bias", False)),
        **mlp_rows(),
        **(qk_norm_rows() if per_head else qk_norm_rows("(h k) -> h k", "(g k) -> g k")),
        **norm_rows(post1="post_attention_layernorm", post2="post_feedforward_layernorm"),
    }
    return family_layout(foreign, fields | {"norm_place": "after"}, layer)


OLMO = Family("OLMo", ("olmo",), _olmo)
OLMO2 = Family("OLMo 2", ("olmo2",), _olmo2)
OLMO3 = Family("OLMo 3", ("olmo3",), _olmo3)
EXAONE4 = Family("EXAONE 4", ("exaone4",), _exaone4)


def _expert_fields(foreign: ForeignConfig, neurons: str) -> dict[str, int]:
    """The fields of `Config` that count experts, each with as many neurons as `neurons` says."""
    experts = foreign.size("num_local_experts", foreign.values.get("num_experts"))
    return {
        "d_mlp": experts * foreign.size(neurons),
        "n_experts": experts,
        "experts_per_token": foreign.size("num_experts_per_tok"),
    }


def _expert_rows(block: str, up: str, down: str, gate: str) -> dict[str, Stored]:
    """The experts of a layer, in separate tensors or stacked."""
    stacked, each = "mlp.experts", f"{block}.experts.{{e}}"
    fused = f"{stacked}.gate_up_proj"
    into = "e m d -> d (e m)"

    def half(part: int) -> Stored:
        return Stored(fused, "e (2 m) d -> 2 d (e m)", part=part)

    out = Stored(f"{stacked}.down_proj", "e d m -> (e m) d")
    return {
        "W_router": Stored(f"{block}.gate.weight|mlp.gate.weight", "e d -> d e"),
        "W_gate": Stored(f"{each}.{gate}.weight", into, otherwise=half(0)),
        "W_in": Stored(f"{each}.{up}.weight", into, otherwise=half(1)),
        "W_out": Stored(f"{each}.{down}.weight", "e d m -> (e m) d", otherwise=out),
    }


def _mixtral(foreign: ForeignConfig) -> CheckpointLayout:
    fields = rotary_fields(foreign, eps=1e-5, base=1e6)
    fields |= {**_expert_fields(foreign, "intermediate_size"), "windows": foreign.windows()}
    experts = _expert_rows("block_sparse_moe", "w3", "w2", "w1")
    return family_layout(foreign, fields, {**block_norms(), **attention_rows(), **experts})


def _qwen_experts(foreign: ForeignConfig) -> dict[str, Any]:
    """The fields of `Config` of Qwen's mixtures of experts."""
    foreign.require_value("decoder_sparse_step", 1)
    foreign.require_value("mlp_only_layers", [])
    return {
        **rotary_fields(foreign),
        **_expert_fields(foreign, "moe_intermediate_size"),
        "router": "chosen" if foreign.flag("norm_topk_prob", False) else "all",
    }


def _qwen3_moe(foreign: ForeignConfig) -> CheckpointLayout:
    fields = _qwen_experts(foreign)
    fields["qk_norm"] = "rms"
    if foreign.flag("use_sliding_window", False):
        fields["windows"] = foreign.windows()
    layer = {
        **block_norms(),
        **attention_rows(bias=foreign.flag("attention_bias", False)),
        **qk_norm_rows(),
        **_expert_rows("mlp", "up_proj", "down_proj", "gate_proj"),
    }
    return family_layout(foreign, fields, layer)


def _qwen2_moe(foreign: ForeignConfig) -> CheckpointLayout:
    fields = _qwen_experts(foreign)
    width, neurons = (
        foreign.size(f"{kind}_intermediate_size") for kind in ("moe", "shared_expert")
    )
    # The shared expert becomes several experts with the same column of W_router.
    shared, left = divmod(neurons, width)
    if left:
        raise ConfigError(
            f"{foreign.where} has shared_expert_intermediate_size={neurons}, which is not a "
            f"multiple of moe_intermediate_size={width}; pathsum reads only experts of one size"
        )
    fields |= {
        "windows": upper_windows(foreign),
        "d_mlp": fields["d_mlp"] + neurons,
        "n_experts": fields["n_experts"] + shared,
        "shared_experts": shared,
    }
    layer = {
        **block_norms(),
        **attention_rows(bias=foreign.flag("qkv_bias", True), out_bias=False),
        **_expert_rows("mlp", "up_proj", "down_proj", "gate_proj"),
    }
    for ours, theirs in (("in", "up_proj"), ("gate", "gate_proj"), ("out", "down_proj")):
        axis, name = (0 if ours == "out" else 1), f"mlp.shared_expert.{theirs}.weight"
        layer[f"W_{ours}"] = _with_shared(layer[f"W_{ours}"], name, axis=axis)
    gate = "mlp.shared_expert_gate.weight"
    layer["W_router"] = _with_shared(layer["W_router"], gate, axis=1, times=shared)
    return family_layout(foreign, fields, layer)


def _with_shared(routed: Stored, name: str, *, axis: int, times: int = 1) -> Stored:
    """The tensor of all experts: the routed experts, then `times` the shared one."""

    def combine(experts: Tensor, shared: Tensor) -> Tensor:
        return torch.cat((experts, *[shared.mT] * times), axis)

    other = routed.otherwise
    other = None if other is None else _with_shared(other, name, axis=axis, times=times)
    return replace(routed, combine=combine, others=(name,), otherwise=other)


def _gpt_oss(foreign: ForeignConfig) -> CheckpointLayout:
    foreign.require_value("swiglu_alpha", 1.702)
    foreign.require_value("swiglu_limit", 7.0)
    require_rope(foreign)
    fields = rotary_fields(foreign, mlp="clamped_gated", eps=1e-5, base=150_000.0)
    fields |= {**_expert_fields(foreign, "intermediate_size"), "sinks": True}
    if "sliding_window" in foreign.values:
        fields["windows"] = foreign.windows_except(every=2)
    layer = {
        **block_norms(),
        **attention_rows(bias=foreign.flag("attention_bias", True)),
        "sinks": Stored("self_attn.sinks", "h"),
        "W_router": Stored("mlp.router.weight", "e d -> d e"),
        "b_router": Stored("mlp.router.bias", "e"),
        "W_out": Stored("mlp.experts.down_proj", "e m d -> (e m) d"),
        "b_experts": Stored("mlp.experts.down_proj_bias", "e d"),
    }
    # Gates and inputs alternate.
    for part, name in enumerate(("gate", "in")):
        up = "mlp.experts.gate_up_proj"
        layer[f"W_{name}"] = Stored(up, "e d (m 2) -> 2 d (e m)", part=part)
        layer[f"b_{name}"] = Stored(f"{up}_bias", "e (m 2) -> 2 (e m)", part=part)
    return family_layout(foreign, fields, layer)


MIXTRAL = Family("Mixtral", ("mixtral",), _mixtral)
QWEN2_MOE = Family("Qwen2-MoE", ("qwen2_moe",), _qwen2_moe)
QWEN3_MOE = Family("Qwen3-MoE", ("qwen3_moe",), _qwen3_moe)
GPT_OSS = Family("gpt-oss", ("gpt_oss",), _gpt_oss)
