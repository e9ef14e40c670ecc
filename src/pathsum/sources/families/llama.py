"""Llama and its relatives: RMS norms, rotary positions, gated MLPs, shared key/value heads.

SmolLM and DeepSeek LLM are Llamas. Mistral, Ministral and CWM add sliding windows, Qwen2 biases of
queries, keys and values, Seed-OSS the same with a flag, Qwen3 norms of queries and keys per head.
Granite multiplies embeddings, outputs of blocks and logits, which is multiplied into the weights.
SmolLM3 does not rotate in every fourth layer. Helium and ERNIE 4.5 rotate adjacent pairs. Arcee has
MLPs without gates. EXAONE 3 is a Llama with other names. InternLM2 stores the queries of a
key/value head next to its key and value. Phi 3 has fused projections. StableLM has layer norms,
partial rotary and, in some, parallel blocks. Phi 1 and 2 have parallel blocks that share one norm.
GLM rotates adjacent pairs of half of each head; GLM-4 adds norms after each block.
"""

from dataclasses import replace
from typing import Any

from pathsum.model.config import Config
from pathsum.sources.families import (
    Family,
    attention_rows,
    embeddings,
    grouped_rows,
    mlp_rows,
    norm_rows,
    sizes,
)
from pathsum.sources.families.rotary import require_rope, rotary, scale_queries
from pathsum.sources.foreign_config import ForeignConfig
from pathsum.sources.mapped_store import CheckpointLayout, Stored

PROJECTIONS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
GATED = ("mlp.up_proj", "mlp.down_proj", "mlp.gate_proj")
FUSED_GATE = {
    "W_gate": Stored("mlp.gate_up_proj.weight", "m d -> d m", split=("m", "m"), part=0),
    "W_in": Stored("mlp.gate_up_proj.weight", "m d -> d m", split=("m", "m"), part=1),
    "W_out": Stored("mlp.down_proj.weight", "d m -> m d"),
}
QK_NORMS = {
    "q_norm_w": Stored("self_attn.q_norm.weight", "k"),
    "k_norm_w": Stored("self_attn.k_norm.weight", "k"),
}
NORMS = {**norm_rows("ln1", "input_layernorm"), **norm_rows("ln2", "post_attention_layernorm")}


def llama_fields(
    foreign: ForeignConfig,
    activation: str = "silu_gated",
    *,
    eps: float = 1e-6,
    base: float = 10_000.0,
    fraction: float | None = None,
) -> dict[str, Any]:
    """The fields of `Config` that config.json calls the same in all of these families.

    `eps`, `base` (of rotations) and `fraction` (of rotated dimensions) are a family's defaults; if
    it always rotates all dimensions, `fraction` is None.
    """
    if activation == "silu_gated":
        foreign.require_value("hidden_act", "silu")
    found = sizes(foreign)
    d_head = foreign.size("head_dim", found["d_head"])
    return {
        **found,
        "n_kv_heads": foreign.size("num_key_value_heads", found["n_heads"]),
        "d_head": d_head,
        "norm": "rms",
        "norm_eps": foreign.number("rms_norm_eps", eps),
        "mlp": activation,
        "d_mlp": foreign.size("intermediate_size"),
        "tied": foreign.flag("tie_word_embeddings", False),
        **rotary(foreign, d_head, base=base, fraction=fraction),
    }


def llama_layout(
    foreign: ForeignConfig, config: Config, layer: dict[str, Stored], *, bias: bool = False
) -> CheckpointLayout:
    """The names of these families, with the tensors of a layer; `bias`: the last norm has one."""
    model = {
        **embeddings("model.embed_tokens", "lm_head", tied=config.tied),
        **norm_rows("ln_f", "model.norm", bias=bias),
    }
    layer = scale_queries(foreign, layer, config)
    return CheckpointLayout(config, model, layer, layers="model.layers.{}.", prefix="model.")


