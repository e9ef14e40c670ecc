"""Families with layer norms and the names of Llama.

Starcoder2 has ungated MLPs. Command-R (Cohere) has parallel blocks that share one norm, norms
without biases, rotations of adjacent pairs, and scaled logits; Command-R+ adds layer norms of the
queries and keys of each head. Command-R7B adds windows, and does not rotate in layers without one.
Nemotron has squared ReLUs, partial rotary, and gains stored minus 1; Jais 2 has squared ReLUs
alone. Falcon has parallel blocks, and stores the queries of a key/value head next to its key and
value.
"""

from dataclasses import replace
from typing import Any

from pathsum.algebra.spectrum import remove_mean
from pathsum.base.errors import ConfigError
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
from pathsum.sources.families.llama import (
    GATED,
    PROJECTIONS,
    alternating_windows,
    llama_fields,
    llama_layout,
)
from pathsum.sources.families.rotary import rotary, scale_queries
from pathsum.sources.foreign_config import ForeignConfig
from pathsum.sources.mapped_store import CheckpointLayout, Stored


def _ungated_fields(foreign: ForeignConfig, eps: str) -> dict[str, Any]:
    found = sizes(foreign)
    d_head = foreign.size("head_dim", found["d_head"])
    return {
        **found,
        "d_head": d_head,
        "n_kv_heads": foreign.size("num_key_value_heads", found["n_heads"]),
        "norm": "layer",
        "norm_eps": foreign.number(eps, 1e-5),
        "mlp": foreign.mlp("hidden_act"),
        "d_mlp": foreign.size("intermediate_size"),
    }


def _starcoder2(foreign: ForeignConfig) -> CheckpointLayout:
    fields = _ungated_fields(foreign, "norm_epsilon")
    fields |= rotary(foreign, fields["d_head"])
    fields |= {
        "windows": foreign.windows(fields["n_layers"]),
        "tied": foreign.flag("tie_word_embeddings", True),
    }
    bias = foreign.flag("use_bias", True)
    layer = {
        **norm_rows("ln1", "input_layernorm", bias=True),
        **norm_rows("ln2", "post_attention_layernorm", bias=True),
        **attention_rows(*PROJECTIONS, bias=bias, out_bias=bias),
        **mlp_rows("mlp.c_fc", "mlp.c_proj", bias=bias),
    }
    return llama_layout(foreign, Config(**fields), layer, bias=True)


def _nemotron(foreign: ForeignConfig) -> CheckpointLayout:
    bias, in_mlp = foreign.flag("attention_bias", False), foreign.flag("mlp_bias", False)
    return _ungated_layout(foreign, "norm_eps", bias, in_mlp, fraction=0.5, add=1.0)


def _jais2(foreign: ForeignConfig) -> CheckpointLayout:
    bias, in_mlp = foreign.flag("attention_bias", True), foreign.flag("mlp_bias", True)
    return _ungated_layout(foreign, "layer_norm_eps", bias, in_mlp)


def _ungated_layout(
    foreign: ForeignConfig,
    eps: str,
    bias: bool,
    in_mlp: bool,
    fraction: float | None = None,
    add: float = 0.0,
) -> CheckpointLayout:
    fields = _ungated_fields(foreign, eps)
    fields |= rotary(foreign, fields["d_head"], fraction=fraction)
    fields["tied"] = foreign.flag("tie_word_embeddings", False)
    layer = {
        **norm_rows("ln1", "input_layernorm", bias=True, add=add),
        **norm_rows("ln2", "post_attention_layernorm", bias=True, add=add),
        **attention_rows(*PROJECTIONS, bias=bias, out_bias=bias),
        **mlp_rows("mlp.up_proj", "mlp.down_proj", bias=in_mlp),
    }
    layout = llama_layout(foreign, Config(**fields), layer, bias=True)
    last = norm_rows("ln_f", "model.norm", bias=True, add=add)
    return replace(layout, model={**layout.model, **last})


