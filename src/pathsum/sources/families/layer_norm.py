"""Families with layer norms and the names of Llama.

Starcoder2 has ungated MLPs. Command-R (Cohere) has parallel blocks that share one norm, norms
without biases, rotations of adjacent pairs, and scaled logits; Command-R7B adds windows, and does
not rotate in layers without one. Nemotron has squared ReLUs, partial rotary, and gains stored
minus 1. Falcon has parallel blocks, and stores the queries of a key/value head next to its key and
value.

Bloom and MPT: ALiBi adds slope · (source's position) to the scores of each head.

ALiBi needs no positions of its own here, because both families have layer norms. What a layer norm
gives is orthogonal to the ones-vector 1 before gain and bias, so this direction is free to carry
positions into the keys. With the gain and the bias folded into the weights, and one more dimension
in each head:

    W_Q = [W_Q centered, 0]      b_Q = [b_Q, slope / score_scale]
    W_K = [W_K centered, 1/d]    W_pos[j] = j · 1                       (positions="qk")

A key's last entry is j, and the product with a query has the term slope · j, exactly. The last
dimensions of W_V and W_O are 0, and QK and OV in the stream's basis are those of the checkpoint.
Bloom also normalizes its embeddings, once and for all: the normalized rows are W_E.
"""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pathsum.algebra.spectrum import remove_mean
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
    fields = _ungated_fields(foreign, "norm_eps")
    fields |= rotary(foreign, fields["d_head"], fraction=0.5)
    fields["tied"] = foreign.flag("tie_word_embeddings", False)
    bias = foreign.flag("attention_bias", False)
    layer = {
        **norm_rows("ln1", "input_layernorm", bias=True, add=1.0),
        **norm_rows("ln2", "post_attention_layernorm", bias=True, add=1.0),
        **attention_rows(*PROJECTIONS, bias=bias, out_bias=bias),
        **mlp_rows("mlp.up_proj", "mlp.down_proj", bias=foreign.flag("mlp_bias", False)),
    }
    layout = llama_layout(foreign, Config(**fields), layer, bias=True)
    last = norm_rows("ln_f", "model.norm", bias=True, add=1.0)
    return replace(layout, model={**layout.model, **last})


def _cohere(foreign: ForeignConfig, base: float = 500_000.0, **more: Any) -> CheckpointLayout:
    foreign.require_value("use_qk_norm", False)
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
    # transformers rounds Falcon's ALiBi to bfloat16, which slopes cannot express.
    foreign.require_value("alibi", False)
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
COHERE = Family("Command-R", ("cohere",), _cohere)
COHERE2 = Family("Command-R7B", ("cohere2",), _cohere2)
FALCON = Family("Falcon", ("falcon",), _falcon)


def _bloom(foreign: ForeignConfig) -> CheckpointLayout:
    foreign.require_value("apply_residual_connection_post_layernorm", False)
    values = foreign.values
    names = {"n_head": "num_attention_heads", "n_layer": "num_hidden_layers"}
    names |= {"hidden_size": "n_embed"}
    known = {ours: values.get(ours, values.get(theirs)) for ours, theirs in names.items()}
    filled = ForeignConfig({"seq_length": 2048, **values, **known}, foreign.where)
    config = _config(
        filled, layers="n_layer", heads="n_head", width="hidden_size", context="seq_length"
    )
    fused, norm = "self_attention.query_key_value", "input_layernorm"
    layer = {
        **_attention_rows(config, fused, "(h 3 j)", norm, slopes(config.n_heads), bias=True),
        "W_O": Stored("self_attention.dense.weight", "d (h j) -> h j d", combine=_pad_rows),
        "b_O": Stored("self_attention.dense.bias", "d"),
        **norm_rows("ln2", "post_attention_layernorm", bias=True),
        **mlp_rows("mlp.dense_h_to_4h", "mlp.dense_4h_to_h", bias=True),
    }
    table = "transformer.word_embeddings"
    ends = tuple(f"{table}_layernorm.{end}" for end in ("weight", "bias"))
    normal = partial(_layer_norm, eps=config.norm_eps)
    model = {
        "W_E": Stored(f"{table}.weight", "v d", combine=normal, others=ends),
        "W_U": Stored(f"{table}.weight", "v d -> d v"),
        "W_pos": Stored("transformer.ln_f.weight", "d", combine=partial(_places, config.n_ctx)),
        **norm_rows("ln_f", "transformer.ln_f", bias=True),
    }
    return CheckpointLayout(config, model, layer, layers="transformer.h.{}.", prefix="transformer.")