def _llama(
    foreign: ForeignConfig, activation: str = "silu_gated", **fields: Any
) -> CheckpointLayout:
    bias, rows = foreign.flag("attention_bias", False), GATED
    if not activation.endswith("_gated"):
        rows = GATED[:2]
    layer = attention_rows(*PROJECTIONS, bias=bias, out_bias=bias)
    layer |= mlp_rows(*rows, bias=foreign.flag("mlp_bias", False))
    return _finish(foreign, layer, activation, **fields)


def _arcee(foreign: ForeignConfig) -> CheckpointLayout:
    return _llama(foreign, foreign.mlp("hidden_act", "relu2"), eps=1e-5)


def _helium(foreign: ForeignConfig) -> CheckpointLayout:
    return _llama(foreign, eps=1e-8, base=100_000.0, rotary_pairing="adjacent")


def _ernie(foreign: ForeignConfig) -> CheckpointLayout:
    biases = dict.fromkeys(("attention_bias", "mlp_bias"), foreign.flag("use_bias", False))
    known = ForeignConfig({**foreign.values, **biases}, foreign.where)
    return _llama(known, eps=1e-5, base=500_000.0, rotary_pairing="adjacent")


def _cwm(foreign: ForeignConfig) -> CheckpointLayout:
    require_rope(foreign)
    layers = foreign.size("num_hidden_layers")
    kinds = ["sliding_attention" if layer % 4 else "full_attention" for layer in range(layers)]
    known = ForeignConfig({"layer_types": kinds, **foreign.values}, foreign.where)
    return _llama(foreign, eps=1e-5, windows=known.windows(layers))


def _seed_oss(foreign: ForeignConfig) -> CheckpointLayout:
    bias, out_bias = foreign.flag("attention_bias", True), foreign.flag("attention_out_bias", False)
    layer = attention_rows(*PROJECTIONS, bias=bias, out_bias=out_bias)
    layer |= mlp_rows(*GATED, bias=foreign.flag("mlp_bias", False))
    return _finish(foreign, layer)


def _mistral(foreign: ForeignConfig) -> CheckpointLayout:
    layer = attention_rows(*PROJECTIONS) | mlp_rows(*GATED)
    return _finish(foreign, layer, windows=foreign.windows(foreign.size("num_hidden_layers")))


def _qwen2(foreign: ForeignConfig) -> CheckpointLayout:
    layer = attention_rows(*PROJECTIONS, bias=True) | mlp_rows(*GATED)
    return _finish(foreign, layer, windows=upper_windows(foreign))


def _qwen3(foreign: ForeignConfig) -> CheckpointLayout:
    bias = foreign.flag("attention_bias", False)
    layer = {
        **attention_rows(*PROJECTIONS, bias=bias, out_bias=bias),
        **mlp_rows(*GATED),
        **QK_NORMS,
    }
    return _finish(foreign, layer, windows=upper_windows(foreign), qk_norm="rms")


def _stablelm(foreign: ForeignConfig) -> CheckpointLayout:
    foreign.require_value("qk_layernorm", False)
    parallel = foreign.flag("use_parallel_residual", False)
    fields = llama_fields(foreign, fraction=0.25)
    fields |= {
        "norm": "layer",
        "norm_eps": foreign.number("layer_norm_eps", 1e-5),
        "block": "parallel" if parallel else "serial",
    }
    layer = {
        **norm_rows("ln1", "input_layernorm", bias=True),
        **norm_rows(
            "ln2", "input_layernorm" if parallel else "post_attention_layernorm", bias=True
        ),
        **attention_rows(*PROJECTIONS, bias=foreign.flag("use_qkv_bias", False)),
        **mlp_rows(*GATED),
    }
    return llama_layout(foreign, Config(**fields), layer, bias=True)


