"""Bloom, MPT, Baichuan and Falcon-RW: ALiBi adds slope · (source's position) to scores.

The slope is the head's. After layer norms it needs no extra dimension of the stream. What a layer
norm gives is orthogonal to the ones-vector 1 before gain and bias, so this direction is free to
carry positions into the keys. With the gain and the bias folded into the weights, and one more
dimension in each head:

    W_Q = [W_Q centered, 0]      b_Q = [b_Q, slope / score_scale]
    W_K = [W_K centered, n/d]    W_pos[j] = j/n · 1                     (positions="qk")

A key's last entry is j, and the product with a query has the term slope · j, exactly. Positions are
divided by the context n, or the next power of two: larger ones would cost the numbers that they are
added to their last digits. The last dimensions of W_V and W_O are 0, and QK and OV in the stream's
basis are those of the checkpoint.

Bloom also normalizes its embeddings, once and for all: the normalized rows are W_E. Baichuan-7B is
a Llama with fused projections; Baichuan-13B has ALiBi after RMS norms, and Falcon-RW rounds
slope · j to bfloat16, so each head adds a dimension to the stream (`add_positions`). Baichuan 2
normalizes the rows of its unembedding.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pathsum.algebra.spectrum import remove_mean
from pathsum.sources.families import (
    Family,
    TensorNames,
    attention_rows,
    block_norms,
    family_layout,
    mlp_rows,
    norm_rows,
    rotary_fields,
)
from pathsum.sources.foreign_config import ForeignConfig
from pathsum.sources.mapped_store import CheckpointLayout, Stored

_BLOOM_NAMES = {
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "hidden_size": "n_embed",
    "max_position_embeddings": "seq_length",
    "rms_norm_eps": "layer_norm_epsilon",
}
_MPT_NAMES = {
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "hidden_size": "d_model",
    "max_position_embeddings": "max_seq_len",
    "rms_norm_eps": "layer_norm_epsilon",
}


def _bloom(foreign: ForeignConfig) -> CheckpointLayout:
    foreign.require_value("apply_residual_connection_post_layernorm", False)
    foreign = ForeignConfig({"seq_length": 2048, **foreign.values}, foreign.where)
    fields = _fields(foreign.renamed(_BLOOM_NAMES), "gelu_tanh")
    # The embedding is normalized and the unembedding is not: two tensors for us.
    fields["tied"] = False
    fused, norm = "self_attention.query_key_value", "input_layernorm"
    layer = {
        **_fused_rows(fields, fused, "(h 3 j)", norm, slopes(fields["n_heads"]), bias=True),
        "W_O": Stored("self_attention.dense.weight", "d (h j) -> h j d", combine=_pad_rows),
        "b_O": Stored("self_attention.dense.bias", "d"),
        **norm_rows(ln2="post_attention_layernorm", bias=True),
        **mlp_rows("mlp.dense_h_to_4h", "mlp.dense_4h_to_h", bias=True),
    }
    table, normal = "transformer.word_embeddings", partial(_layer_norm, eps=fields["norm_eps"])
    ends = tuple(f"{table}_layernorm.{end}" for end in ("weight", "bias"))
    model = {
        "W_E": Stored(f"{table}.weight", "v d", combine=normal, others=ends),
        "W_U": Stored(f"{table}.weight", "v d -> d v"),
        "W_pos": _position_row(fields, "transformer.ln_f.weight"),
    }
    names = TensorNames("transformer.", "h.{}.", norm="ln_f")
    return family_layout(foreign, fields, layer, names, bias=True, model=model)


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
    fields = _fields(foreign.renamed(_MPT_NAMES), "gelu", tied=True)
    fields["score_scale"] = attention.number("softmax_scale", fields["score_scale"])
    steep = slopes(fields["n_heads"], interleaved=True)
    layer = {
        **_fused_rows(fields, "attn.Wqkv", "(3 h j)", "norm_1", steep),
        "W_O": Stored("attn.out_proj.weight", "d (h j) -> h j d", combine=_pad_rows),
        **norm_rows(ln2="norm_2"),
        **mlp_rows("ffn.up_proj", "ffn.down_proj"),
    }
    names = TensorNames("transformer.", "blocks.{}.", "wte", "norm_f")
    model = {"W_pos": _position_row(fields, "transformer.norm_f.weight")}
    return family_layout(foreign, fields, layer, names, model=model)


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


def _fields(foreign: ForeignConfig, mlp: str, *, tied: bool = False) -> dict[str, Any]:
    found = foreign.fields("layer", mlp, eps=1e-5, tied=tied)
    d_head = found["d_head"]
    return found | {
        "d_head": d_head + 1,
        "positions": "qk",
        "score_scale": 1 / math.sqrt(d_head),
    }


def _fused_rows(
    fields: Mapping[str, Any], name: str, rows: str, norm: str, steep: Tensor, *, bias: bool = False
) -> dict[str, Stored]:
    """Queries, keys and values in one tensor, with a layer norm folded into them."""
    last = {"Q": steep / fields["score_scale"], "K": torch.zeros(1), "V": torch.zeros(1)}
    found: dict[str, Stored] = {}
    for part, letter in enumerate("QKV"):
        weight = Stored(f"{name}.weight", f"{rows} d -> 3 h d j", part=part)
        carries = _longest(fields) / fields["d_model"] if letter == "K" else 0.0
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


def _position_row(fields: Mapping[str, Any], gain: str) -> Stored:
    """W_pos[j] = j/n · 1, made from any tensor as wide as the stream."""

    def places(gain: Tensor) -> Tensor:
        places = torch.arange(fields["n_ctx"]).to(gain) / _longest(fields)
        return places[:, None].expand(-1, len(gain))

    return Stored(gain, "d", combine=places)


def _longest(fields: Mapping[str, Any]) -> int:
    """The context, or the next power of two."""
    return 1 << (fields["n_ctx"] - 1).bit_length()


def _baichuan(foreign: ForeignConfig) -> CheckpointLayout:
    """Llamas with fused projections: 7B rotates, 13B has ALiBi."""
    alibi = "max_position_embeddings" not in foreign.values
    fields = rotary_fields(foreign.renamed({"max_position_embeddings": "model_max_length"}))
    if alibi:
        fields = {name: fields[name] for name in fields if not name.startswith("rotary")}
        fields["positions"] = "none"
    attention = attention_rows("self_attn.W_pack", "self_attn.o_proj")
    layout = family_layout(foreign, fields, {**block_norms(), **attention, **mlp_rows()})
    if "z_loss_weight" in foreign.values:  # Baichuan 2
        head = replace(layout.model["W_U"], combine=partial(F.normalize, dim=0))
        layout = replace(layout, model={**layout.model, "W_U": head})
    if not alibi:
        return layout
    config, positions = layout.config, torch.arange(layout.config.n_ctx, dtype=torch.float64)
    query = slopes(config.n_heads) * math.sqrt(config.d_head)
    return add_positions(layout, positions[:, None], torch.ones(config.n_heads, 1), query)


def add_positions(
    layout: CheckpointLayout, table: Tensor, reads: Tensor, query: Tensor
) -> CheckpointLayout:
    """A layout without positions whose scores get the term query[head] · (table @ reads[head]).

    `table` is [n_ctx, e] and `reads` [head, e]. The stream gets e more dimensions and each head one
    more. There, all that is written is 0, W_pos is `table`, W_K is `reads` and b_Q is `query`. An
    RMS norm then takes the mean of the squares over d + e entries, which the gains make up for. A
    layer norm also subtracts a mean, which is 0 if the mean of all that is written is 0.
    """
    old, extra = layout.config, table.shape[1]
    shrink = old.d_model / (old.d_model + extra)
    config = old.replace(
        d_model=old.d_model + extra,
        d_head=old.d_head + 1,
        d_mlp=old.d_mlp,
        positions="qk",
        norm_eps=old.norm_eps * shrink,
        score_scale=1 / math.sqrt(old.d_head),
    )

    def widened(name: str, stored: Stored) -> Stored:
        return _widened(name, stored, reads, config.norm == "layer", shrink)

    def places(gain: Tensor) -> Tensor:
        """W_pos: the table in the last dimensions."""
        return F.pad(table.to(gain), (len(gain), 0))

    model = {name: widened(name, stored) for name, stored in layout.model.items()}
    model["W_pos"] = replace(model["ln_f_w"], combine=places)
    layer = {name: widened(name, stored) for name, stored in layout.layer.items()}
    own = layer.get("b_Q")

    def biases(W_or_b: Tensor) -> Tensor:
        """Biases [head, j + 1], those of the checkpoint or 0, and the last entry."""
        found = W_or_b if own is not None else W_or_b.new_zeros(len(W_or_b), W_or_b.shape[-1])
        return torch.cat((found, query.to(found).expand(len(found))[:, None]), -1)

    layer["b_Q"] = replace(own or layer["W_Q"], combine=biases)
    return replace(layout, config=config, model=model, layer=layer)


def _widened(name: str, stored: Stored, reads: Tensor, centered: bool, shrink: float) -> Stored:
    """A tensor with more entries along d and along k: 0, but W_K is `reads` where both are new."""
    extra = reads.shape[1]
    # The checkpoint's d_model and d_head, of a config that has the new ones.
    smaller = str.maketrans("dk", ("x" if extra == 1 else "y") + "j")
    left, _, right = stored.axes.partition("->")
    added = {"d": extra, "k": 1}
    ends = [added.get(axis, 0) for axis in (right or left).replace(")", "").split()[-2:]]
    pads = [size for end in reversed(ends) for size in (0, end)]
    is_gain = name in ("ln1_w", "ln2_w", "ln_f_w")
    # Folding divides positions by gains, so those of the new entries are 1.
    times, fill = (math.sqrt(shrink), 1.0) if is_gain else (1.0, 0.0)
    center = centered and name in ("W_E", "W_O", "b_O", "W_out", "b_out")
    combine = stored.combine

    def pad(tensor: Tensor) -> Tensor:
        tensor = remove_mean(combine(tensor) if combine else tensor, center)
        wider = F.pad(tensor * times, pads, value=fill)
        if name == "W_K":
            wider[:, -extra:, -1] = reads.to(wider)
        return wider

    blocks = tuple(block.translate(smaller) for block in stored.split)
    return replace(stored, axes=stored.axes.translate(smaller), split=blocks, combine=pad)


BAICHUAN = Family("Baichuan", ("baichuan",), _baichuan)
BLOOM = Family("Bloom", ("bloom",), _bloom)
MPT = Family("MPT", ("mpt",), _mpt)