def _cohere(foreign: ForeignConfig, base: float = 500_000.0, **more: Any) -> CheckpointLayout:
    fields = llama_fields(foreign, base=base)
    fields |= {
        "norm": "layer",
        "norm_eps": foreign.number("layer_norm_eps", 1e-5),
        "block": "parallel",
        "rotary_pairing": "adjacent",
        # The unembedding is multiplied and the embedding is not: two tensors for us.
        "tied": False,
        **more,
    }
    bias = foreign.flag("attention_bias", False)
    layer = {
        **norm_rows("ln1", "input_layernorm"),
        **norm_rows("ln2", "input_layernorm"),
        **attention_rows(*PROJECTIONS, bias=bias, out_bias=bias),
        **mlp_rows(*GATED),
    }
    if foreign.flag("use_qk_norm", False):
        fields["qk_norm"] = "rms_per_head"
        # Centered, what a layer norm divides by is the root mean square.
        for name in ("W_Q", "b_Q", "W_K", "b_K"):
            if name in layer:
                layer[name] = replace(layer[name], combine=remove_mean)
        layer["q_norm_w"] = Stored("self_attn.q_norm.weight", "h k")
        layer["k_norm_w"] = Stored("self_attn.k_norm.weight", "g k")
    layout = llama_layout(foreign, Config(**fields), layer)
    tied = foreign.flag("tie_word_embeddings", True)
    table = "model.embed_tokens.weight" if tied else "lm_head.weight"
    scale = foreign.number("logit_scale", 0.0625)
    scaled = {"W_U": Stored(table, "v d -> d v", multiply=scale)}
    return replace(layout, model={**layout.model, **scaled})


def _cohere2(foreign: ForeignConfig) -> CheckpointLayout:
    windows = alternating_windows(foreign, every=4)
    rotates = tuple(window is not None for window in windows)
    return _cohere(foreign, base=10_000.0, windows=windows, rotary_layers=rotates)


def _falcon(foreign: ForeignConfig) -> CheckpointLayout:
    if foreign.flag("alibi", False):
        raise ConfigError(
            f"{foreign.where} is a Falcon with ALiBi positions (Falcon-RW), which pathsum does not "
            "compute: unlike Bloom's, they are rounded to bfloat16, so that they are no multiples "
            "of a slope; use a Falcon with rotary positions"
        )
    found, grouped = sizes(foreign), foreign.flag("new_decoder_architecture", False)
    one = foreign.flag("multi_query", True) and not grouped
    parallel = grouped or foreign.flag("parallel_attn", True)
    config = Config(
        **found,
        n_kv_heads=1 if one else foreign.size("num_kv_heads", found["n_heads"]),
        norm="layer",
        norm_eps=foreign.number("layer_norm_epsilon", 1e-5),
        mlp=foreign.mlp("activation", "gelu"),
        d_mlp=foreign.size("ffn_hidden_size", 4 * found["d_model"]),
        block="parallel" if parallel else "serial",
        tied=foreign.flag("tie_word_embeddings", True),
        **rotary(foreign, found["d_head"]),
    )
    first, second = "input_layernorm", "input_layernorm" if parallel else "post_attention_layernorm"
    if grouped and foreign.size("num_ln_in_parallel_attn", 2) == 2:
        first, second = "ln_attn", "ln_mlp"
    bias = foreign.flag("bias", False)
    layer = {
        **norm_rows("ln1", first, bias=True),
        **norm_rows("ln2", second, bias=True),
        **grouped_rows("self_attention.query_key_value", bias=bias),
        "W_O": Stored("self_attention.dense.weight", "d (h k) -> h k d"),
        **({"b_O": Stored("self_attention.dense.bias", "d")} if bias else {}),
        **mlp_rows("mlp.dense_h_to_4h", "mlp.dense_4h_to_h", bias=bias),
    }
    model = {
        **embeddings("transformer.word_embeddings", "lm_head", tied=config.tied),
        **norm_rows("ln_f", "transformer.ln_f", bias=True),
    }
    layer = scale_queries(foreign, layer, config)
    return CheckpointLayout(config, model, layer, layers="transformer.h.{}.", prefix="transformer.")


STARCODER2 = Family("Starcoder2", ("starcoder2",), _starcoder2)
NEMOTRON = Family("Nemotron", ("nemotron",), _nemotron)
JAIS2 = Family("Jais 2", ("jais2",), _jais2)
COHERE = Family("Command-R", ("cohere",), _cohere)
COHERE2 = Family("Command-R7B", ("cohere2",), _cohere2)
FALCON = Family("Falcon", ("falcon",), _falcon)