def _phi(foreign: ForeignConfig) -> CheckpointLayout:
    foreign.require_value("qk_layernorm", False)
    found = sizes(foreign)
    config = Config(
        **found,
        n_kv_heads=foreign.size("num_key_value_heads", found["n_heads"]),
        norm="layer",
        norm_eps=foreign.number("layer_norm_eps", 1e-5),
        mlp=foreign.mlp("hidden_act", "gelu_new"),
        d_mlp=foreign.size("intermediate_size", 4 * found["d_model"]),
        block="parallel",
        tied=foreign.flag("tie_word_embeddings", False),
        **rotary(foreign, found["d_head"], fraction=0.5),
    )
    names = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.dense")
    layer = {
        **norm_rows("ln1", "input_layernorm", bias=True),
        **norm_rows("ln2", "input_layernorm", bias=True),
        **attention_rows(*names, bias=True, out_bias=True),
        **mlp_rows("mlp.fc1", "mlp.fc2", bias=True),
    }
    model = {
        **embeddings("model.embed_tokens", "lm_head", tied=config.tied, bias=True),
        **norm_rows("ln_f", "model.final_layernorm", bias=True),
    }
    layer = scale_queries(foreign, layer, config)
    return CheckpointLayout(config, model, layer, layers="model.layers.{}.", prefix="model.")


def _phi3(foreign: ForeignConfig) -> CheckpointLayout:
    fields = llama_fields(foreign, eps=1e-5, fraction=1.0)
    config = Config(**fields, windows=foreign.windows(fields["n_layers"]))
    layer = {
        **fused_rows("self_attn.qkv_proj", ("h k", "g k", "g k")),
        "W_O": Stored("self_attn.o_proj.weight", "d (h k) -> h k d"),
        **FUSED_GATE,
    }
    return llama_layout(foreign, config, NORMS | layer)


def _granite(foreign: ForeignConfig) -> CheckpointLayout:
    layout = _llama(foreign)
    config = layout.config.replace(
        score_scale=foreign.number("attention_multiplier", 1.0),
        # Embedding and unembedding are multiplied by different numbers: two tensors for us.
        tied=False,
    )
    table = "model.embed_tokens.weight" if layout.config.tied else "lm_head.weight"
    model = {
        **layout.model,
        "W_E": replace(layout.model["W_E"], multiply=foreign.number("embedding_multiplier", 1.0)),
        "W_U": Stored(table, "v d -> d v", multiply=1 / foreign.number("logits_scaling", 1.0)),
    }
    written = foreign.number("residual_multiplier", 1.0)
    layer = {
        name: replace(stored, multiply=written)
        if name in ("W_O", "b_O", "W_out", "b_out")
        else stored
        for name, stored in layout.layer.items()
    }
    return replace(layout, config=config, model=model, layer=layer)


def _smollm3(foreign: ForeignConfig) -> CheckpointLayout:
    layers = foreign.size("num_hidden_layers")
    every = foreign.size("no_rope_layer_interval", 4)
    usual = [int((layer + 1) % every != 0) for layer in range(layers)]
    rotates = tuple(bool(each) for each in foreign.values.get("no_rope_layers", usual))
    windows = foreign.windows(layers) if foreign.flag("use_sliding_window", False) else ()
    return _llama(foreign, base=2e6, rotary_layers=rotates, windows=windows)


def _internlm2(foreign: ForeignConfig) -> CheckpointLayout:
    config, bias = Config(**llama_fields(foreign)), foreign.flag("bias", False)
    layer = {
        **norm_rows("ln1", "attention_norm"),
        **norm_rows("ln2", "ffn_norm"),
        **grouped_rows("attention.wqkv", bias=bias),
        "W_O": Stored("attention.wo.weight", "d (h k) -> h k d"),
        **({"b_O": Stored("attention.wo.bias", "d")} if bias else {}),
        **mlp_rows("feed_forward.w3", "feed_forward.w2", "feed_forward.w1"),
    }
    layout = llama_layout(foreign, config, layer)
    model = {**layout.model, **embeddings("model.tok_embeddings", "output", tied=config.tied)}
    return replace(layout, model=model)


