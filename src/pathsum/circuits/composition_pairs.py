"""Composition by singular directions: one pair of heads, all pairs by subspaces, empirical nulls.

With OV¹ = Σ σᵢ uᵢ vᵢᵀ and M = Σ τⱼ aⱼ bⱼᵀ the composition score is a sum over pairs of directions,

    score² = Σᵢⱼ wᵢ rⱼ (vᵢ·aⱼ)²      with shares wᵢ = σᵢ² / Σσ², rⱼ = τⱼ² / Στ²

    pair_components        one pair of heads: each term of the sum
    projection_kernel      equal shares for every direction: the overlap of subspaces
    empirical_composition  two empirical nulls, which keep directions that a whole layer shares:
                           the directions of other heads of the two layers (`permuted`), and
                           untrained models of the same config (`twins`); and the best written
                           direction alone, ‖v M‖ / ‖M‖ (`direction`; Merullo et al.), because the
                           other directions of a head may mask it
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import combinations
from typing import Annotated

import torch
from jaxtyping import Float
from rich.console import RenderableType
from torch import Tensor

from pathsum.algebra.decompositions import thin_svd
from pathsum.algebra.nulls import UnitMoments, unit_null
from pathsum.algebra.subspaces import numerical_rank, principal_angles
from pathsum.base import Column, Progress, Record, Site, Table, silent, stacked, text_column
from pathsum.base.errors import InputError, NotExactError
from pathsum.base.estimate import LEAST_FITTED, BoundedP, ProbabilityColumn, format_p
from pathsum.base.options import parse_choice
from pathsum.base.table import field_columns, rows_table
from pathsum.circuits.composition import (
    MEANING,
    AllPairs,
    Composition,
    PairScores,
    ScoredEdge,
    check_order,
    composition,
)
from pathsum.circuits.reads_and_writes import (
    KINDS,
    Center,
    CompositionKind,
    is_centered,
    read_factor,
    write_factor,
)
from pathsum.model import Head, HeadId, HeadName, Model, random_model
from pathsum.model.rotary import check_offset

TWINS = 4
_TIE = 1e-12
"""Squared scores closer than this are equal."""
_LINE = UnitMoments.of_rank(torch.ones(1, dtype=torch.float64))


@dataclass(frozen=True, eq=False)
class Directions:
    """Shares of the squared singular values, strongest first, and directions in the stream.

    Shares of a zero matrix are NaN. Directions from number `ranks` on are rounding.
    """

    shares: Float[Tensor, "head r"]
    basis: Float[Tensor, "head r d"]
    ranks: Float[Tensor, " head"]

    @classmethod
    def of(cls, factors: Sequence[Float[Tensor, "r d"]], dtype: torch.dtype) -> "Directions":
        """The singular directions of write or read factors of weights stored in `dtype`."""
        _, values, basis = thin_svd(torch.stack(list(factors)).cpu())
        shares = values.square() / values.square().sum(-1, keepdim=True)
        ranks = [numerical_rank(each, dtype) for each in values]
        return cls(shares, basis, torch.tensor(ranks, dtype=torch.float64))

    @property
    def moments(self) -> UnitMoments:
        """The moments that the null needs."""
        return UnitMoments.of_shares(self.shares)

    @property
    def uniform(self) -> "Directions":
        """With equal shares of the directions above rounding."""
        above = torch.arange(self.shares.shape[-1]) < self.ranks[:, None]
        return replace(self, shares=above / self.ranks[:, None])


@dataclass(frozen=True)
class DirectionPair:
    """A written and a read direction by number, and their part in the score."""

    written: Annotated[int, Column("written")]
    read: Annotated[int, Column("read")]
    of_OV: Annotated[float, Column("of OV²", ".1%")]
    of_M: Annotated[float, Column("of M²", ".1%")]
    cosine: Annotated[float, Column("|cos|")]
    p: Annotated[float, ProbabilityColumn()]
    of_score: Annotated[float, Column("of score²", ".1%")]


@dataclass(frozen=True, eq=False)
class PairComponents(Record, kind="composition-pair"):
    """Composition of one pair of heads, by singular directions; see `pair_components`.

    `score`, `excess`, `z`, `p`  of the whole heads, as in `composition`
    `written`   share of each written direction in ‖OV¹‖², strongest first
    `read`      share of each read direction in ‖M‖²
    `share`     [written, read]: parts of score², which add up to it
    `cosine`    [written, read]: |cos| between two directions, which by chance is about 1/√d
    `p_cosine`  [written, read]: p-value of each cosine; NaN for directions of rounding, which
                heads of lower rank have
    `angles`    principal angles between the two subspaces in degrees, smallest first
    `kernel`    Σ cos² of these angles over the smaller dimension; `kernel_chance` is its mean
                over random rotations, with `kernel_z` and `kernel_p`
    """

    model: str
    writer: Annotated[HeadId, text_column("writes")]
    reader: Annotated[HeadId, text_column("reads")]
    composition: Annotated[CompositionKind, text_column("by")]
    score: Annotated[float, Column("score")]
    excess: Annotated[float, Column("excess", "+.3f")]
    z: Annotated[float, Column("z", "+.1f")]
    p: Annotated[float, ProbabilityColumn()]
    written: Float[Tensor, " i"]
    read: Float[Tensor, " j"]
    share: Float[Tensor, "i j"]
    cosine: Float[Tensor, "i j"]
    p_cosine: Float[Tensor, "i j"]
    angles: Float[Tensor, " q"]
    kernel: Annotated[float, Column("kernel")]
    kernel_chance: Annotated[float, Column("by chance")]
    kernel_z: float
    kernel_p: float
    dimension: int
    centered: bool

    def to_table(self, k: int = 10) -> Table:
        """The k pairs of directions with the largest share."""
        part = self.share / (self.score**2 or torch.nan)
        order = self.share.flatten().argsort(descending=True)[:k].tolist()
        rows: list[DirectionPair] = []
        for i, j in (divmod(at, self.share.shape[1]) for at in order):
            cells = (
                self.written[i],
                self.read[j],
                self.cosine[i, j],
                self.p_cosine[i, j],
                part[i, j],
            )
            rows.append(DirectionPair(i, j, *map(float, cells)))
        return rows_table(
            rows,
            f"{self.writer} → {self.reader}, {self.composition.upper()}-composition, {self.model}",
            f"score {self.score:.3f}, excess {self.excess:+.3f}, z {self.z:+.1f}, "
            f"{format_p(self.p)}; a random rotation scores {self.score - self.excess:.3f}.\n"
            f"Projection kernel {self.kernel:.3f}, by chance {self.kernel_chance:.3f} "
            f"(z {self.kernel_z:+.1f}, {format_p(self.kernel_p)}); smallest principal angle "
            f"{float(self.angles[0]):.0f}°. Each p is against random rotations of the stream; that "
            "of a cosine is for one pair of directions, of which there are "
            f"{self.share.numel():,}.",
            DirectionPair,
        )


@dataclass(frozen=True, eq=False)
class PairComparison(Record, kind="composition-kinds"):
    """The same pair of heads by several kinds of composition."""

    kinds: tuple[PairComponents, ...]

    @property
    def table_note(self) -> str:
        """The null hypothesis of p."""
        return MEANING

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
    each = (pair_components(model, writer, reader, x, center=center, offset=offset) for x in kinds)
    return PairComparison(tuple(each))


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
    check_offset(model.config, offset)
    kind = parse_choice(KINDS, kind, "kind")
    h1, h2 = _writer_and_reader(model, writer, reader)
    centered = is_centered(model.config, center)
    d, dtype = model.config.d_model - centered, model.weights.dtype
    own = Directions.of([write_factor(h1, centered)], dtype)
    other = Directions.of([read_factor(h2, kind, centered, offset)], dtype)
    for directions, what in ((own, f"{h1.label} writes"), (other, f"{h2.label} reads")):
        if bool(directions.shares.isnan().any()):
            raise InputError(f"{what} nothing: its matrix is zero, so it composes with nothing")
    written, read, (V,), (A,) = own.shares[0], other.shares[0], own.basis, other.basis
    cosine = (V @ A.mT).abs().clamp(max=1.0)
    r1, r2 = int(own.ranks), int(other.ranks)
    p_cosine = unit_null(_LINE, _LINE, d).p(cosine**2)
    p_cosine[r1:], p_cosine[:, r2:] = torch.nan, torch.nan
    whole, kernel = _composed(own, other, d), _kernel(own, other, d)
    return PairComponents(
        model=model.name,
        writer=h1.label,
        reader=h2.label,
        composition=kind,
        score=float(whole.score),
        excess=float(whole.excess),
        z=float(whole.z),
        p=float(whole.p),
        written=written,
        read=read,
        share=written[:, None] * read[None, :] * cosine**2,
        cosine=cosine,
        p_cosine=p_cosine,
        angles=torch.rad2deg(principal_angles(V[:r1].mT, A[:r2].mT)),
        kernel=float(kernel.score),
        kernel_chance=float(kernel.score - kernel.excess),
        kernel_z=float(kernel.z),
        kernel_p=float(kernel.p),
        dimension=d,
        centered=centered,
    )


def _writer_and_reader(model: Model, writer: HeadName, reader: HeadName) -> tuple[Head, Head]:
    h1, h2 = model.head(writer), model.head(reader)
    check_order(h1.id, h2.id)
    for edge in model.weights.edited_edges:
        if edge.writer == h1.id and edge.reader == h2.id:
            raise NotExactError(
                f"{edge} carries the same for every text in this edited model, so it has no "
                "components; use the model without that edit"
            )
    return h1, h2


@dataclass(frozen=True, eq=False)
class ProjectionKernel(AllPairs, kind="projection-kernel"):
    """Overlaps of the subspaces that heads write to and that queries, keys and values read.

    `score` is Σ cos² of the principal angles over the smaller of the two dimensions: 1 where one
    subspace lies in the other. `excess` is the score − its mean over random rotations, (larger
    dimension) / d. `z` and `p` are those of the score, NaN as in `composition`.
    """

    def to_table(self) -> Table:
        """The twenty pairs with the largest z."""
        edge, _, _, z, p, _ = (column for (column,) in field_columns(ScoredEdge).values())
        edges = [
            self.edge_at(kind, *pair)
            for kind in KINDS
            for pair in (~self.scores(kind).z.isnan()).nonzero().tolist()
        ]
        best = sorted(edges, key=lambda one: -one.z)[:20]
        return Table(
            (edge, Column("kernel"), Column("by chance"), z, p),
            tuple((str(x.edge), x.score, x.score - x.excess, x.z, x.p) for x in best),
            f"projection kernel, {self.model}",
            f"p: against random rotations of the stream. {MEANING}",
        )


@torch.no_grad()
def projection_kernel(
    model: Model, *, center: Center = "auto", progress: Progress = silent
) -> ProjectionKernel:
    """Overlap of the subspace that each head reads with the subspace that another writes to.

    In `composition` a head's strong directions dominate; here all its directions count the same.
    Where the two disagree, a single direction dominates, strong or weak. The subspace that queries
    read is that of W_Q, whatever the rotary offset.
    """
    centered = is_centered(model.config, center)
    d, offset = model.config.d_model - centered, 0 if model.config.positions == "rotary" else None
    layers = _layers(model, centered, offset, progress)
    labels = tuple(head.label for head in model.heads)
    q, k, v = _all_pairs(layers, _kernel, d).values()
    return ProjectionKernel(model.name, labels, q, k, v, d, centered)


@dataclass(frozen=True)
class NullComparison:
    """An edge with its p against each null."""

    edge: Annotated[Site, text_column("edge")]
    score: Annotated[float, Column("score")]
    z: Annotated[float, Column("z", "+.1f")]
    p: Annotated[float, ProbabilityColumn()]
    permuted: Annotated[float, ProbabilityColumn("permuted", ".2g")]
    twin: Annotated[float, ProbabilityColumn("twin", ".2g")]
    direction: Annotated[float, Column("direction")]
    p_direction: Annotated[float, ProbabilityColumn("p of it")]


@dataclass(frozen=True, eq=False)
class EmpiricalComposition(Record, kind="empirical-composition"):
    """Composition of all pairs of heads against three nulls; see `empirical_composition`.

    `composed`   against random rotations: the result of `composition`
    `permuted`   p is the share of (head of the writer's layer, head of the reader's layer) whose
                 directions, in place of these two heads' own, score at least as much; the pair
                 itself counts, so p is never less than one over their number. NaN where all give
                 the same score
    `twin`       p is the share of the edges of untrained twins that score at least as much
    `direction`  the written direction v with the largest ‖v M‖ / ‖M‖, against random rotations

    `shown` are the edges of its table, by default the twenty of `composed` with the largest z.
    """

    model: str
    composed: Composition
    permuted: Composition
    twin: Composition
    direction: Composition
    shown: tuple[ScoredEdge, ...]
    twins: int
    notes: tuple[str, ...]

    def to_table(self) -> Table:
        """One row per edge of `shown`."""
        rows: list[NullComparison] = []
        for one in self.shown:
            name = one.writer, one.reader, one.kind
            permuted, twin, best = self.permuted[name], self.twin[name], self.direction[name]
            tried = self.direction.scores(one.kind).tried
            place = (*map(self.composed.heads.index, (one.writer, one.reader)),)
            least = LEAST_FITTED * (1.0 if tried is None else float(tried[place]))
            rotated = float(self.composed.scores(one.kind).p_rotations[place])
            p = rotated, permuted.p, twin.p, best.score, BoundedP(best.p, least)
            rows.append(NullComparison(one.edge, one.score, one.z, *p))
        legend = (
            f"p: against random rotations; permuted: against directions of other heads of the two "
            f"layers; twin: against the edges of {self.twins} untrained models of this config; "
            "direction: the best written direction alone, its p times the number tried."
        )
        note = "\n".join((legend, MEANING, *self.notes))
        title = f"composition against three nulls, {self.model}"
        return rows_table(rows, title, note, NullComparison)


@torch.no_grad()
def empirical_composition(
    model: Model,
    *,
    center: Center = "auto",
    twins: int = TWINS,
    seed: int = 0,
    progress: Progress = silent,
) -> EmpiricalComposition:
    """Composition of all pairs of heads with two empirical nulls and single directions.

    >>> import pathsum as ps
    >>> found = empirical_composition(ps.construct.induction())
    >>> found.permuted["L0H0", "L1H0", "k"].p  # the best of 2 × 2 pairs of directions
    0.25

    Costs H⁴ sums of d_head² numbers for each pair of layers with H heads, so it is meant for models
    of some hundred heads. A layer of few heads has few permutations: with H heads in each of two
    layers p is at least 1/H².
    """
    if twins < 1:
        raise InputError(f"twins={twins} untrained models were requested; use at least 1")
    composed = composition(model, center=center)
    layers, d = _layers(model, composed.centered, None, progress), composed.dimension
    notes = list(composed.notes)

    permuted, direction = (
        replace(composed, **_all_pairs(layers, measure, d))
        for measure in (_permuted, _best_direction)
    )
    drawn = _twin_squares(model, center, twins, seed)
    against = {kind: _against(composed.scores(kind).score, drawn[kind], 1) for kind in KINDS}
    twin = replace(composed, **against)
    for kind in KINDS:
        alike = ~composed.scores(kind).p.isnan() & permuted.scores(kind).p.isnan()
        if bool(alike.any()):
            notes.append(
                f"{int(alike.sum())} {kind.upper()} edges have no permuted p: the heads of their "
                "layers have the same directions, so exchanging these changes nothing."
            )
    shown = composed.edges(k=20).edges
    return EmpiricalComposition(
        model.name, composed, permuted, twin, direction, shown, twins, tuple(notes)
    )


def _layers(
    model: Model, centered: bool, offset: int | None, progress: Progress
) -> list[dict[str, Directions]]:
    """The written (`"w"`) and read directions of each layer's heads."""
    layers: list[dict[str, Directions]] = []
    for layer in range(model.config.n_layers):
        progress(layer, model.config.n_layers, "singular directions")
        heads = [head for head in model.heads if head.id.layer == layer]
        factors = {"w": [write_factor(head, centered) for head in heads]}
        for kind in KINDS:
            factors[kind] = [read_factor(head, kind, centered, offset) for head in heads]
        dtype = model.weights.dtype
        layers.append({name: Directions.of(each, dtype) for name, each in factors.items()})
    progress(model.config.n_layers, model.config.n_layers, "singular directions")
    return layers


