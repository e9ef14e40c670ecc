"""Used dimensions of the stream: by one matrix, by two, and layer by layer.

A matrix F that reads or writes the stream is represented by its form FᵀF. `spectrum` counts the
dimensions that one form uses, `joint_use` those that two forms share (the joint PCA), and
`stream_use` those written before a layer and read from it on. For the last, every form has trace 1
(each head, each MLP, the embedding, so that large weights do not drown small ones), and each side
of a layer is the sum of the forms on that side.
"""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.algebra.decompositions import eigh, eigvalsh, gram_of_rows
from pathsum.algebra.spectrum import remove_both_means, remove_mean
from pathsum.base import Progress, silent
from pathsum.circuits.reads_and_writes import KINDS, read_factor, write_factor
from pathsum.model import Model
from pathsum.model.folding import centered_unembedding, fold_read

USED = 0.1
"""A direction counts as used if it carries this part of an even share."""
TIE = 1e-5
"""Variances closer than this belong to one eigenspace, in which PCA does not determine a basis."""


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The distribution of a matrix over the d dimensions of the stream.

    `variance`   share of each principal direction in the squared norm, descending, adds up to 1
    `effective`  (Σλ)² / Σλ², the participation ratio: d if even, 1 if all is in one direction
    `for_90`     number of directions that hold 90% of the squared norm
    `used`       number of directions that hold at least a tenth of an even share, 0.1/d
    """

    variance: Float[Tensor, " d"]
    effective: float
    for_90: int
    used: int


def spectrum(form: Float[Tensor, "d d"], d: int) -> Spectrum:
    """The spectrum of a matrix from its form FᵀF, in a stream of d dimensions."""
    return spectrum_of_squares(eigvalsh(form).flip(0).clamp(min=0), d)


def spectrum_of_squares(squares: Float[Tensor, " q"], d: int) -> Spectrum:
    """The spectrum of squared singular values in descending order, of any scale."""
    total = squares.sum()
    if not bool(total > 0):
        return Spectrum(squares, effective=0.0, for_90=0, used=0)
    variance = squares / total
    cumulative = variance.cumsum(0)
    return Spectrum(
        variance=variance,
        effective=float(1 / (variance**2).sum()),
        for_90=int((cumulative < 0.9 * cumulative[-1]).sum()) + 1,
        used=int((variance >= USED / max(d, 1)).sum()),
    )


@dataclass(frozen=True, eq=False)
class JointUse:
    """The joint PCA of two matrices, each normalized to squared norm 1 and stacked.

      `first`, `second`  share of each matrix's squared norm along each joint direction, the
                         directions sorted by their share of both; each adds up to 1
      `both`, `first_only`, `second_only`, `neither`  the number of dimensions of each kind

    A matrix uses a direction if its share there is at least a tenth of an even one, 0.1/d.
    """

    first: Float[Tensor, " d"]
    second: Float[Tensor, " d"]
    both: int
    first_only: int
    second_only: int
    neither: int


def joint_use(
    first: Float[Tensor, "d d"], second: Float[Tensor, "d d"], d: int, *, tie: float = TIE
) -> JointUse:
    """The joint PCA of two forms FᵀF of any scale, in a stream of d dimensions.

    d may be one less than their width, where both are zero along the ones-vector. Directions whose
    variances differ by less than `tie`, relative to the largest, are rotated to separate the forms.
    """
    first, second = _unit(first), _unit(second)
    values, vectors = eigh(first + second)
    vectors = _untied(values, vectors, first, tie).flip(1)[:, :d]
    along = [((form @ vectors) * vectors).sum(0).clamp(min=0) for form in (first, second)]
    a, b = (shares >= USED / d for shares in along)
    counts = (int(kind.sum()) for kind in (a & b, a & ~b, ~a & b, ~a & ~b))
    return JointUse(along[0], along[1], *counts)


def _untied(
    values: Float[Tensor, " d"],
    vectors: Float[Tensor, "d d"],
    first: Float[Tensor, "d d"],
    tie: float,
) -> Float[Tensor, "d d"]:
    """Where variances tie, the directions that separate the first form from the second.

    Any rotation inside a tie is a PCA too, but it would mix directions used by the two forms. This
    choice separates them and does not depend on the basis of the stream.
    """
    gaps = values.diff() > tie * values[-1]
    starts = [0, *(gaps.nonzero().flatten() + 1).tolist(), len(values)]
    vectors = vectors.clone()
    for start, stop in itertools.pairwise(starts):
        if stop - start > 1:
            inside = vectors[:, start:stop]
            vectors[:, start:stop] = inside @ eigh(inside.mT @ first @ inside)[1]
    return vectors


@dataclass(frozen=True)
class StreamUse:
    """The use of the stream's dimensions where a layer reads it.

    `layer` counts from 0; the last entry is the unembedding. `written` dimensions are only written
    below, `read` dimensions only read from here on, `both` are written and read, `free` neither.
    """

    layer: int
    both: int
    written: int
    read: int
    free: int


def embedding_form(model: Model, centered: bool) -> Float[Tensor, "d d"]:
    """W_Eᵀ W_E, in float64."""
    return remove_both_means(gram_of_rows(model.weights.W_E), centered)


def unembedding_form(model: Model, centered: bool) -> Float[Tensor, "d d"]:
    """W_U W_Uᵀ with the final gain folded in and logits centered, which changes no probability."""
    return remove_both_means(gram_of_rows(centered_unembedding(model.weights).mT), centered)


def stream_use(
    model: Model, centered: bool, d: int, progress: Progress = silent
) -> tuple[StreamUse, ...]:
    """Use of the stream before each layer and before the unembedding.

    Layers are visited from the top down. A layer's form is subtracted from the form of all writes
    and added to the form of the reads above, so memory holds two d × d matrices at any depth.
    """
    config = model.config
    steps = 2 * config.n_layers + 1
    writes = _unit(embedding_form(model, centered))
    if config.positions == "residual" and model.weights.W_pos is not None:
        writes = writes + _unit(remove_both_means(gram_of_rows(model.weights.W_pos), centered))
    for layer in range(config.n_layers):
        writes = writes + _sum_of_forms(_layer_writes(model, layer, centered))
        progress(layer + 1, steps, "what layers write")
    reads = _unit(unembedding_form(model, centered))
    uses: list[StreamUse] = []
    for layer in reversed(range(config.n_layers + 1)):
        if layer < config.n_layers:
            writes = writes - _sum_of_forms(_layer_writes(model, layer, centered))
            reads = reads + _sum_of_forms(_layer_reads(model, layer, centered))
        use = joint_use(writes, reads, d)
        uses.append(StreamUse(layer, use.both, use.first_only, use.second_only, use.neither))
        progress(steps - layer, steps, "what layers read")
    return tuple(reversed(uses))


def _layer_writes(model: Model, layer: int, centered: bool) -> Iterator[Float[Tensor, "r d"]]:
    for head in range(model.config.n_heads):
        yield write_factor(model.head(layer, head), centered)
    W_out = model.weights.layers[layer].W_out
    if W_out is not None:
        yield remove_mean(W_out, centered).double()


def _layer_reads(model: Model, layer: int, centered: bool) -> Iterator[Float[Tensor, "r d"]]:
    for head in range(model.config.n_heads):
        for kind in KINDS:
            yield read_factor(model.head(layer, head), kind, centered)
    raw = model.weights.layers[layer]
    for W in (raw.W_in, raw.W_gate, raw.W_router):
        if W is not None:
            folded = fold_read(model.config.norm, W, raw.ln2_w)
            yield remove_mean(folded.mT, centered).double()


def _sum_of_forms(factors: Iterable[Float[Tensor, "r d"]]) -> Float[Tensor, "d d"]:
    """Σ FᵀF over factors of norm 1, as one product."""
    sizes = [(factor, torch.linalg.vector_norm(factor)) for factor in factors]
    units = [factor / size for factor, size in sizes if bool(size > 0)]
    # If all factors are zero, their Gram matrix still has the right shape.
    return gram_of_rows(torch.cat(units or [factor for factor, _ in sizes]))


def _unit(form: Float[Tensor, "d d"]) -> Float[Tensor, "d d"]:
    trace = form.diagonal().sum()
    return form / torch.where(trace > 0, trace, torch.ones_like(trace))
