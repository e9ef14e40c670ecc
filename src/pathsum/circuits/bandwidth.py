"""Bandwidth of the residual stream: used, free and deleted dimensions.

A head deletes if OV is negative, x OV ≈ −c x, and it attends to its own position. The null rotates
the stream at random between read and write: then tr OV has mean 0 and variance ‖OV‖²/d. Signed
permutations of the axes give the same moments, but longer tails if OV prefers some axes.
"""

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Float, Int
from rich.console import RenderableType
from torch import Tensor

from pathsum.algebra import Factored
from pathsum.algebra.decompositions import gram_of_rows, require_finite, svdvals
from pathsum.algebra.nulls import ALPHA
from pathsum.algebra.rotations import random_orders, seeded
from pathsum.algebra.spectrum import principal_angles, remove_mean, row_basis
from pathsum.base import Column, Progress, Record, Table, silent, stacked, text_column
from pathsum.base.estimate import P_FLOOR
from pathsum.base.options import checked
from pathsum.base.table import rows_table
from pathsum.circuits.composition import BLOCK_ROWS
from pathsum.circuits.dimensions import (
    JointUse,
    Spectrum,
    StreamUse,
    embedding_form,
    joint_use,
    spectrum,
    spectrum_of_squares,
    stream_use,
    unembedding_form,
)
from pathsum.circuits.reads_and_writes import KINDS, Center, is_centered, read_factor, write_factor
from pathsum.model import Head, HeadId, Model
from pathsum.model.folding import embeddings_as_read, layer_reads
from pathsum.model.transformer import attention_pattern
from pathsum.model.weights import for_query_heads

# Attention by position terms is averaged over this many positions.
POSITIONS = 64
# Permutations of the axes over which the tail of tr OV is averaged.
PERMUTATIONS = 400
# A head attends to its own position if it gives it as much attention as all others together.
ATTENDS_TO_ITSELF = 0.5


@dataclass(frozen=True)
class HeadDeletion:
    """Whether a head deletes the directions that it reads.

    `negative`      share of the magnitude of OV's eigenvalues that lies left of zero
    `z`             of tr OV against random rotations
    `p`             probability of a trace as negative, at least 10⁻⁶: the larger of two, under
                    random rotations and under permuted and signed axes
    `own_token`     mean score of a token with itself, less the mean with any token, in standard
                    deviations of a score over tokens (W_E as layer 0 reads it, no positions)
    `own_position`  mean attention to its own position from positions and biases alone, over the
                    first 64 positions; NaN where weights do not determine it
    `deletes`       p < 0.01 / (number of heads) and own_position ≥ 0.5; None if p is that small and
                    weights do not determine own_position
    """

    head: HeadId
    negative: Annotated[float, Column("neg", ".0%")]
    z: Annotated[float, Column("z", "+.1f")]
    p: float
    own_token: Annotated[float, Column("self", "+.1f")]
    own_position: Annotated[float, Column("here", ".2f")]
    deletes: Annotated[bool | None, Column("del")]


@dataclass(frozen=True)
class HeadSubspaces:
    """The dimensions that a head reads and writes, and their overlap.

    `reads_q`, `reads_k`, `reads_v` and `writes` are effective dimensions (participation ratios of
    the spectra of QK and OV). `overlap` is Σ cos² of the principal angles between the subspaces
    that OV reads and writes, over the smaller dimension; `overlap_chance` is its mean over random
    rotations. `closest` is the smallest of those angles in degrees.
    """

    head: Annotated[HeadId, text_column("head")]
    reads_q: Annotated[float, Column("q", ".1f")]
    reads_k: Annotated[float, Column("k", ".1f")]
    reads_v: Annotated[float, Column("v", ".1f")]
    writes: Annotated[float, Column("w", ".1f")]
    overlap: Annotated[float, Column("v·w", ".2f")]
    overlap_chance: Annotated[float, Column("null", ".2f")]
    closest: float


