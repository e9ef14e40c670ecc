"""Llama and its relatives: RMS norms, rotary positions, gated MLPs, shared key/value heads.

SmolLM is a Llama. Mistral adds sliding windows, Qwen2 biases of queries, keys and values, Qwen3
norms of queries and keys per head.
"""

from typing import Any

from pathsum.model.config import Config
from pathsum.sources.facts import Facts
from pathsum.sources.families.linear import attention, embeddings, mlp, norm
from pathsum.sources.families.rotary import rotary, scale_queries
from pathsum.sources.family import Family
from pathsum.sources.mapped_store import Layout, Stored

PROJECTIONS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
GATED = ("mlp.up_proj", "mlp.down_proj", "mlp.gate_proj")


def llama_fields(facts: Facts, activation: str = "silu_gated") -> dict[str, Any]:
    """The fields of `Config` that config.json calls the same in all of these families."""
    if activation == "silu_gated":
        facts.only("hidden_act", "silu")
    d, heads = facts.size("hidden_size"), facts.size("num_attention_heads")
    d_head = facts.size("head_dim", d // heads)
    return {
        "n_layers": facts.size("num_hidden_layers"),
        "n_heads": heads,
        "n_kv_heads": facts.size("num_key_value_heads", heads),
        "d_model": d,
        "d_head": d_head,
        "d_vocab": facts.size("vocab_size"),
        "n_ctx": facts.size("max_position_embeddings"),
        "norm": "rms",
        "norm_eps": facts.number("rms_norm_eps", 1e-6),
        "mlp": activation,
        "d_mlp": facts.size("intermediate_size"),
        "tied": facts.flag("tie_word_embeddings", False),
        **rotary(facts, d_head),
    }


def llama_layout(config: Config, layer: dict[str, Stored]) -> Layout:
    """The names of these families, with the given attention and MLP of a layer."""
    model = {
        **embeddings("model.embed_tokens", "lm_head", tied=config.tied),
        **norm("ln_f", "model.norm"),
    }
    norms = {**norm("ln1", "input_layernorm"), **norm("ln2", "post_attention_layernorm")}
    return Layout(config, model, norms | layer, layers="model.layers.{}.", prefix="model.")


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


def _finish(facts: Facts, layer: dict[str, Stored], **fields: Any) -> Layout:
    config = Config(**llama_fields(facts), **fields)
    return llama_layout(config, scale_queries(facts, layer, config.rotary_width))


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
