"""Bloom, MPT and Baichuan: ALiBi adds slope · (source's position) to the scores of each head.

After the layer norms of Bloom and MPT it needs no dimension of its own in the stream. What a layer
norm gives is orthogonal to the ones-vector 1 before gain and bias, so this direction is free to
carry positions into the keys. With the gain and the bias folded into the weights, and one more
dimension in each head:

    W_Q = [W_Q centered, 0]      b_Q = [b_Q, slope / score_scale]
    W_K = [W_K centered, 1/d]    W_pos[j] = j · 1                       (positions="qk")

A key's last entry is j, and the product with a query has the term slope · j, exactly. The last
dimensions of W_V and W_O are 0, and QK and OV in the stream's basis are those of the checkpoint.
Bloom also normalizes its embeddings, once and for all: the normalized rows are W_E. Baichuan-7B is
a Llama with fused projections; Baichuan-13B has ALiBi after RMS norms (`_with_alibi`). Baichuan 2
normalizes the rows of its unembedding.
"""

import math
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from pathsum.algebra.spectrum import remove_mean
from pathsum.model.config import Config
from pathsum.sources.families import (
    Family,
    mlp_rows,
    norm_rows,
    sizes,
)
from pathsum.sources.families.llama import (
    GATED,
    NORMS,
    fused_rows,
    llama_fields,
    llama_layout,
)
from pathsum.sources.foreign_config import ForeignConfig
from pathsum.sources.mapped_store import CheckpointLayout, Stored


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


def _baichuan(foreign: ForeignConfig) -> CheckpointLayout:
    """Llamas with fused projections: 7B rotates, 13B has ALiBi."""
    alibi = "max_position_embeddings" not in foreign.values
    known = {"max_position_embeddings": foreign.values.get("model_max_length")} if alibi else {}
    fields = llama_fields(ForeignConfig({**foreign.values, **known}, foreign.where))
    if alibi:
        fields = {name: fields[name] for name in fields if not name.startswith("rotary")}
        fields["positions"] = "none"
    layer = {
        **NORMS,
        **fused_rows("self_attn.W_pack", ("h k", "h k", "h k")),
        "W_O": Stored("self_attn.o_proj.weight", "d (h k) -> h k d"),
        **mlp_rows(*GATED),
    }
    layout = llama_layout(foreign, Config(**fields), layer)
    if "z_loss_weight" in foreign.values:  # Baichuan 2
        head = replace(layout.model["W_U"], combine=partial(F.normalize, dim=0))
        layout = replace(layout, model={**layout.model, "W_U": head})
    return _with_alibi(layout) if alibi else layout


def _with_alibi(layout: CheckpointLayout) -> CheckpointLayout:
    """A layout with RMS norms and no positions, to which ALiBi is added.

    What an RMS norm gives has no direction that is free for positions. So the stream and the heads
    get one more dimension, which is 0 in all that is written: there, W_pos[j] is j, W_K is 1 and
    b_Q the slope. The mean of the squares is then over d + 1 entries, which the gains make up for.
    """
    old, shrink = layout.config, layout.config.d_model / (layout.config.d_model + 1)
    config = old.replace(
        d_model=old.d_model + 1,
        d_head=old.d_head + 1,
        positions="qk",
        norm_eps=old.norm_eps * shrink,
        score_scale=1 / math.sqrt(old.d_head),
    )
    places = partial(_last_places, config.n_ctx)
    model = {name: _widened(name, stored, shrink) for name, stored in layout.model.items()}
    model["W_pos"] = Stored("model.norm.weight", "x", combine=places)
    layer = {name: _widened(name, stored, shrink) for name, stored in layout.layer.items()}
    last = slopes(config.n_heads) / config.score_scale
    layer["b_Q"] = replace(layer["W_Q"], combine=partial(_fold_biases, part=0, last=last))
    return replace(layout, config=config, model=model, layer=layer)


def _widened(name: str, stored: Stored, shrink: float) -> Stored:
    """A tensor with one more entry along d and along k: 0, but W_K is 1 where both are the last."""
    smaller = str.maketrans("dk", "xj")
    left, _, right = stored.axes.partition("->")
    pads = [size for axis in reversed((right or left).split()) for size in (0, axis in ("d", "k"))]
    times, combine = math.sqrt(shrink) if name.startswith("ln") else 1.0, stored.combine

    def pad(tensor: Tensor) -> Tensor:
        wider = F.pad((combine(tensor) if combine else tensor) * times, pads)
        if name == "W_K":
            wider[:, -1, -1] = 1.0
        return wider

    blocks = tuple(block.translate(smaller) for block in stored.split)
    return replace(stored, axes=stored.axes.translate(smaller), split=blocks, combine=pad)


def _last_places(n_ctx: int, gain: Tensor) -> Tensor:
    """W_pos[j] = j in the last dimension."""
    return F.pad(torch.arange(n_ctx).to(gain)[:, None], (len(gain), 0))


BAICHUAN = Family("Baichuan", ("baichuan",), _baichuan)
BLOOM = Family("Bloom", ("bloom",), _bloom)
MPT = Family("MPT", ("mpt",), _mpt)