@dataclass(frozen=True, eq=False)
class Bandwidth(Record, kind="bandwidth"):
    """Use of the residual stream; see `bandwidth`.

    `dimension` is d_model, or one less where the stream is centered. In `joint` the first matrix is
    the embedding and the second the unembedding.
    """

    model: str
    dimension: int
    centered: bool
    embedding: Spectrum
    unembedding: Spectrum
    joint: JointUse
    stream: tuple[StreamUse, ...]
    heads: tuple[HeadSubspaces, ...]
    deleting: tuple[HeadDeletion, ...]

    def to_table(self) -> Table:
        """One row per head: dimensions read and written, and deletion."""
        heads, deleting = rows_table(self.heads), rows_table(self.deleting)
        return Table(
            (*heads.columns, *deleting.columns),
            tuple((*left, *right) for left, right in zip(heads.rows, deleting.rows, strict=True)),
            f"heads in a stream of {self.dimension} dimensions, {self.model}",
            "q k v w: effective dimensions read by queries, keys, values, and written.\n"
            "v·w: overlap of the subspaces that OV reads and writes; null: of random subspaces.\n"
            "neg: share of OV's eigenvalues left of zero; z: z-score of tr OV. A head deletes\n"
            "(del) if z has p < 0.01 / heads and here ≥ 0.5.\n"
            "self: a token's score with itself, in standard deviations over tokens; here:\n"
            "attention to its own position by position terms alone.",
        )

    def spectra_table(self) -> Table:
        """Embedding and unembedding, alone and together."""
        lines = (("W_E", self.embedding), ("W_U", self.unembedding))
        rows = tuple((name, s.effective, s.for_90, s.used) for name, s in lines)
        columns = (text_column(""), Column("effective", ".1f"), Column("for 90%"), Column("used"))
        j = self.joint
        note = (
            f"Joint PCA: {j.both} dimensions used by both, {j.first_only} by W_E alone, "
            f"{j.second_only} by W_U alone, {j.neither} by neither.\n"
            "A dimension is used if it carries at least a tenth of an even share."
        )
        return Table(columns, rows, f"embedding and unembedding, {self.model}", note)

    def stream_table(self) -> Table:
        """One row per layer: dimensions written below it and read from it on."""
        names = [*(f"layer {use.layer}" for use in self.stream[:-1]), "unembed"]
        rows = tuple(
            (name, use.both, use.written, use.read, use.free)
            for name, use in zip(names, self.stream, strict=True)
        )
        columns = (
            text_column("before"),
            *map(Column, ("both", "written only", "read only", "free")),
        )
        return Table(columns, rows, "dimensions of the stream: written below, read from here on")

    def __rich__(self) -> RenderableType:
        tables = [self.spectra_table(), self.stream_table()]
        tables += [self.to_table()] if self.heads else []
        return stacked(*tables)


@torch.no_grad()
@checked
def bandwidth(model: Model, *, center: Center = "auto", progress: Progress = silent) -> Bandwidth:
    """The use of the residual stream's dimensions, from weights alone.

    Args:
        model: The model.
        center: Whether the ones-vector is projected out of reads and writes, as in `composition`.
        progress: Called as the work proceeds.

    Returns:
        The spectra of W_E and W_U and their joint PCA; for each layer, the number of dimensions
        written below it, read from it on, and free; the dimensions that each head reads and writes;
        and the heads that delete. All numbers except p are independent of the stream's basis.

    Example:
        >>> import pathsum as ps
        >>> found = ps.bandwidth(ps.construct.induction())
        >>> found.joint.both, found.joint.first_only, found.joint.second_only  # a block for each
        (0, 27, 26)

    W_U is centered over the vocabulary, which leaves all probabilities unchanged (and here removes
    one of its 27 dimensions). A dimension counts as used if it carries at least a tenth of an even
    share. Because this is a threshold, check the spectra if the count matters. For the exact
    overlap of two parts of the model, use `virtual_weights`.
    """
    centered = is_centered(model.config, center)
    d = max(1, model.config.d_model - centered)
    embedding, unembedding = embedding_form(model, centered), unembedding_form(model, centered)
    return Bandwidth(
        model=model.name,
        dimension=d,
        centered=centered,
        embedding=spectrum(embedding, d),
        unembedding=spectrum(unembedding, d),
        joint=joint_use(embedding, unembedding, d),
        stream=stream_use(model, centered, d, progress),
        heads=tuple(_head_subspaces(head, centered, d) for head in model.heads),
        deleting=head_deletions(model, centered, d),
    )


def _head_subspaces(head: Head, centered: bool, d: int) -> HeadSubspaces:
    dtype = head.model.weights.dtype
    write = write_factor(head, centered)
    factors = [read_factor(head, kind, centered) for kind in KINDS]
    q, k, v, w = (
        spectrum_of_squares(svdvals(factor).square(), d).effective for factor in (*factors, write)
    )
    read_basis, write_basis = row_basis(factors[2], dtype), row_basis(write, dtype)
    smaller, larger = sorted((len(read_basis), len(write_basis)))
    if smaller == 0:
        return HeadSubspaces(head.label, q, k, v, w, math.nan, math.nan, math.nan)
    angles = principal_angles(read_basis.mT, write_basis.mT)
    overlap, closest = float(angles.cos().square().sum()) / smaller, float(torch.rad2deg(angles[0]))
    return HeadSubspaces(head.label, q, k, v, w, overlap, larger / d, closest)


