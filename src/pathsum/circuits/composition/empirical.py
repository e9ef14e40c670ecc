"""Composition against empirical nulls, and the best single direction.

The null of `composition` rotates the stream at random, so a direction that a whole layer shares
makes every edge of it stand out. Two nulls keep such directions:

    permuted   the same spectra with the directions of other heads of the two layers in their place
    twin       untrained models of the same config

A head may also read a single direction of another, which the other directions mask: the best
written direction is scored alone, ‖v M‖ / ‖M‖ with v a singular direction of OV (Merullo et al.).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.algebra.decompositions import thin_svd
from pathsum.algebra.nulls import UnitMoments, unit_null
from pathsum.algebra.subspaces import numerical_rank
from pathsum.base import Column, Progress, Record, Table, silent, text_column
from pathsum.base.arguments import parse_choice
from pathsum.base.errors import InputError
from pathsum.base.p_value import LEAST_FITTED, BoundedP, ProbabilityColumn
from pathsum.circuits.composition.composition import Composition, composition
from pathsum.circuits.composition.edges import MEANING, ScoredEdge
from pathsum.circuits.composition.reads_and_writes import (
    KINDS,
    Center,
    CompositionKind,
    is_centered,
    read_factor,
    write_factor,
)
from pathsum.model import Head, Model, random_model

TWINS = 4
# Squared scores closer than this are equal.
_TIE = 1e-12


@dataclass(frozen=True, eq=False)
class EmpiricalScores:
    """One kind of composition against empirical nulls; row writes, column reads, else NaN.

    `p`            against random rotations, as in `composition`
    `p_permuted`   share of (head of the writer's layer, head of the reader's layer) whose
                   directions, in place of these two heads' own, score at least as much; the pair
                   itself counts, so it is never less than one over their number. NaN where all
                   give the same score
    `p_twin`       share of the edges of untrained twins that score at least as much
    `direction`    ‖v M‖ / ‖M‖ of the written direction v for which it is largest, its number
                   (`component`, 0 the strongest) and `p_direction`, times the number of
                   directions `tried`
    """

    p: Float[Tensor, "head head"]
    p_permuted: Float[Tensor, "head head"]
    p_twin: Float[Tensor, "head head"]
    direction: Float[Tensor, "head head"]
    component: Float[Tensor, "head head"]
    p_direction: Float[Tensor, "head head"]
    tried: Float[Tensor, "head head"]


@dataclass(frozen=True, eq=False)
class EmpiricalComposition(Record, kind="empirical-composition"):
    """Composition of all pairs of heads against three nulls; see `empirical_composition`.

    `shown` are the edges of its table, by default the twenty of `composed` that stand out most.
    """

    model: str
    composed: Composition
    q: EmpiricalScores
    k: EmpiricalScores
    v: EmpiricalScores
    shown: tuple[ScoredEdge, ...]
    twins: int
    notes: tuple[str, ...]

    def scores(self, kind: CompositionKind) -> EmpiricalScores:
        """The scores of one kind: `q`, `k` or `v`."""
        return getattr(self, parse_choice(KINDS, kind, "kind"))

    def to_table(self) -> Table:
        """One row per edge of `shown`."""
        columns = (
            *(text_column("writes"), text_column("reads"), text_column("by"), Column("score")),
            *(Column("z", "+.1f"), ProbabilityColumn(), ProbabilityColumn("permuted", ".2g")),
            *(ProbabilityColumn("twin", ".2g"), Column("direction")),
            ProbabilityColumn("p of it"),
        )
        rows: list[tuple[str | float, ...]] = []
        at = {head: index for index, head in enumerate(self.composed.heads)}
        for edge in self.shown:
            one = self.scores(edge.kind)
            i, j = at[edge.writer], at[edge.reader]
            parts = (one.p_permuted, one.p_twin, one.direction)
            named = (edge.writer, edge.reader, edge.kind.upper())
            least = LEAST_FITTED * float(one.tried[i, j])
            p_direction = BoundedP(float(one.p_direction[i, j]), least)
            others = (*(float(x[i, j]) for x in parts), p_direction)
            rows.append((*named, edge.score, edge.z, edge.p, *others))
        legend = (
            f"p: against random rotations; permuted: against directions of other heads of the two "
            f"layers; twin: against the edges of {self.twins} untrained models of this config; "
            "direction: the best written direction alone, its p times the number tried."
        )
        note = "\n".join((legend, MEANING, *self.notes))
        return Table(columns, tuple(rows), f"composition against three nulls, {self.model}", note)


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
    >>> float(found.k.p_permuted[0, 2])  # the best of 2 × 2 pairs of directions
    0.25

    Costs H⁴ sums of d_head² numbers for each pair of layers with H heads, so it is meant for models
    of some hundred heads. A layer of few heads has few permutations: with H heads in each of two
    layers p is at least 1/H².
    """
    if twins < 1:
        raise InputError(f"twins={twins} untrained models were requested; use at least 1")
    composed = composition(model, center=center)
    centered = is_centered(model.config, center)
    d = model.config.d_model - centered
    layers = _layers(model, centered)
    notes: list[str] = []
    drawn = _twin_squares(model, center, twins, seed)
    found: dict[CompositionKind, EmpiricalScores] = {}
    for number, kind in enumerate(KINDS):
        progress(number, len(KINDS), f"{kind.upper()}-composition")
        permuted, direction, component, p_direction, tried = (
            torch.full_like(composed.q.p, torch.nan) for _ in range(5)
        )
        for reader in range(1, model.config.n_layers):
            for writer in range(reader):
                place = _block(model, writer, reader)
                own, read = layers[writer]["w"], layers[reader][kind]
                permuted[place] = _permuted(own, read)
                direction[place], component[place], p_direction[place] = _best(own, read, d)
                tried[place] = torch.tensor(own.ranks, dtype=tried.dtype)[:, None]
        p = composed.scores(kind).p
        alike = ~p.isnan() & permuted.isnan()
        if bool(alike.any()):
            notes.append(
                f"{int(alike.sum())} {kind.upper()} edges have no permuted p: the heads of their "
                "layers have the same directions, so exchanging these changes nothing."
            )
        twin = _share_at_least(composed.scores(kind).score.square(), drawn[kind])
        found[kind] = EmpiricalScores(p, permuted, twin, direction, component, p_direction, tried)
    progress(len(KINDS), len(KINDS), "composition")
    q, k, v = (found[kind] for kind in KINDS)
    shown, every = composed.edges(k=20).edges, (*composed.notes, *notes)
    return EmpiricalComposition(model.name, composed, q, k, v, shown, twins, every)


