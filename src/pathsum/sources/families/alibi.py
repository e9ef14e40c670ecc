"""Bloom, MPT, Baichuan and Falcon-RW: ALiBi adds slope · (source position) to scores.

Each head has a slope. After layer norms, ALiBi needs no extra dimension of the stream: before gain
and bias, the output of a layer norm is orthogonal to the ones-vector 1, so this direction is free
to carry positions into the keys. With the gain and the bias folded into the weights, and one more
dimension in each head:

    W_Q = [W_Q centered, 0]      b_Q = [b_Q, slope / score_scale]
    W_K = [W_K centered, n/d]    W_pos[j] = j/n · 1                     (positions="qk")

The last entry of a key is j, and its product with a query has the term slope · j, exactly.
Positions are divided by the context n, rounded up to a power of two, because large positions would
reduce the precision of the numbers to which they are added. The last dimensions of W_V and W_O are
0, so QK and OV in the stream basis do not change.

Bloom also normalizes its embeddings; the normalized rows are W_E. Baichuan-7B is
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
    fields = _fields(foreign.with_names(_BLOOM_NAMES), "gelu_tanh")
    # The embedding is normalized but the unembedding is not, so they are two tensors.
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
    fields = _fields(foreign.with_names(_MPT_NAMES), "gelu", tied=True)
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

    For other numbers of heads, the sequence of the next smaller power of two comes first, followed
    by every other entry of the sequence of the next larger one. With `interleaved`, as in MPT, the
    odd entries of the larger sequence come first, followed by the even ones.
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
    fields = foreign.fields("layer", mlp, eps=1e-5, tied=tied)
    d_head = fields["d_head"]
    return fields | {
        "d_head": d_head + 1,
        "positions": "qk",
        "score_scale": 1 / math.sqrt(d_head),
    }


def _fused_rows(
    fields: Mapping[str, Any], name: str, rows: str, norm: str, steep: Tensor, *, bias: bool = False
) -> dict[str, Stored]:
    """Fused queries, keys and values, with a layer norm folded in."""
    last = {"Q": steep / fields["score_scale"], "K": torch.zeros(1), "V": torch.zeros(1)}
    layer: dict[str, Stored] = {}
    for part, letter in enumerate("QKV"):
        weight = Stored(f"{name}.weight", f"{rows} d -> 3 h d j", part=part)
        entry = _longest(fields) / fields["d_model"] if letter == "K" else 0.0
        fold = partial(_fold_gain, centered=letter != "V", last=entry)
        layer[f"W_{letter}"] = replace(weight, combine=fold, others=(f"{norm}.weight",))
        if bias or letter == "Q":
            fold = partial(_fold_biases, part=part, last=last[letter])
            others = (f"{norm}.bias", f"{name}.bias") if bias else ()
            layer[f"b_{letter}"] = replace(weight, combine=fold, others=others)
    return layer


def _fold_gain(W: Tensor, gain: Tensor, centered: bool, last: float) -> Tensor:
    """W [head, d, j] times the gain of a norm, with one more dimension that is `last`."""
    folded = remove_mean((gain[:, None] * W).mT, centered).mT
    return torch.cat((folded, torch.full_like(W[..., :1], last)), -1)


def _fold_biases(W: Tensor, *biases: Tensor, part: int, last: Tensor) -> Tensor:
    """Biases [head, j + 1]: the norm's bias through W plus the projection's bias, and `last`."""
    folded = W.new_zeros(W.shape[0], W.shape[2])
    if biases:
        shift, projection_bias = biases
        folded = (
            torch.einsum("d,hdj->hj", shift, W) + projection_bias.reshape(len(W), 3, -1)[:, part]
        )
    return torch.cat((folded, last.to(folded).expand(len(folded))[:, None]), -1)


def _pad_rows(W: Tensor) -> Tensor:
    """W_O with one more row of zeros per head."""
    return F.pad(W, (0, 0, 0, 1))


def _layer_norm(table: Tensor, gain: Tensor, bias: Tensor, eps: float) -> Tensor:
    return F.layer_norm(table, table.shape[-1:], gain, bias, eps)


def _position_row(fields: Mapping[str, Any], gain: str) -> Stored:
    """W_pos[j] = j/n · 1, with the width of any tensor of the stream."""

    def table(gain: Tensor) -> Tensor:
        positions = torch.arange(fields["n_ctx"]).to(gain) / _longest(fields)
        return positions[:, None].expand(-1, len(gain))

    return Stored(gain, "d", combine=table)


def _longest(fields: Mapping[str, Any]) -> int:
    """The context, rounded up to a power of two."""
    return 1 << (fields["n_ctx"] - 1).bit_length()


def _baichuan(foreign: ForeignConfig) -> CheckpointLayout:
    """Llamas with fused projections: 7B rotates, 13B has ALiBi."""
    has_alibi = "max_position_embeddings" not in foreign.values
    fields = rotary_fields(foreign.with_names({"max_position_embeddings": "model_max_length"}))
    if has_alibi:
        fields = {name: fields[name] for name in fields if not name.startswith("rotary")}
        fields["positions"] = "none"
    attention = attention_rows("self_attn.W_pack", "self_attn.o_proj")
    layout = family_layout(foreign, fields, {**block_norms(), **attention, **mlp_rows()})
    if "z_loss_weight" in foreign.values:  # Baichuan 2
        head = replace(layout.model["W_U"], combine=partial(F.normalize, dim=0))
        layout = replace(layout, model={**layout.model, "W_U": head})
    if not has_alibi:
        return layout
    config, positions = layout.config, torch.arange(layout.config.n_ctx, dtype=torch.float64)
    query = slopes(config.n_heads) * math.sqrt(config.d_head)
    return add_positions(layout, positions[:, None], torch.ones(config.n_heads, 1), query)


def add_positions(
    layout: CheckpointLayout, table: Tensor, reads: Tensor, query: Tensor
) -> CheckpointLayout:
    """Add the term query[head] · (table @ reads[head]) to the scores of a layout without positions.

    `table` is [n_ctx, e] and `reads` [head, e]. The stream gets e more dimensions and each head one
    more. In these, all outputs are 0, W_pos is `table`, W_K is `reads` and b_Q is `query`. An RMS
    norm then averages the squares over d + e entries, which the gains compensate. A layer norm also
    subtracts a mean, which is 0 because outputs are centered.
    """
    original, extra = layout.config, table.shape[1]
    shrink = original.d_model / (original.d_model + extra)
    config = original.replace(
        d_model=original.d_model + extra,
        d_head=original.d_head + 1,
        d_mlp=original.d_mlp,
        positions="qk",
        norm_eps=original.norm_eps * shrink,
        score_scale=1 / math.sqrt(original.d_head),
    )

    def pad(name: str, stored: Stored) -> Stored:
        return _pad(name, stored, reads, config.norm == "layer", shrink)

    def positions(gain: Tensor) -> Tensor:
        """W_pos: the table in the last dimensions."""
        return F.pad(table.to(gain), (len(gain), 0))

    model = {name: pad(name, stored) for name, stored in layout.model.items()}
    model["W_pos"] = replace(model["ln_f_w"], combine=positions)
    layer = {name: pad(name, stored) for name, stored in layout.layer.items()}
    query_bias = layer.get("b_Q")

    def biases(W_or_b: Tensor) -> Tensor:
        """Biases [head, j + 1]: the checkpoint's biases or 0, and the last entry."""
        heads = W_or_b.shape[0]
        b = W_or_b.new_zeros(heads, W_or_b.shape[-1]) if query_bias is None else W_or_b
        return torch.cat((b, query.to(b).expand(heads)[:, None]), -1)

    layer["b_Q"] = replace(query_bias or layer["W_Q"], combine=biases)
    return replace(layout, config=config, model=model, layer=layer)