def head_deletions(model: Model, centered: bool, d: int) -> tuple[HeadDeletion, ...]:
    """One record per head."""
    n = len(model.heads)
    if n == 0:
        return ()
    embeddings = embeddings_as_read(model.weights, 0)
    mean = embeddings.mean(0, keepdim=True, dtype=torch.float64)
    covariance = gram_of_rows(embeddings - mean.to(embeddings.dtype)) / len(embeddings)
    second = covariance + mean.mT @ mean
    orders = random_orders(PERMUTATIONS, model.config.d_model, seeded(0))
    layers = range(model.config.n_layers)
    own_positions = torch.cat([_own_position(model, layer) for layer in layers])
    deletions: list[HeadDeletion] = []
    for head, own_position in zip(model.heads, own_positions.tolist(), strict=True):
        ov = Factored(
            remove_mean(head.W_V.double().mT, centered).mT, remove_mean(head.W_O.double(), centered)
        )
        values, size = ov.eigenvalues(), ov.norm()
        z = float(ov.trace() / size * d**0.5)
        normal = torch.special.ndtr(torch.tensor(z, dtype=torch.float64))
        p = float(torch.maximum(normal, _permuted_tail(ov, orders)).clamp(min=P_FLOOR))
        share = float(-values.real.clamp(max=0).sum() / values.abs().sum())
        own_token = _own_token(head.W_Q.double(), head.W_K.double(), covariance, second)
        deletes = p < ALPHA / n
        if deletes:
            deletes = None if math.isnan(own_position) else own_position >= ATTENDS_TO_ITSELF
        deletions.append(HeadDeletion(head.label, share, z, p, own_token, own_position, deletes))
    return tuple(deletions)


def _permuted_tail(ov: Factored, orders: Int[Tensor, "draw d"]) -> Float[Tensor, ""]:
    """The probability of a trace as negative if the stream's axes are permuted and signed.

    Given the permutation π, Σ_a ±OV_aπ(a) is a sum of random signs, about normal with variance
    Σ_a OV_aπ(a)². The result is the mean of that normal tail over permutations.
    """
    variance = torch.zeros(len(orders), dtype=torch.float64)
    for rows in torch.arange(ov.shape[0]).split(BLOCK_ROWS):
        squares = (ov.A[rows] @ ov.B).square().cpu()
        variance += squares[torch.arange(len(rows)), orders[:, rows]].sum(-1)
    trace = ov.trace().cpu()
    # Without variance the trace is 0 for all signs; NaN only if OV is zero.
    tails = torch.where(variance > 0, torch.special.ndtr(trace / variance.sqrt()), trace >= 0)
    return torch.where(ov.norm().cpu() > 0, tails.mean(), torch.nan)


def _own_token(
    W_Q: Float[Tensor, "d k"],
    W_K: Float[Tensor, "d k"],
    covariance: Float[Tensor, "d d"],
    second: Float[Tensor, "d d"],
) -> float:
    """tr(W_Qᵀ C W_K) / √tr(W_Qᵀ S W_Q · W_Kᵀ C W_K), C and S the covariance and second moment.

    With e a token's embedding and m their mean, the score of t with u, less its mean over u, is
    e_t QK (e_u − m)ᵀ: the numerator is its mean over u = t, the root its size over all t and u.
    """
    keys = covariance @ W_K
    size = ((W_Q.mT @ second @ W_Q) * (W_K.mT @ keys)).sum()
    return float((W_Q * keys).sum() / size.sqrt())


def _own_position(model: Model, layer: int) -> Float[Tensor, " head"]:
    """Attention of a position to itself with a zero embedding, if positions enter the scores.

    Only with positions="qk", where they enter after normalization and no scale multiplies them.
    """
    config = model.config
    reads = layer_reads(model.weights, layer)
    if reads.pos_Q is None or reads.pos_K is None or config.qk_norm != "none":
        return torch.full((config.n_heads,), torch.nan)
    positions = min(POSITIONS, config.n_ctx)
    queries = reads.pos_Q[:, :positions] + reads.b_Q[:, None]
    keys = for_query_heads(reads.pos_K[:, :positions] + reads.b_K[:, None], config.n_heads)
    scores = queries @ keys.mT * config.score_scale
    require_finite(scores, "a table of attention scores between positions")
    pattern = attention_pattern(config, model.weights.layers[layer], scores[None])[0]
    # In a causal model, the first position can attend only to itself.
    return pattern.diagonal(dim1=-2, dim2=-1)[:, int(config.causal) :].mean(-1)