@dataclass(frozen=True, eq=False)
class _Directions:
    """Shares of the squared singular values and directions of a layer's writes or reads.

    A head that writes or reads nothing has shares of NaN.
    """

    shares: Float[Tensor, "head r"]
    basis: Float[Tensor, "head r d"]
    ranks: tuple[int, ...]


def _layers(model: Model, centered: bool) -> list[dict[str, _Directions]]:
    layers: list[dict[str, _Directions]] = []
    for layer in range(model.config.n_layers):
        heads = [head for head in model.heads if head.id.layer == layer]
        here = {"w": _directions(heads, [write_factor(head, centered) for head in heads])}
        for kind in KINDS:
            factors = [read_factor(head, kind, centered) for head in heads]
            here[kind] = _directions(heads, factors)
        layers.append(here)
    return layers


def _directions(heads: Sequence[Head], factors: list[Float[Tensor, "r d"]]) -> _Directions:
    _, values, basis = thin_svd(torch.stack(factors))
    squares = values.square()
    shares = squares / squares.sum(-1, keepdim=True)
    dtype = heads[0].model.weights.dtype
    return _Directions(shares.cpu(), basis.cpu(), tuple(numerical_rank(v, dtype) for v in values))


def _block(model: Model, writer: int, reader: int) -> tuple[slice, slice]:
    n = model.config.n_heads
    return slice(writer * n, (writer + 1) * n), slice(reader * n, (reader + 1) * n)


