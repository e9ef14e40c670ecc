"""One pair of heads by singular directions: which written direction meets which read direction.

With OV¹ = Σ σᵢ uᵢ vᵢᵀ and M = Σ τⱼ aⱼ bⱼᵀ the composition score is a sum over pairs of directions,

    score² = Σᵢⱼ σᵢ² τⱼ² (vᵢ·aⱼ)² / (Σσ² Στ²),

so each pair has a share in it. A whole head may compose no more than chance while one direction of
it does all the work, and the other way round.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from rich.console import RenderableType
from torch import Tensor

from pathsum.algebra.decompositions import thin_svd
from pathsum.algebra.nulls import UnitMoments, unit_null
from pathsum.algebra.subspaces import numerical_rank, principal_angles
from pathsum.base import Column, HeadRead, Record, Table, stacked, text_column
from pathsum.base.arguments import parse_choice
from pathsum.base.errors import HeadError, InputError, NotExactError
from pathsum.base.p_value import ProbabilityColumn, format_p
from pathsum.circuits.composition.edges import MEANING
from pathsum.circuits.composition.reads_and_writes import (
    KINDS,
    Center,
    CompositionKind,
    is_centered,
    read_factor,
    write_factor,
)
from pathsum.model import Head, HeadId, HeadName, Model
from pathsum.model.rotary import check_offset


@dataclass(frozen=True, eq=False)
class PairComponents(Record, kind="composition-pair"):
    """Composition of one pair of heads, by singular directions; see `pair_components`.

    `score`, `excess`, `z`, `p`  of the whole heads, as in `composition`
    `written`   share of each written direction in ‖OV¹‖², strongest first
    `read`      share of each read direction in ‖M‖²
    `share`     [written, read]: parts of score², which add up to it
    `cosine`    [written, read]: |cos| between two directions, which by chance is about 1/√d
    `p_cosine`  [written, read]: how often chance gives at least that cosine; NaN for directions
                of rounding, which heads of lower rank have
    `angles`    principal angles between the two subspaces in degrees, smallest first
    `kernel`    Σ cos² of these angles over the smaller dimension; `kernel_chance` is its mean
                over random rotations, with `kernel_z` and `kernel_p`
    """

    model: str
    writer: HeadId
    reader: HeadId
    composition: CompositionKind
    score: float
    excess: float
    z: float
    p: float
    written: Float[Tensor, " i"]
    read: Float[Tensor, " j"]
    share: Float[Tensor, "i j"]
    cosine: Float[Tensor, "i j"]
    p_cosine: Float[Tensor, "i j"]
    angles: Float[Tensor, " q"]
    kernel: float
    kernel_chance: float
    kernel_z: float
    kernel_p: float
    dimension: int
    centered: bool

    def to_table(self, k: int = 10) -> Table:
        """The k pairs of directions with the largest share."""
        order = self.share.flatten().argsort(descending=True)[:k].tolist()
        width = self.share.shape[1]
        whole = self.score**2
        lines = tuple(
            (
                *(at // width, at % width),
                *(float(self.written[at // width]), float(self.read[at % width])),
                *(float(self.cosine.flatten()[at]), float(self.p_cosine.flatten()[at])),
                float(self.share.flatten()[at]) / whole if whole else float("nan"),
            )
            for at in order
        )
        columns = (
            *(Column("written"), Column("read")),
            *(Column("of OV²", ".1%"), Column("of M²", ".1%")),
            *(Column("|cos|"), ProbabilityColumn(), Column("of score²", ".1%")),
        )
        kind = self.composition.upper()
        return Table(
            columns,
            lines,
            f"{self.writer} → {self.reader}, {kind}-composition, {self.model}",
            f"score {self.score:.3f}, excess {self.excess:+.3f}, z {self.z:+.1f}, "
            f"{format_p(self.p)}; a random rotation scores {self.score - self.excess:.3f}.\n"
            f"Projection kernel {self.kernel:.3f}, by chance {self.kernel_chance:.3f} "
            f"(z {self.kernel_z:+.1f}, {format_p(self.kernel_p)}); smallest principal angle "
            f"{float(self.angles[0]):.0f}°. Each p is against random rotations of the stream; that "
            "of a cosine is for one pair of directions, of which there are "
            f"{self.share.numel():,}.",
        )


@dataclass(frozen=True, eq=False)
class PairComparison(Record, kind="composition-kinds"):
    """The same pair of heads by several kinds of composition."""

    kinds: tuple[PairComponents, ...]

    def to_table(self) -> Table:
        """One row per kind."""
        columns = (
            *(text_column("writes"), text_column("reads"), text_column("by"), Column("score")),
            *(Column("excess", "+.3f"), Column("z", "+.1f"), ProbabilityColumn()),
            *(Column("kernel"), Column("by chance")),
        )
        rows = tuple(
            (
                *(one.writer, one.reader, one.composition.upper(), one.score, one.excess),
                *(one.z, one.p, one.kernel, one.kernel_chance),
            )
            for one in self.kinds
        )
        return Table(columns, rows, "one pair of heads", MEANING)

    def __rich__(self) -> RenderableType:
        return stacked(self.to_table(), *(one.to_table() for one in self.kinds))


def compare_pair(
    model: Model,
    writer: HeadName,
    reader: HeadName,
    kinds: Sequence[CompositionKind] = KINDS,
    *,
    center: Center = "auto",
    offset: int | None = None,
) -> PairComparison:
    """`pair_components` for each of some kinds."""
    return PairComparison(
        tuple(
            pair_components(model, writer, reader, kind, center=center, offset=offset)
            for kind in kinds
        )
    )


@torch.no_grad()
def pair_components(
    model: Model,
    writer: HeadName,
    reader: HeadName,
    kind: CompositionKind,
    *,
    center: Center = "auto",
    offset: int | None = None,
) -> PairComponents:
    """Composition of one pair of heads, direction by direction, with the projection kernel.

    >>> import pathsum as ps
    >>> pair = pair_components(ps.construct.induction(), "L0H0", "L1H0", "k")
    >>> bool((pair.share.sum() - pair.score**2).abs() < 1e-12)
    True

    The kernel compares the subspaces alone, with equal weight for every direction, so one strong
    direction cannot dominate it. Where singular values coincide the directions themselves are
    arbitrary (any basis of their span is as good), their sums are not.
    """
    config = model.config
    check_offset(config, offset)
    kind = parse_choice(KINDS, kind, "kind")
    h1, h2 = _writer_and_reader(model, writer, reader)
    centered = is_centered(config, center)
    d = config.d_model - centered
    written, V = _directions(write_factor(h1, centered), f"{h1.label} writes nothing")
    read, A = _directions(read_factor(h2, kind, centered, offset), f"{h2.label} reads nothing")
    cosine = (V @ A.mT).abs().clamp(max=1.0)
    share = written[:, None] * read[None, :] * cosine**2
    square = share.sum()
    null = unit_null(UnitMoments.of_shares(written), UnitMoments.of_shares(read), d)
    dtype = model.weights.dtype
    r1, r2 = numerical_rank(written.sqrt(), dtype), numerical_rank(read.sqrt(), dtype)
    angles, kernel, chance, kernel_z, kernel_p = _kernel(V[:r1], A[:r2], d)
    p_cosine = unit_null(_of_rank(1), _of_rank(1), d).p(cosine**2)
    # Directions of rounding are whatever the decomposition made of them.
    p_cosine[r1:], p_cosine[:, r2:] = torch.nan, torch.nan
    return PairComponents(
        model=model.name,
        writer=h1.label,
        reader=h2.label,
        composition=kind,
        score=float(square.sqrt()),
        excess=float(square.sqrt()) - d**-0.5,
        z=float(null.z(square)),
        p=float(null.p(square)),
        written=written,
        read=read,
        share=share,
        cosine=cosine,
        p_cosine=p_cosine,
        angles=angles,
        kernel=kernel,
        kernel_chance=chance,
        kernel_z=kernel_z,
        kernel_p=kernel_p,
        dimension=d,
        centered=centered,
    )


def _kernel(
    V: Float[Tensor, "i d"], A: Float[Tensor, "j d"], d: int
) -> tuple[Float[Tensor, " q"], float, float, float, float]:
    """Principal angles of two subspaces in degrees, their kernel, its mean by chance, z and p."""
    larger = max(len(V), len(A))
    angles = principal_angles(V.mT, A.mT)
    overlap = angles.cos().square().sum() / (len(V) * len(A))
    null = unit_null(_of_rank(len(V)), _of_rank(len(A)), d)
    z, p = float(null.z(overlap)), float(null.p(overlap))
    return torch.rad2deg(angles), float(overlap) * larger, larger / d, z, p


def _of_rank(rank: int) -> UnitMoments:
    return UnitMoments.of_rank(torch.tensor(rank, dtype=torch.float64))


def _writer_and_reader(model: Model, writer: HeadName, reader: HeadName) -> tuple[Head, Head]:
    h1, h2 = model.head(writer), model.head(reader)
    if h2.id.layer <= h1.id.layer:
        raise HeadError(
            f"{h2.label} cannot read what {h1.label} writes: it is not in a later layer; "
            "name the writer first and a reader of a later layer second"
        )
    for edge in model.weights.edited_edges:
        if edge.writer == h1.id and isinstance(edge.reader, HeadRead) and edge.reader.head == h2.id:
            raise NotExactError(
                f"{edge} carries the same for every text in this edited model, so it has no "
                "components; use the model without that edit"
            )
    return h1, h2


def _directions(factor: Float[Tensor, "r d"], empty: str) -> tuple[Tensor, Tensor]:
    """Shares of the squared singular values, descending, and the directions in the stream."""
    _, values, Vh = thin_svd(factor)
    total = (values**2).sum()
    if not bool(total > 0):
        raise InputError(f"{empty}: its matrix is zero, so it composes with nothing")
    return values**2 / total, Vh
