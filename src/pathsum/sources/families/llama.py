"""Llama and its relatives: RMS norms, rotary positions, gated MLPs, shared key/value heads.

SmolLM is a Llama. Mistral adds sliding windows, Qwen2 biases of queries, keys and values, Qwen3
norms of queries and keys per head. OLMo 2 has norms after each block only, and one norm over the
queries (keys) of all heads. StableLM has layer norms, partial rotary and, in some, parallel blocks.
"""

from typing import Any

from pathsum.model.config import Config
from pathsum.sources.facts import Facts
from pathsum.sources.families import Family, attention, embeddings, mlp, norm, sizes
from pathsum.sources.families.rotary import rotary, scale_queries
from pathsum.sources.mapped_store import Layout, Stored

PROJECTIONS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
GATED = ("mlp.up_proj", "mlp.down_proj", "mlp.gate_proj")
NORMS = {**norm("ln1", "input_layernorm"), **norm("ln2", "post_attention_layernorm")}


def llama_fields(facts: Facts, activation: str = "silu_gated") -> dict[str, Any]:
    """The fields of `Config` that config.json calls the same in all of these families."""
    if activation == "silu_gated":
        facts.only("hidden_act", "silu")
    found = sizes(facts)
    d_head = facts.size("head_dim", found["d_head"])
    return {
        **found,
        "n_kv_heads": facts.size("num_key_value_heads", found["n_heads"]),
        "d_head": d_head,
        "norm": "rms",
        "norm_eps": facts.number("rms_norm_eps", 1e-6),
        "mlp": activation,
        "d_mlp": facts.size("intermediate_size"),
        "tied": facts.flag("tie_word_embeddings", False),
        **rotary(facts, d_head),
    }


def llama_layout(
    facts: Facts, config: Config, layer: dict[str, Stored], *, bias: bool = False
) -> Layout:
    """The names of these families, with the tensors of a layer; `bias`: the last norm has one."""
    model = {
        **embeddings("model.embed_tokens", "lm_head", tied=config.tied),
        **norm("ln_f", "model.norm", bias=bias),
    }
    layer = scale_queries(facts, layer, config.rotary_width)
    return Layout(config, model, layer, layers="model.layers.{}.", prefix="model.")


def _llama(facts: Facts) -> Layout:
    bias = facts.flag("attention_bias", False)
    layer = attention(*PROJECTIONS, bias=bias, out_bias=bias)
    layer |= mlp(*GATED, bias=facts.flag("mlp_bias", False))
    return _finish(facts, layer)


def _mistral(facts: Facts) -> Layout:
    layer = attention(*PROJECTIONS) | mlp(*GATED)
    return _finish(facts, layer, windows=facts.windows(facts.size("num_hidden_layers")))


def _qwen2(facts: Facts) -> Layout:
    layer = attention(*PROJECTIONS, bias=True) | mlp(*GATED)
    return _finish(facts, layer, windows=_upper_windows(facts))


def _qwen3(facts: Facts) -> Layout:
    bias = facts.flag("attention_bias", False)
    layer = {
        **attention(*PROJECTIONS, bias=bias, out_bias=bias),
        **mlp(*GATED),
        "q_norm_w": Stored("self_attn.q_norm.weight", "k"),
        "k_norm_w": Stored("self_attn.k_norm.weight", "k"),
    }
    return _finish(facts, layer, windows=_upper_windows(facts), qk_norm="rms")


def _olmo2(facts: Facts) -> Layout:
    bias = facts.flag("attention_bias", False)
    layer = {
        **attention(*PROJECTIONS, bias=bias, out_bias=bias),
        **mlp(*GATED),
        "q_norm_w": Stored("self_attn.q_norm.weight", "(h k) -> h k"),
        "k_norm_w": Stored("self_attn.k_norm.weight", "(g k) -> g k"),
        **norm("post1", "post_attention_layernorm"),
        **norm("post2", "post_feedforward_layernorm"),
    }
    config = Config(**llama_fields(facts), norm_place="after", qk_norm="rms_all")
    return llama_layout(facts, config, layer)


def _stablelm(facts: Facts) -> Layout:
    facts.only("qk_layernorm", False)
    parallel = facts.flag("use_parallel_residual", False)
    fields = llama_fields(facts)
    fields |= rotary(facts, fields["d_head"], fraction=0.25)
    fields |= {
        "norm": "layer",
        "norm_eps": facts.number("layer_norm_eps", 1e-5),
        "block": "parallel" if parallel else "serial",
    }
    layer = {
        **norm("ln1", "input_layernorm", bias=True),
        **norm("ln2", "input_layernorm" if parallel else "post_attention_layernorm", bias=True),
        **attention(*PROJECTIONS, bias=facts.flag("use_qkv_bias", False)),
        **mlp(*GATED),
    }
    return llama_layout(facts, Config(**fields), layer, bias=True)


def _finish(facts: Facts, layer: dict[str, Stored], **fields: Any) -> Layout:
    return llama_layout(facts, Config(**llama_fields(facts), **fields), NORMS | layer)


def _upper_windows(facts: Facts) -> tuple[int | None, ...]:
    """Qwen's windows: off unless asked for, and then in the layers from `max_window_layers` up."""
    layers = facts.size("num_hidden_layers")
    if not facts.flag("use_sliding_window", False):
        return ()
    if "layer_types" in facts.values:
        return facts.windows(layers)
    first, window = facts.size("max_window_layers"), facts.size("sliding_window")
    return tuple(window if layer >= first else None for layer in range(layers))


LLAMA = Family("Llama", ("llama",), _llama)
MISTRAL = Family("Mistral", ("mistral",), _mistral)
QWEN2 = Family("Qwen2", ("qwen2",), _qwen2)
QWEN3 = Family("Qwen3", ("qwen3",), _qwen3)
OLMO2 = Family("OLMo 2", ("olmo2",), _olmo2)
STABLELM = Family("StableLM", ("stablelm",), _stablelm)