def _permuted(own: _Directions, read: _Directions) -> Float[Tensor, "writer reader"]:
    """The share of pairs of bases that give these spectra at least the score of their own."""
    writers, readers = len(own.shares), len(read.shares)
    above = torch.zeros(writers, readers, dtype=torch.float64)
    least = torch.full((writers, readers), torch.inf, dtype=torch.float64)
    most = -least
    there = torch.zeros((), dtype=torch.float64)
    observed = torch.stack(
        [_scores(own, read, i)[:, range(readers), range(readers)][i] for i in range(writers)]
    )
    for basis in range(writers):
        if own.shares[basis].isnan().any():
            continue
        # [spectrum of the writer, basis of the reader, spectrum of the reader]
        drawn = _scores(own, read, basis)[:, ~read.shares.isnan().any(1)]
        above += (drawn >= observed[:, None] - _TIE).sum(1)
        least = torch.minimum(least, drawn.nan_to_num(nan=torch.inf).amin(1))
        most = torch.maximum(most, drawn.nan_to_num(nan=-torch.inf).amax(1))
        there += drawn.shape[1]
    differ = (most - least > _TIE) & ~observed.isnan()
    return torch.where(differ, above / there.clamp_min(1), torch.nan)


def _scores(
    own: _Directions, read: _Directions, basis: int
) -> Float[Tensor, "writer basis reader"]:
    """score² of every writer's spectrum in one basis, with every reader's spectrum and basis."""
    cosines = torch.einsum("id,cjd->cij", own.basis[basis], read.basis).square()
    return torch.einsum("ai,cij,bj->acb", own.shares, cosines, read.shares)


def _best(
    own: _Directions, read: _Directions, d: int
) -> tuple[Float[Tensor, "w r"], Float[Tensor, "w r"], Float[Tensor, "w r"]]:
    """The best written direction of each pair: its score, its number and its p."""
    parts = torch.einsum("aid,cjd->acij", own.basis, read.basis).square()
    squares = torch.einsum("acij,cj->aci", parts, read.shares)
    for head, rank in enumerate(own.ranks):
        squares[head, :, rank:] = -1.0  # directions of rounding
    best = squares.max(-1)
    silent_head = own.shares.isnan().any(1)[:, None] | read.shares.isnan().any(1)[None]
    line = UnitMoments.of_rank(torch.ones((), dtype=torch.float64))
    null = unit_null(line, UnitMoments.of_shares(read.shares.nan_to_num())[None, :], d)
    tried = torch.tensor(own.ranks, dtype=torch.float64)[:, None]
    p = (null.p(best.values.clamp(min=0)) * tried).clamp(max=1.0)
    nan = torch.tensor(torch.nan, dtype=torch.float64)
    values = best.values.clamp(min=0).sqrt()
    return (
        torch.where(silent_head, nan, values),
        torch.where(silent_head, nan, best.indices.double()),
        torch.where(silent_head, nan, p),
    )


def _twin_squares(
    model: Model, center: Center, twins: int, seed: int
) -> dict[CompositionKind, Float[Tensor, " edges"]]:
    """score² of all edges of untrained models, sorted. Embeddings play no part and are tiny."""
    config = model.config.replace(d_vocab=2, start_token=None, tied=False)
    found: dict[CompositionKind, list[Tensor]] = {kind: [] for kind in KINDS}
    for twin in range(twins):
        composed = composition(random_model(config, seed + twin), center=center)
        for kind in KINDS:
            scores = composed.scores(kind).score
            found[kind].append(scores[~scores.isnan()].square())
    return {kind: torch.cat(parts).sort().values for kind, parts in found.items()}


def _share_at_least(
    values: Float[Tensor, "head head"], drawn: Float[Tensor, " edges"]
) -> Float[Tensor, "head head"]:
    """(1 + number of draws at or above) / (1 + draws), NaN where the value is."""
    above = len(drawn) - torch.searchsorted(drawn, values.nan_to_num() - _TIE)
    return torch.where(values.isnan(), torch.nan, (1.0 + above.double()) / (1 + len(drawn)))
