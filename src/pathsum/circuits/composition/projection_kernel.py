"""The projection kernel between all heads: composition with equal weight for every direction."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.algebra.nulls import UnitMoments, unit_null
from pathsum.algebra.subspaces import row_basis
from pathsum.base import Column, Progress, Record, Table, silent, text_column
from pathsum.base.arguments import parse_choice
from pathsum.base.p_value import ProbabilityColumn
from pathsum.circuits.composition.edges import MEANING
from pathsum.circuits.composition.reads_and_writes import (
    KINDS,
    Center,
    CompositionKind,
    is_centered,
    read_factor,
    write_factor,
)
from pathsum.model import HeadId, Model


@dataclass(frozen=True, eq=False)
class KernelScores:
    """One kind of projection kernel between all heads; row writes, column reads, else NaN.

    `kernel` is Σ cos² of the principal angles over the smaller of the two dimensions: 1 where one
    subspace lies in the other. `chance` is its mean over random rotations, (larger dimension) / d.
    """

    kernel: Float[Tensor, "head head"]
    chance: Float[Tensor, "head head"]
    z: Float[Tensor, "head head"]
    p: Float[Tensor, "head head"]


@dataclass(frozen=True, eq=False)
class ProjectionKernel(Record, kind="projection-kernel"):
    """Projection kernels between what heads write and what queries, keys and values read."""

    model: str
    heads: tuple[HeadId, ...]
    q: KernelScores
    k: KernelScores
    v: KernelScores
    dimension: int
    centered: bool

    def scores(self, kind: CompositionKind) -> KernelScores:
        """The scores of one kind: `q`, `k` or `v`."""
        return getattr(self, parse_choice(KINDS, kind, "kind"))

    def to_table(self) -> Table:
        """The twenty pairs that stand out most."""
        rows: list[tuple[str, str, str, float, float, float, float]] = []
        for kind in KINDS:
            s = self.scores(kind)
            for i, j in (~s.z.isnan()).nonzero().tolist():
                kernel, by_chance, z, p = (float(x[i, j]) for x in (s.kernel, s.chance, s.z, s.p))
                pair = (self.heads[i], self.heads[j], kind.upper())
                rows.append((*pair, kernel, by_chance, z, p))
        rows.sort(key=lambda row: -row[5])
        columns = (
            *(text_column("writes"), text_column("reads"), text_column("by")),
            *(Column("kernel"), Column("by chance"), Column("z", "+.1f"), ProbabilityColumn()),
        )
        note = f"p: against random rotations of the stream. {MEANING}"
        return Table(columns, tuple(rows[:20]), f"projection kernel, {self.model}", note)


@torch.no_grad()
def projection_kernel(
    model: Model, *, center: Center = "auto", progress: Progress = silent
) -> ProjectionKernel:
    """How much the subspace that each head reads overlaps the subspace that another writes to.

    In `composition` a head's strong directions dominate; here all its directions count the same.
    Where the two disagree, a single direction does the work, strong or weak. The subspace that
    queries read is that of W_Q, whatever the rotary offset.
    """
    centered = is_centered(model.config, center)
    d = model.config.d_model - centered
    dtype = model.weights.dtype
    n = len(model.heads)
    writes: list[Tensor] = []
    reads: dict[CompositionKind, list[Tensor]] = {kind: [] for kind in KINDS}
    offset = 0 if model.config.positions == "rotary" else None
    for done, head in enumerate(model.heads, 1):
        writes.append(row_basis(write_factor(head, centered), dtype))
        for kind in KINDS:
            reads[kind].append(row_basis(read_factor(head, kind, centered, offset), dtype))
        progress(done, n, "subspaces")
    layers = torch.tensor([head.id.layer for head in model.heads])
    q, k, v = (_kernels(writes, reads[kind], layers, d) for kind in KINDS)
    labels = tuple(head.label for head in model.heads)
    return ProjectionKernel(model.name, labels, q, k, v, d, centered)


def _kernels(writes: list[Tensor], reads: list[Tensor], layers: Tensor, d: int) -> KernelScores:
    n = len(writes)
    overlap = torch.full((n, n), torch.nan, dtype=torch.float64)
    for j, read in enumerate(reads):
        below = int((layers < layers[j]).sum())
        if not below or not len(read):
            continue
        meets = (torch.cat(writes[:below]) @ read.mT).square().sum(1)
        sums = meets.split([len(w) for w in writes[:below]])
        overlap[:below, j] = torch.stack([part.sum() for part in sums]).cpu()
    r1 = torch.tensor([[len(w)] for w in writes], dtype=torch.float64)
    r2 = torch.tensor([len(r) for r in reads], dtype=torch.float64)
    there = ~overlap.isnan() & (r1 > 0) & (r2 > 0)
    square = torch.where(there, overlap / (r1 * r2), torch.nan)
    null = unit_null(
        UnitMoments.of_rank(r1.clamp(min=1)), UnitMoments.of_rank(r2[None, :].clamp(min=1)), d
    )
    p = torch.where(there, null.p(square.nan_to_num()), torch.nan)
    larger = torch.maximum(r1, r2.expand_as(overlap))
    return KernelScores(
        kernel=square * larger,
        chance=torch.where(there, larger / d, torch.nan),
        z=null.z(square),
        p=p,
    )