def _all_pairs(
    layers: Sequence[dict[str, Directions]],
    measure: Callable[[Directions, Directions, int], PairScores],
    d: int,
) -> dict[CompositionKind, PairScores]:
    """A measure of the heads of two layers, for each two layers and each kind."""
    n = len(layers[0]["w"].shares) if layers else 0
    every: dict[CompositionKind, PairScores] = {}
    for kind in KINDS:
        # All but p_axes, which these measures do not have.
        shape = len(fields(PairScores)) - 1, n * len(layers), n * len(layers)
        table = PairScores(*torch.full(shape, torch.nan, dtype=torch.float64))
        for writer, reader in combinations(range(len(layers)), 2):
            found = measure(layers[writer]["w"], layers[reader][kind], d)
            block = slice(writer * n, writer * n + n), slice(reader * n, reader * n + n)
            for name, part in vars(found).items():
                if part is not None:
                    getattr(table, name)[block] = part
        every[kind] = table
    return every


def _squared_cosines(own: Directions, read: Directions) -> Float[Tensor, "writer reader i j"]:
    return torch.einsum("aid,cjd->acij", own.basis, read.basis).square()


def _composed(own: Directions, read: Directions, d: int) -> PairScores:
    """The composition score: squared cosines weighted by both shares."""
    cosines = _squared_cosines(own, read)
    square = torch.einsum("ai,acij,cj->ac", own.shares, cosines, read.shares)
    null = unit_null(own.moments[:, None], read.moments[None, :], d)
    return PairScores.from_rotations(square, null)


