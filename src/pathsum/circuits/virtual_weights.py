"""Virtual weights: the product of any write of the model with any later read.

The stream only adds, so `W_O W_I` connects a write `W_O` to a later read `W_I`, however many layers
lie between them.
"""

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.algebra import Factored
from pathsum.algebra.decompositions import compact, svdvals, thin_svd
from pathsum.algebra.nulls import UnitMoments, unit_null
from pathsum.algebra.spectrum import remove_mean
from pathsum.base import (
    ARROW,
    LOGITS,
    Column,
    HeadId,
    HeadName,
    Record,
    Side,
    Site,
    Source,
    Table,
    Writer,
    parse_read,
    parse_writer,
    rows_table,
    text_column,
)
from pathsum.base.errors import InputError, NotExactError
from pathsum.base.estimate import ProbabilityColumn
from pathsum.base.options import parse_choice
from pathsum.circuits import reads_and_writes
from pathsum.circuits.reads_and_writes import KINDS, Center
from pathsum.model import LayerWeights, Model
from pathsum.model.config import check_offset
from pathsum.model.folding import centered_unembedding, fold_read
from pathsum.model.sites import check_neuron

DOMINANT = 0.1
"""A direction with at least this share of a read's squared norm is noted."""
N_VALUES = 16
"""Singular values in a record, at most."""


@dataclass(frozen=True, eq=False)
class VirtualWeights(Record, kind="virtual-weights"):
    """The product of a write and a read, and its size relative to the null.

      `score`    ‖write · read‖ / (‖write‖ ‖read‖); `excess`, `z` and `p` as in `composition`
      `singular_values`  the largest of the product, as shares of ‖write‖ ‖read‖
      `matrix`   the product, factored (not in JSON)
      `note`     the null hypothesis, and the read's dominant direction if it has one

    The write of a head is OV and its read QK or OV, so no number depends on the basis inside a
    head.
    """

    model: str
    edge: Annotated[Site, text_column("edge")]
    score: Annotated[float, Column("score")]
    excess: Annotated[float, Column("excess", "+.3f")]
    z: Annotated[float, Column("z", "+.1f")]
    p: Annotated[float, ProbabilityColumn()]
    singular_values: Float[Tensor, " q"]
    dimension: int
    centered: bool
    note: str
    _matrix: Factored

    def to_table(self) -> Table:
        """One row."""
        return rows_table([self], f"virtual weights, {self.model}", self.note)

    @property
    def matrix(self) -> Factored:
        """The product, one row for each row of the write and one column for each of the read.

        Tokens for embeddings, neurons for MLPs; for heads an orthonormal basis of their far side.
        """
        return self._matrix


@dataclass(frozen=True, eq=False)
class StreamEnd:
    """A write or a read: its rows in the stream, and its time (layer, step) for ordering."""

    rows: Float[Tensor, "r d"]
    time: tuple[int, int]


@torch.no_grad()
def virtual_weights(
    model: Model,
    write: HeadName | Source,
    read: str | Site,
    *,
    center: Center = "auto",
    offset: int | None = None,
) -> VirtualWeights:
    """The virtual weights from a write to a later read.

    Writes are `embed`, `pos` (where positions are in the stream), a head (`L0H3`), an MLP (`mlp2`)
    and a neuron (`mlp2.n5`). Reads are a head's query, key or value read (`L1H0.q`, `L1H0.k`,
    `L1H0.v`), an MLP (`mlp3`; only its value or gate: `mlp3.u`, `mlp3.g`) and `logits`.

    >>> import pathsum as ps
    >>> model = ps.construct.induction()
    >>> f"{virtual_weights(model, 'L1H0', 'logits').score:.3f}"  # copied straight to the logits
    '0.192'
    >>> f"{virtual_weights(model, 'L0H0', 'logits').score:.3f}"  # read by L1H0 alone
    '0.000'

    z and p only test size: whether the product is larger than if the stream were rotated at random
    between write and read. A head may write the answer and score below that. For example, a fifth
    of W_U's squared norm often lies along one direction, which separates frequent from rare tokens;
    heads that do not write along it score below a random rotation. `copying` tests whether a head
    raises the tokens that it attends to. Scales of normalizations and activations of neurons are
    omitted.
    """
    check_offset(model.config, offset)
    centered = reads_and_writes.is_centered(model.config, center)
    d = model.config.d_model - centered
    writer, reader = parse_writer(write), parse_read(read)
    edge = replace(reader, writer=writer)
    if edge in model.weights.edited_edges:
        raise NotExactError(
            f"{edge} carries the same for every text in this edited model, so it has no virtual "
            "weights; use the model without that edit"
        )
    source, target = (
        write_end(model, writer, centered),
        read_end(model, reader, centered, offset),
    )
    if target.time <= source.time:
        raise InputError(
            f"{str(edge).split(ARROW)[-1]} cannot read what {writer} writes: it reads the stream "
            "earlier; name a write and a later read"
        )
    small_left, small_right = unit_factor(source.rows, writer), unit_factor(target.rows, reader)
    values = svdvals(small_left @ small_right.mT)
    square = values.square().sum().clamp(max=1.0)
    null = unit_null(UnitMoments.of_factor(small_left), UnitMoments.of_factor(small_right), d)
    score = float(square.sqrt())
    numbers = (score, score - d**-0.5, float(null.z(square)), float(null.p(square)))
    note = _note(edge, small_left, small_right)
    return VirtualWeights(
        *(model.name, edge, *numbers, values[:N_VALUES], d, centered, note),
        _matrix=Factored(source.rows, target.rows.mT),
    )