def _pad(name: str, stored: Stored, reads: Tensor, centered: bool, shrink: float) -> Stored:
    """A tensor with more entries along d and k: 0, except for W_K, which is `reads` there."""
    extra = reads.shape[1]
    # The letters of the checkpoint's d_model and d_head in terms of the new config.
    smaller = str.maketrans("dk", ("x" if extra == 1 else "y") + "j")
    left, _, right = stored.axes.partition("->")
    extras = {"d": extra, "k": 1}
    ends = [extras.get(axis, 0) for axis in (right or left).replace(")", "").split()[-2:]]
    pads = [size for end in reversed(ends) for size in (0, end)]
    is_gain = name in ("ln1_w", "ln2_w", "ln_f_w")
    # Folding divides positions by gains, so the gains of new entries are 1.
    times, fill = (math.sqrt(shrink), 1.0) if is_gain else (1.0, 0.0)
    center = centered and name in ("W_E", "W_O", "b_O", "W_out", "b_out")
    combine = stored.combine

    def compute(tensor: Tensor) -> Tensor:
        tensor = remove_mean(combine(tensor) if combine else tensor, center)
        padded = F.pad(tensor * times, pads, value=fill)
        if name == "W_K":
            padded[:, -extra:, -1] = reads.to(padded)
        return padded

    blocks = tuple(block.translate(smaller) for block in stored.split)
    return replace(stored, axes=stored.axes.translate(smaller), split=blocks, combine=compute)


BAICHUAN = Family("Baichuan", ("baichuan",), _baichuan)
BLOOM = Family("Bloom", ("bloom",), _bloom)
MPT = Family("MPT", ("mpt",), _mpt)
