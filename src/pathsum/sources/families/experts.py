"""Mixtures of experts: a router chooses a few MLPs of each layer at each position.

Mixtral is a Mistral with experts, Qwen3-MoE a Qwen3. gpt-oss has attention sinks, windows in every
other layer, and experts with clamped gates. Files of Mixtral and Qwen3-MoE store each expert alone;
in memory, transformers 5 stacks them and fuses gates with inputs.
"""

from pathsum.model.config import Config
from pathsum.sources.families import Family, attention_rows
from pathsum.sources.families.llama import (
    NORMS,
    PROJECTIONS,
    QK_NORMS,
    alternating_windows,
    llama_fields,
    llama_layout,
    upper_windows,
)
from pathsum.sources.foreign_config import ForeignConfig
from pathsum.sources.mapped_store import CheckpointLayout, Stored


def _expert_fields(foreign: ForeignConfig, neurons: str) -> dict[str, int]:
    """The fields of `Config` that count experts, each with as many neurons as `neurons` says."""
    experts = foreign.size("num_local_experts", foreign.values.get("num_experts"))
    return {
        "d_mlp": experts * foreign.size(neurons),
        "n_experts": experts,
        "experts_per_token": foreign.size("num_experts_per_tok"),
    }


def _expert_rows(block: str, up: str, down: str, gate: str) -> dict[str, Stored]:
    """The experts of a layer, each in tensors of these names, or stacked in memory."""
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
    fields = llama_fields(foreign)
    fields |= _expert_fields(foreign, "intermediate_size")
    fields["windows"] = foreign.windows(fields["n_layers"])
    experts = _expert_rows("block_sparse_moe", "w3", "w2", "w1")
    layer = {**NORMS, **attention_rows(*PROJECTIONS), **experts}
    return llama_layout(foreign, Config(**fields), layer)


def _qwen3_moe(foreign: ForeignConfig) -> CheckpointLayout:
    foreign.require_value("decoder_sparse_step", 1)
    foreign.require_value("mlp_only_layers", [])
    # The router's weights of the chosen experts add up to 1.
    foreign.require_value("norm_topk_prob", True, default=False)
    fields = llama_fields(foreign)
    fields |= _expert_fields(foreign, "moe_intermediate_size")
    fields |= {"windows": upper_windows(foreign), "qk_norm": "rms"}
    bias = foreign.flag("attention_bias", False)
    layer = {
        **NORMS,
        **attention_rows(*PROJECTIONS, bias=bias, out_bias=bias),
        **QK_NORMS,
        **_expert_rows("mlp", "up_proj", "down_proj", "gate_proj"),
    }
    return llama_layout(foreign, Config(**fields), layer)


def _gpt_oss(foreign: ForeignConfig) -> CheckpointLayout:
    foreign.require_value("swiglu_alpha", 1.702)
    foreign.require_value("swiglu_limit", 7.0)
    fields = llama_fields(foreign, "clamped_gated")
    fields |= _expert_fields(foreign, "intermediate_size")
    fields |= {
        "norm_eps": foreign.number("rms_norm_eps", 1e-5),
        "sinks": True,
    }
    if "sliding_window" in foreign.values:
        fields["windows"] = alternating_windows(foreign, every=2)
    bias = foreign.flag("attention_bias", True)
    layer = {
        **NORMS,
        **attention_rows(*PROJECTIONS, bias=bias, out_bias=bias),
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
    return llama_layout(foreign, Config(**fields), layer)


MIXTRAL = Family("Mixtral", ("mixtral",), _mixtral)
QWEN3_MOE = Family("Qwen3-MoE", ("qwen3_moe",), _qwen3_moe)
GPT_OSS = Family("gpt-oss", ("gpt_oss",), _gpt_oss)
