"""Bandwidth of the residual stream: which dimensions are used by what, and which are free."""

from dataclasses import dataclass

import torch
from rich.console import RenderableType

from pathsum.algebra.decompositions import svdvals
from pathsum.algebra.subspaces import principal_angles, row_basis
from pathsum.base import Column, Progress, Record, Table, silent, stacked, text_column
from pathsum.base.arguments import checked
from pathsum.circuits.reads_and_writes import (
    KINDS,
    Center,
    is_centered,
    read_factor,
    write_factor,
)
from pathsum.circuits.stream.deletion import (
    HeadDeletion,
    NeuronDeletion,
    head_deletions,
    neuron_deletions,
)
from pathsum.circuits.stream.dimensions import (
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
from pathsum.model import Head, HeadId, Model


@dataclass(frozen=True)
class HeadSubspaces:
    """The dimensions that a head reads and writes, and their overlap.

    `reads_q`, `reads_k`, `reads_v` and `writes` are effective dimensions (participation ratios of
    the spectra of QK and OV). `overlap` is Σ cos² of the principal angles between what OV reads and
    what it writes, over the smaller dimension; `overlap_chance` its mean over random rotations.
    `closest` is the smallest of those angles in degrees.
    """

    head: HeadId
    reads_q: float
    reads_k: float
    reads_v: float
    writes: float
    overlap: float
    overlap_chance: float
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
    neurons: NeuronDeletion | None

    def to_table(self) -> Table:
        """One row per head: what it reads, writes and deletes."""
        columns = (
            *(text_column("head"), Column("q", ".1f"), Column("k", ".1f"), Column("v", ".1f")),
            *(Column("w", ".1f"), Column("v·w", ".2f"), Column("null", ".2f")),
            *(Column("neg", ".0%"), Column("z", "+.1f"), Column("self", "+.1f")),
            *(Column("here", ".2f"), Column("del")),
        )
        rows = tuple(
            (
                *(h.head, h.reads_q, h.reads_k, h.reads_v, h.writes, h.overlap, h.overlap_chance),
                *(x.negative, x.z, x.own_token, x.own_position, x.deletes),
            )
            for h, x in zip(self.heads, self.deleting, strict=True)
        )
        return Table(
            columns,
            rows,
            f"heads in a stream of {self.dimension} dimensions, {self.model}",
            "q k v w: effective dimensions read by queries, keys, values, and written.\n"
            "v·w: overlap of what OV reads with what it writes; null: that overlap by chance.\n"
            "neg: share of OV's eigenvalues left of zero; z: of tr OV against chance. A head\n"
            "deletes (del) if that z has p < 0.01 / heads and here ≥ 0.5.\n"
            "self: a token's score with itself, in standard deviations over tokens; here:\n"
            "attention to its own position by position terms alone.",
        )

    def spectra_table(self) -> Table:
        """Embedding and unembedding, alone and together."""
        lines = (("W_E", self.embedding), ("W_U", self.unembedding))
        rows = tuple((name, s.effective, s.for_90, s.used) for name, s in lines)
        j = self.joint
        columns = (
            *(text_column(""), Column("effective", ".1f")),
            *(Column("for 90 %"), Column("used")),
        )
        return Table(
            columns,
            rows,
            f"embedding and unembedding, {self.model}",
            f"Joint PCA: {j.both} dimensions used by both, {j.first_only} by W_E alone, "
            f"{j.second_only} by W_U alone, {j.neither} by neither.\n"
            "Used: carries at least a tenth of an even share.",
        )

    def stream_table(self) -> Table:
        """One row per layer: dimensions written below it and read from it on."""
        last = len(self.stream) - 1
        rows = tuple(
            ("unembed" if i == last else f"layer {s.layer}", s.both, s.written, s.read, s.free)
            for i, s in enumerate(self.stream)
        )
        names = ("both", "written only", "read only", "free")
        return Table(
            (text_column("before"), *(Column(name) for name in names)),
            rows,
            "dimensions of the stream: written below, read from here on",
        )

    def neurons_table(self) -> Table:
        """The neurons that delete most."""
        found = self.neurons or NeuronDeletion(0, 0, 0.0, ())
        rows = tuple((f"mlp{n.layer}", n.neuron, n.cosine, n.z) for n in found.strongest)
        columns = (text_column("in"), Column("neuron"), Column("cosine"), Column("z", "+.1f"))
        return Table(
            columns,
            rows,
            "MLP neurons that write against what they read",
            f"{found.below} of {found.neurons} neurons have z < −4; by chance at most "
            f"{found.expected:.2g}.",
        )

    def __rich__(self) -> RenderableType:
        tables = [self.spectra_table(), self.stream_table()]
        tables += [self.to_table()] if self.heads else []
        tables += [self.neurons_table()] if self.neurons is not None else []
        return stacked(*tables)


@torch.no_grad()
@checked
def bandwidth(model: Model, *, center: Center = "auto", progress: Progress = silent) -> Bandwidth:
    """The use of the residual stream's dimensions, from weights alone.

    Spectra of W_E and W_U and their joint PCA; before each layer, how many dimensions are written
    below and read from there on, and how many are free; the dimensions that each head reads and
    writes; heads and MLP neurons that delete. No number depends on the basis of the stream.

    >>> import pathsum as ps
    >>> found = ps.bandwidth(ps.construct.induction())
    >>> found.joint.both, found.joint.first_only, found.joint.second_only  # a block for each
    (0, 27, 26)

    W_U is centered over the vocabulary, which changes no probability (and here takes one of its 27
    dimensions). `center` is as in
    `composition`. A dimension counts as used if it carries at least a tenth of an even share: a
    threshold, so see the spectra where it matters. For the exact overlap of two parts of the model
    use `virtual_weights`.
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
        neurons=neuron_deletions(model, centered, d),
    )


def _head_subspaces(head: Head, centered: bool, d: int) -> HeadSubspaces:
    dtype = head.model.weights.dtype
    written = write_factor(head, centered)
    factors = [read_factor(head, kind, centered) for kind in KINDS]
    q, k, v, w = (
        spectrum_of_squares(svdvals(factor).square(), d).effective for factor in (*factors, written)
    )
    read_basis, write_basis = row_basis(factors[2], dtype), row_basis(written, dtype)
    less, more = sorted((len(read_basis), len(write_basis)))
    if less == 0:
        nan = float("nan")
        return HeadSubspaces(head.label, q, k, v, w, nan, nan, nan)
    angles = principal_angles(read_basis.mT, write_basis.mT)
    return HeadSubspaces(
        head.label,
        q,
        k,
        v,
        w,
        overlap=float(angles.cos().square().sum()) / less,
        overlap_chance=more / d,
        closest=float(torch.rad2deg(angles[0])),
    )