def _kernel(own: Directions, read: Directions, d: int) -> PairScores:
    """Squared cosines with equal weights: the projection kernel."""
    found = _composed(own.uniform, read.uniform, d)
    larger = torch.maximum(own.ranks[:, None], read.ranks)
    score = found.score.square() * larger
    return replace(found, score=score, excess=score - larger / d)


def _best_direction(own: Directions, read: Directions, d: int) -> PairScores:
    """The written direction that is read most."""
    squares = torch.einsum("acij,cj->aci", _squared_cosines(own, read), read.shares)
    rounding = torch.arange(squares.shape[-1]) >= own.ranks[:, None, None]
    best = squares.masked_fill(rounding, -1.0).max(-1)
    square = torch.where(best.values >= 0, best.values, torch.nan)
    scores = PairScores.from_rotations(square, unit_null(_LINE, read.moments, d))
    tried = own.ranks[:, None].expand_as(square)
    component = torch.where(square.isnan(), torch.nan, best.indices.double())
    return replace(scores, p=(scores.p * tried).clamp(max=1), component=component, tried=tried)


def _permuted(own: Directions, read: Directions, _: int) -> PairScores:
    """The spectra of two heads with the directions of every two heads of their layers."""
    n, there = len(own.shares), ~read.shares.isnan().any(1)
    drawn = torch.empty(n, 0, n, dtype=torch.float64)
    observed = torch.full((n, n), torch.nan, dtype=torch.float64)
    for basis in (~own.shares.isnan().any(1)).nonzero().flatten().tolist():
        cosines = torch.einsum("id,cjd->cij", own.basis[basis], read.basis).square()
        # [spectrum of the writer, basis of the reader, spectrum of the reader]
        found = torch.einsum("ai,cij,bj->acb", own.shares, cosines, read.shares)
        observed[basis] = found[basis].diagonal()
        drawn = torch.cat((drawn, found[:, there]), 1)
    return _against(observed.sqrt(), drawn.movedim(1, -1).contiguous().sort().values, 0)