def _exaone(foreign: ForeignConfig) -> CheckpointLayout:
    names = {"num_hidden_layers": "num_layers", "rms_norm_eps": "layer_norm_epsilon"}
    names["hidden_act"] = "activation_function"
    values = foreign.values
    known = {ours: values[theirs] for ours, theirs in names.items() if theirs in values}
    config = Config(**llama_fields(ForeignConfig({**values, **known}, foreign.where)))
    ends = ("q_proj", "k_proj", "v_proj", "out_proj")
    q, k, v, out = (f"attn.attention.{end}" for end in ends)
    layer = {
        **norm_rows("ln1", "ln_1"),
        **norm_rows("ln2", "ln_2"),
        **attention_rows(q, k, v, out),
        **mlp_rows("mlp.c_fc_1", "mlp.c_proj", "mlp.c_fc_0"),
    }
    model = {
        **embeddings("transformer.wte", "lm_head", tied=config.tied),
        **norm_rows("ln_f", "transformer.ln_f"),
    }
    layer = scale_queries(foreign, layer, config)
    return CheckpointLayout(config, model, layer, layers="transformer.h.{}.", prefix="transformer.")


def fused_rows(name: str, blocks: tuple[str, str, str]) -> dict[str, Stored]:
    """Queries, keys and values one after the other in one tensor."""
    return {
        f"W_{letter}": Stored(
            f"{name}.weight", f"({heads} k) d -> {heads} d k", split=blocks, part=part
        )
        for part, (letter, heads) in enumerate(zip("QKV", [b[0] for b in blocks], strict=True))
    }


def _glm(foreign: ForeignConfig) -> CheckpointLayout:
    fields = llama_fields(foreign, eps=1.5625e-7, fraction=0.5)
    fields["rotary_pairing"] = "adjacent"
    bias = foreign.flag("attention_bias", True)
    layer = {**NORMS, **attention_rows(*PROJECTIONS, bias=bias), **FUSED_GATE}
    return llama_layout(foreign, Config(**fields), layer)


def _glm4(foreign: ForeignConfig) -> CheckpointLayout:
    layout = _glm(foreign)
    norms = {
        **norm_rows("post1", "post_self_attn_layernorm"),
        **norm_rows("post2", "post_mlp_layernorm"),
    }
    config = layout.config.replace(norm_place="both")
    return replace(layout, config=config, layer={**layout.layer, **norms})


def _finish(
    foreign: ForeignConfig,
    layer: dict[str, Stored],
    activation: str = "silu_gated",
    *,
    eps: float = 1e-6,
    base: float = 10_000.0,
    **fields: Any,
) -> CheckpointLayout:
    config = Config(**llama_fields(foreign, activation, eps=eps, base=base) | fields)
    return llama_layout(foreign, config, NORMS | layer)


def upper_windows(foreign: ForeignConfig) -> tuple[int | None, ...]:
    """Qwen's windows: off unless asked for, and then in the layers from `max_window_layers` up."""
    layers = foreign.size("num_hidden_layers")
    if not foreign.flag("use_sliding_window", False):
        return ()
    if "layer_types" in foreign.values:
        return foreign.windows(layers)
    first, window = foreign.size("max_window_layers"), foreign.size("sliding_window")
    return tuple(window if layer >= first else None for layer in range(layers))


def alternating_windows(foreign: ForeignConfig, every: int) -> tuple[int | None, ...]:
    """Windows in all layers but each `every`-th, unless the config lists them."""
    layers = foreign.size("num_hidden_layers")
    if "layer_types" in foreign.values:
        return foreign.windows(layers)
    every, window = foreign.size("sliding_window_pattern", every), foreign.size("sliding_window")
    return tuple(None if (layer + 1) % every == 0 else window for layer in range(layers))


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
STABLELM = Family("StableLM", ("stablelm",), _stablelm)
PHI = Family("Phi", ("phi",), _phi)
PHI3 = Family("Phi-3", ("phi3",), _phi3)