def _note(edge: Site, write: Float[Tensor, "r d"], read: Float[Tensor, "q d"]) -> str:
    """The null hypothesis, and the shares of write and read along the read's first direction."""
    null = (
        "z and p: norm of the product against random rotations of the stream; they do not test "
        f"whether the model uses {edge}"
    )
    _, values, basis = thin_svd(read)
    read_share, d = float(values[0] ** 2), read.shape[-1]
    write_share = float((write @ basis[0]).square().sum())
    if read_share < DOMINANT or write_share > 1 / d:
        return null
    return (
        f"{null}. One direction has {read_share:.0%} of the read's squared norm, but only "
        f"{write_share:.2%} of {edge.writer}'s ({1 / d:.2%} if rotated at random), so the score is "
        "low"
    )


def unit_factor(rows: Float[Tensor, "n d"], name: Writer | Site) -> Float[Tensor, "r d"]:
    """A factor of norm 1 with the same Gram matrix up to scale."""
    small = compact(rows)
    size = torch.linalg.vector_norm(small)
    if not bool(size > 0):
        raise InputError(f"{name} is zero, so it has no virtual weights")
    return small / size


def write_end(model: Model, writer: Writer, centered: bool) -> StreamEnd:
    """A write of a model: the embedding, positions, a head, an MLP or one of its neurons."""
    config, weights = model.config, model.weights
    if isinstance(writer, HeadId):
        rows = reads_and_writes.write_factor(model.head(writer), centered).to(weights.dtype)
        return StreamEnd(rows, (writer.layer, 1))
    if writer.kind in ("embed", "pos"):
        rows = weights.W_E if writer.kind == "embed" else weights.W_pos
        if rows is None or (writer.kind == "pos" and config.positions != "residual"):
            raise InputError(
                f"'pos' is not a write of this model: positions={config.positions!r} write nothing "
                "to the stream"
            )
        return StreamEnd(remove_mean(rows, centered), (-1, 0))
    if writer.kind not in ("mlp", "neuron"):
        raise InputError(f"{writer} is a bias, not a matrix; name embed, pos, a head or an MLP")
    raw = _mlp(model, writer.layer)
    rows = raw.W_out
    assert rows is not None
    if writer.kind == "neuron":
        check_neuron(config, writer)
        rows = rows[writer.neuron : writer.neuron + 1]
    # The gain of a norm after the MLP is part of its write.
    rows = rows if raw.post2_w is None else rows * raw.post2_w
    return StreamEnd(remove_mean(rows, centered), (writer.layer, 3))


def read_end(model: Model, read: Site, centered: bool, offset: int | None = None) -> StreamEnd:
    """A read of a model: of a head, of an MLP or of the logits."""
    config, weights = model.config, model.weights
    reader = read.reader
    assert reader is not None
    if reader == LOGITS:
        rows = centered_unembedding(weights).mT
        return StreamEnd(remove_mean(rows, centered), (config.n_layers, 0))
    if isinstance(reader, HeadId):
        assert read.side is not None
        kind: reads_and_writes.CompositionKind = parse_choice(KINDS, read.side.value, "side")
        rows = reads_and_writes.read_factor(model.head(reader), kind, centered, offset).to(
            weights.dtype
        )
        return StreamEnd(rows, (reader.layer, 0))
    raw = _mlp(model, reader.layer)
    gate = raw.W_in if raw.W_gate is None else raw.W_gate
    of_side = {None: (raw.W_in, raw.W_gate, raw.W_router), Side.U: (raw.W_in,), Side.G: (gate,)}
    matrices = [W for W in of_side[read.side] if W is not None]
    rows = torch.cat([fold_read(config.norm, W, raw.ln2_w).mT for W in matrices])
    # In a parallel block the MLP reads the heads' input, in a serial block also their output.
    time = reader.layer, 0 if config.block == "parallel" else 2
    return StreamEnd(remove_mean(rows, centered), time)


def _mlp(model: Model, layer: int) -> LayerWeights:
    count, none = model.config.n_layers, model.config.mlp == "none"
    if none or layer >= count:
        what = "has no MLPs" if none else f"has layers 0–{count - 1}"
        raise InputError(f"mlp{layer} does not exist: this model {what}")
    return model.weights.layers[layer]