def _against(
    score: Float[Tensor, "w r"], drawn: Float[Tensor, "*pair draws"], itself: int
) -> PairScores:
    """Scores against sorted draws of their square, where these differ.

    `itself` is 1 where the draws do not contain the observed pair, which always counts in p.
    """
    square, mean, count = score.square(), drawn.mean(-1), itself + drawn.shape[-1]
    sd = ((drawn - mean[..., None]).square().mean(-1)).sqrt()
    skewness = ((drawn - mean[..., None]) / sd[..., None]).pow(3).mean(-1)
    below = torch.searchsorted(drawn, square.nan_to_num()[..., None] - _TIE)[..., 0]
    differ = (sd > _TIE) & ~square.isnan()
    parts = ((square - mean) / sd, (count - below.double()) / count, sd, skewness)
    against = (torch.where(differ, part, torch.nan) for part in parts)
    return PairScores(score, score - drawn.sqrt().mean(-1), *against)


def _twin_squares(
    model: Model, center: Center, twins: int, seed: int
) -> dict[CompositionKind, Float[Tensor, " edges"]]:
    """score² of all edges of untrained models, sorted; embeddings are not used and are tiny."""
    config = model.config.replace(d_vocab=2, start_token=None, tied=False)
    each = [composition(random_model(config, seed + twin), center=center) for twin in range(twins)]
    found: dict[CompositionKind, Tensor] = {}
    for kind in KINDS:
        scores = torch.stack([one.scores(kind).score for one in each])
        found[kind] = scores[~scores.isnan()].square().sort().values
    return found
