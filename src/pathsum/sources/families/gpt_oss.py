"""gpt-oss: attention sinks, windows in every other layer, experts with clamped gates."""

from pathsum.model.config import Config
from pathsum.sources.facts import Facts
from pathsum.sources.families import Family, attention
from pathsum.sources.families.gemma import alternating_windows
from pathsum.sources.families.llama import NORMS, PROJECTIONS, llama_fields, llama_layout
from pathsum.sources.mapped_store import Layout, Stored


def _describe(facts: Facts) -> Layout:
    facts.only("swiglu_alpha", 1.702)
    facts.only("swiglu_limit", 7.0)
    fields = llama_fields(facts, "clamped_gated")
    experts = facts.size("num_local_experts", facts.values.get("num_experts"))
    fields |= {
        "d_mlp": experts * facts.size("intermediate_size"),
        "n_experts": experts,
        "experts_per_token": facts.size("num_experts_per_tok"),
        "norm_eps": facts.number("rms_norm_eps", 1e-5),
        "sinks": True,
    }
    if "sliding_window" in facts.values:
        fields["windows"] = alternating_windows(facts, every=2)
    bias = facts.flag("attention_bias", True)
    layer = {
        **NORMS,
        **attention(*PROJECTIONS, bias=bias, out_bias=bias),
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
    return llama_layout(facts, Config(**fields), layer)


GPT_OSS = Family("gpt-oss", ("gpt_oss",), _describe)