def _mpt(foreign: ForeignConfig) -> CheckpointLayout:
    attention = foreign.table("attn_config")
    attention.require_value("alibi", True)
    attention.require_value("alibi_bias_max", 8)
    for name in ("qk_ln", "prefix_lm"):
        attention.require_value(name, False)
    for table, name in ((attention, "clip_qkv"), (foreign, "logit_scale")):
        table.require_value(name, None)
    foreign.require_value("expansion_ratio", 4)
    foreign.require_value("no_bias", True)
    config = _config(
        foreign, layers="n_layers", heads="n_heads", width="d_model", context="max_seq_len"
    )
    config = config.replace(
        mlp="gelu", score_scale=attention.number("softmax_scale", config.score_scale)
    )
    steep = slopes(config.n_heads, interleaved=True)
    layer = {
        **_attention_rows(config, "attn.Wqkv", "(3 h j)", "norm_1", steep),
        "W_O": Stored("attn.out_proj.weight", "d (h j) -> h j d", combine=_pad_rows),
        **norm_rows("ln2", "norm_2"),
        **mlp_rows("ffn.up_proj", "ffn.down_proj"),
    }
    table = "transformer.wte.weight"
    model = {
        "W_E": Stored(table, "v d"),
        "W_U": Stored(table, "v d -> d v"),
        "W_pos": Stored("transformer.norm_f.weight", "d", combine=partial(_places, config.n_ctx)),
        **norm_rows("ln_f", "transformer.norm_f"),
    }
    layers = "transformer.blocks.{}."
    return CheckpointLayout(config, model, layer, layers=layers, prefix="transformer.")


def slopes(n_heads: int, interleaved: bool = False) -> Tensor:
    """ALiBi's slope of each head: a geometric sequence, for n a power of two 2^(−8/n), 2^(−16/n), …

    For other numbers of heads the sequence of the next smaller power of two comes first, then every
    other entry of the next larger one's. `interleaved`, as in MPT: the odd entries of the larger
    one's, then the even ones.
    """
    below = 2 ** math.floor(math.log2(n_heads))

    def sequence(n: int) -> Tensor:
        return 2.0 ** (-8 / n * torch.arange(1, n + 1, dtype=torch.float64))

    if below == n_heads:
        return sequence(n_heads)
    larger = sequence(2 * below)
    first = larger[1::2] if interleaved else sequence(below)
    return torch.cat((first, larger[::2]))[:n_heads]


def _config(foreign: ForeignConfig, **names: str) -> Config:
    found = sizes(foreign, **names)
    return Config(
        **found | {"d_head": found["d_head"] + 1},
        positions="qk",
        norm="layer",
        norm_eps=foreign.number("layer_norm_epsilon", 1e-5),
        mlp="gelu_tanh",
        score_scale=1 / math.sqrt(found["d_head"]),
    )


def _attention_rows(
    config: Config, name: str, rows: str, norm: str, steep: Tensor, *, bias: bool = False
) -> dict[str, Stored]:
    """Queries, keys and values in one tensor, with a layer norm folded into them."""
    last = {"Q": steep / config.score_scale, "K": torch.zeros(1), "V": torch.zeros(1)}
    found: dict[str, Stored] = {}
    for part, letter in enumerate("QKV"):
        weight = Stored(f"{name}.weight", f"{rows} d -> 3 h d j", part=part)
        carries = 1 / config.d_model if letter == "K" else 0.0
        fold = partial(_fold_gain, centered=letter != "V", last=carries)
        found[f"W_{letter}"] = replace(weight, combine=fold, others=(f"{norm}.weight",))
        if bias or letter == "Q":
            fold = partial(_fold_biases, part=part, last=last[letter])
            others = (f"{norm}.bias", f"{name}.bias") if bias else ()
            found[f"b_{letter}"] = replace(weight, combine=fold, others=others)
    return found


def _fold_gain(W: Tensor, gain: Tensor, centered: bool, last: float) -> Tensor:
    """[head, d, j] times a norm's gain, with one more dimension that is `last` everywhere."""
    folded = remove_mean((gain[:, None] * W).mT, centered).mT
    return torch.cat((folded, torch.full_like(W[..., :1], last)), -1)


def _fold_biases(W: Tensor, *biases: Tensor, part: int, last: Tensor) -> Tensor:
    """Biases [head, j + 1]: a norm's through W plus the projection's own, and the last entry."""
    found = W.new_zeros(W.shape[0], W.shape[2])
    if biases:
        shift, own = biases
        found = torch.einsum("d,hdj->hj", shift, W) + own.reshape(len(W), 3, -1)[:, part]
    return torch.cat((found, last.to(found).expand(len(found))[:, None]), -1)


def _pad_rows(W: Tensor) -> Tensor:
    """W_O with one more row of zeros per head."""
    return F.pad(W, (0, 0, 0, 1))


def _layer_norm(table: Tensor, gain: Tensor, bias: Tensor, eps: float) -> Tensor:
    return F.layer_norm(table, table.shape[-1:], gain, bias, eps)


def _places(n_ctx: int, gain: Tensor) -> Tensor:
    """W_pos[j] = j · 1."""
    return torch.arange(n_ctx).to(gain)[:, None].expand(n_ctx, len(gain))


BLOOM = Family("Bloom", ("bloom",), _bloom)
MPT = Family("MPT", ("mpt",), _mpt)
