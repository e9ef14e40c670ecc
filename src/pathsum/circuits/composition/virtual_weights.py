"""Virtual weights: the product of any write of the model with any later read.

The stream only adds, so a write `W_O` and a later read `W_I` are joined by `W_O W_I`, however many
layers lie between them.
"""

import re
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.algebra import Factored
from pathsum.algebra.centering import remove_mean
from pathsum.algebra.decompositions import compact, svdvals
from pathsum.algebra.nulls import UnitMoments, unit_null
from pathsum.circuits.composition.reads_and_writes import (
    Center,
    CompositionKind,
    check_offset,
    is_centered,
    read_factor,
    write_factor,
)
from pathsum.errors import InputError, near_misses
from pathsum.model import Model
from pathsum.model.folding import centered_unembedding, fold_read
from pathsum.result import Record

LISTED = 16
"""How many singular values a record carries."""

_HEAD = re.compile(r"[Ll]\d+[Hh]\d+")
_HEAD_READ = re.compile(r"([Ll]\d+[Hh]\d+)\.([qkv])")
_MLP = re.compile(r"mlp(\d+)")


@dataclass(frozen=True, eq=False)
class VirtualWeights(Record, kind="virtual-weights"):
    """The product of a write and a read, with its size compared with chance.

      `score`    ‖write · read‖ / (‖write‖ ‖read‖); `excess`, `z` and `p` as in `composition`
      `singular_values`  the largest ones of the product, as shares of ‖write‖ ‖read‖
      `matrix`   the product itself, kept apart (not in JSON)

    For a head the write is everything that OV can write and the read everything that QK or OV reads
    with, so that no number depends on the basis inside a head.
    """

    model: str
    write: str
    read: str
    score: float
    excess: float
    z: float
    p: float
    singular_values: Float[Tensor, " q"]
    dimension: int
    centered: bool
    _matrix: Factored

    @property
    def matrix(self) -> Factored:
        """The product, one row for each row of the write and one column for each of the read.

        Tokens for embeddings, neurons for MLPs; for heads an orthonormal basis of their far side.
        """
        return self._matrix


@dataclass(frozen=True, eq=False)
class _End:
    """A write or a read: its rows in the stream, and when it happens, for ordering."""

    rows: Float[Tensor, "r d"]
    time: tuple[int, int]


@torch.no_grad()
def virtual_weights(
    model: Model, write: str, read: str, *, center: Center = "auto", offset: int | None = None
) -> VirtualWeights:
    """The virtual weights from a write to a later read.

    Writes are `embed`, `pos` (where positions are in the stream), a head (`L0H3`) and an MLP
    (`mlp2`). Reads are a head's query, key or value side (`L1H0.q`, `L1H0.k`, `L1H0.v`), an MLP and
    `unembed`.

    >>> import pathsum as ps
    >>> model = ps.construct.induction()
    >>> f"{virtual_weights(model, 'L1H0', 'unembed').score:.3f}"  # copied straight to the logits
    '0.192'
    >>> f"{virtual_weights(model, 'L0H0', 'unembed').score:.3f}"  # read by L1H0 alone
    '0.000'

    Sizes do not show what the model does with them on text: scales of normalizations and
    activations of neurons are left out.
    """
    check_offset(model.config, offset)
    centered = is_centered(model.config, center)
    d = model.config.d_model - centered
    left = _write(model, write, centered)
    right = _read(model, read, centered, offset)
    if right.time <= left.time:
        raise InputError(
            f"{read} cannot read what {write} writes: it reads the stream before that; "
            "name a write and a later read"
        )
    small_left, small_right = compact(left.rows), compact(right.rows)
    sizes = [torch.linalg.vector_norm(side) for side in (small_left, small_right)]
    for name, size in zip((write, read), sizes, strict=True):
        if not bool(size > 0):
            raise InputError(f"{name} is zero, so it has no virtual weights")
    small_left, small_right = small_left / sizes[0], small_right / sizes[1]
    values = svdvals(small_left @ small_right.mT)
    square = values.square().sum().clamp(max=1.0)
    null = unit_null(UnitMoments.of_factor(small_left), UnitMoments.of_factor(small_right), d)
    return VirtualWeights(
        model=model.name,
        write=write,
        read=read,
        score=float(square.sqrt()),
        excess=float(square.sqrt()) - d**-0.5,
        z=float(null.z(square)),
        p=float(null.p(square)),
        singular_values=values[:LISTED],
        dimension=d,
        centered=centered,
        _matrix=Factored(left.rows, right.rows.mT),
    )


def _write(model: Model, name: str, centered: bool) -> _End:
    config, weights = model.config, model.weights
    if name == "embed":
        return _End(remove_mean(weights.W_E, centered), (-1, 0))
    if name == "pos":
        if config.positions != "residual" or weights.W_pos is None:
            raise InputError(
                f"'pos' is not a write of this model: positions={config.positions!r} write nothing "
                "to the stream"
            )
        return _End(remove_mean(weights.W_pos, centered), (-1, 0))
    if _HEAD.fullmatch(name):
        head = model.head(name)
        rows = write_factor(head, centered).to(weights.dtype)
        return _End(rows, (head.id.layer, 1))
    layer = _mlp_layer(model, name, "writes are embed, pos, a head as L0H3 and an MLP as mlp2")
    W_out = weights.layers[layer].W_out
    assert W_out is not None
    return _End(remove_mean(W_out, centered), (layer, 3))


def _read(model: Model, name: str, centered: bool, offset: int | None) -> _End:
    config, weights = model.config, model.weights
    if name == "unembed":
        rows = centered_unembedding(weights).mT
        return _End(remove_mean(rows, centered), (config.n_layers, 0))
    match = _HEAD_READ.fullmatch(name)
    if match is not None:
        head = model.head(match[1])
        rows = read_factor(head, _kind(match[2]), centered, offset).to(weights.dtype)
        return _End(rows, (head.id.layer, 0))
    layer = _mlp_layer(model, name, "reads are L1H0.q, L1H0.k, L1H0.v, an MLP as mlp2 and unembed")
    raw = weights.layers[layer]
    parts = [W for W in (raw.W_in, raw.W_gate) if W is not None]
    rows = torch.cat([fold_read(config.norm, W, raw.ln2_w).mT for W in parts])
    # In a parallel block the MLP reads what the heads read, in a serial one what they wrote.
    return _End(remove_mean(rows, centered), (layer, 0 if config.block == "parallel" else 2))


def _kind(letter: str) -> CompositionKind:
    return "q" if letter == "q" else "k" if letter == "k" else "v"


def _mlp_layer(model: Model, name: str, what: str) -> int:
    match = _MLP.fullmatch(name)
    if match is None:
        raise InputError(
            f"{name!r} is not a part of a model"
            f"{near_misses(name, ('embed', 'pos', 'unembed', 'mlp0'))}; {what}"
        )
    layer, layers = int(match[1]), model.config.n_layers
    if model.config.mlp == "none":
        raise InputError(f"{name} does not exist: this model has no MLPs")
    if layer >= layers:
        raise InputError(f"{name} does not exist: this model has layers 0–{layers - 1}")
    return layer
