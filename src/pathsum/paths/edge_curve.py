"""Faithfulness of circuits between whole components, by fraction of edges, over many prompts.

The definitions are those of the MIB benchmark. Edges are ranked by |score|, and for 0.1% to 100% of
them the prediction is computed with these edges alone, all others from the corrupted prompts:

    f = (value with these edges − corrupted) / (clean − corrupted)
    CPR = ∫ f over the share of edges           how much of the behavior circuits keep: 1 is best
    CMD = ∫ |1 − f| over the share of edges     how far they are from the model itself: 0 is best
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.algebra.rotations import seeded
from pathsum.base import (
    Column,
    Estimate,
    Progress,
    Record,
    Table,
    parse_option,
    silent,
)
from pathsum.base.errors import InputError
from pathsum.base.estimate import mean_estimate, ratio
from pathsum.base.options import checked
from pathsum.base.table import Cell
from pathsum.model import Model
from pathsum.paths.circuit import name_prompt
from pathsum.paths.component_edges import (
    ComponentGraph,
    ComponentRuns,
    EdgeMask,
    EdgeScores,
    component_runs,
    countable,
    given_scores,
    strongest,
)
from pathsum.paths.graph import Graph
from pathsum.paths.prompts import LAST, Prompt
from pathsum.paths.target import TokenName, Versus

FRACTIONS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""The shares of all edges at which MIB measures a circuit."""


class MlpMode(enum.StrEnum):
    """The output of MLPs in a circuit.

    `RECOMPUTED`  their output, given the edges into them; these count as edges of the circuit
    `HELD`        their output in the clean run
    """

    RECOMPUTED = "recomputed"
    HELD = "held"


@dataclass(frozen=True)
class RankingCurve:
    """The curve of one ranking of edges: the share kept at each size, and its two areas."""

    ranking: str
    kept: tuple[Estimate, ...]
    cpr: float
    cmd: float


@dataclass(frozen=True, eq=False)
class EdgeCurve(Record, kind="edge-curve"):
    """The share of predictions that circuits keep, by size, for several rankings of edges.

    `clean` and `corrupted` are the predictions on both kinds of prompts. `fractions` are shares of
    the `edges` that exist. Shares kept are ratios of sums over prompts, with 95% intervals.
    """

    model: str
    prompts: int
    mlps: MlpMode
    edges: int
    clean: Estimate
    corrupted: Estimate
    fractions: tuple[float, ...]
    rankings: tuple[RankingCurve, ...]

    def __getitem__(self, ranking: str) -> RankingCurve:
        """The curve of a ranking by its name."""
        for found in self.rankings:
            if found.ranking == ranking:
                return found
        known = ", ".join(one.ranking for one in self.rankings)
        raise InputError(f"there is no ranking {ranking!r}; this curve has {known}")

    def to_table(self) -> Table:
        """One size per row."""
        columns = (
            *(Column("edges"), Column("share", ".1%")),
            *(Column(one.ranking, ".1%") for one in self.rankings),
        )
        rows: list[tuple[Cell, ...]] = [
            (
                *(int(fraction * self.edges), fraction),
                *(one.kept[at].value for one in self.rankings),
            )
            for at, fraction in enumerate(self.fractions)
        ]
        areas = "; ".join(
            f"{one.ranking}: CPR {one.cpr:.3f}, CMD {one.cmd:.3f}" for one in self.rankings
        )
        note = (
            f"kept: (value − corrupted) / (clean − corrupted) with these edges alone, over "
            f"{self.prompts} prompts; clean {self.clean.value:+.2f}, corrupted "
            f"{self.corrupted.value:+.2f}; MLPs {self.mlps.value}\n{areas}"
        )
        return Table(columns, tuple(rows), f"{self.model}: circuits of n% of edges", note)


@checked
def edge_curve(
    model: Model,
    prompts: Sequence[Prompt],
    scores: Mapping[str, float] | Graph | None = None,
    *,
    mlps: MlpMode | str = MlpMode.RECOMPUTED,
    position: int | str = LAST,
    token: TokenName | None = None,
    versus: Versus = "mean",
    fractions: Sequence[float] = FRACTIONS,
    steps: int = 5,
    seed: int = 0,
    progress: Progress = silent,
) -> EdgeCurve:
    """Measure circuits with n% of the edges between components, on clean/corrupted prompt pairs.

    `scores` ranks edges: a mapping from names such as `L0H1→L1H4.k` to numbers, or the graph of
    `mean_circuit`, whose edges are summed over positions: |effect| if effects were computed, else
    shares, which cancel where they have opposite signs. It is compared with EAP, EAP-IG (`steps`
    steps) and a random ranking, whose scores are means over the same prompts.

    >>> from pathsum.model import construct
    >>> prompts = [Prompt("a b c d a", token="b", corrupted="e b c d a")]
    >>> found = edge_curve(construct.induction(), prompts, {"L1H0→logits": 1.0, "L0H0→L1H0.k": 1.0})
    >>> found.edges, [ranking.ranking for ranking in found.rankings]
    (29, ['given', 'EAP', 'EAP-IG', 'random'])
    """
    mode = parse_option(MlpMode, mlps, "mlps")
    if not prompts:
        raise InputError("there are no prompts; give at least one with a corrupted partner")
    if not fractions or not all(0 < one <= 1 for one in fractions):
        raise InputError(
            f"fractions={list(fractions)} are not shares of edges, above 0 and up to 1"
        )
    fractions = sorted(fractions)
    graph, hold = ComponentGraph(model.config), mode is MlpMode.HELD
    rankings: dict[str, EdgeScores] = {}
    if scores is not None:
        rankings["given"] = given_scores(graph, scores)
    runs = list[ComponentRuns]()
    for number, prompt in enumerate(prompts):
        with name_prompt(number):
            runs.append(component_runs(model, prompt, position, token, versus, hold))
    rankings |= _by_gradients(runs, steps, progress)
    rankings["random"] = torch.rand(graph.exists.shape, generator=seeded(seed))
    total = int(countable(graph, hold).sum())
    clean = _values(runs, None)
    corrupted = _values(runs, torch.zeros_like(graph.exists))

    def measure(name: str, ranked: EdgeScores) -> RankingCurve:
        kept: list[Estimate] = []
        for at, fraction in enumerate(fractions):
            progress(at, len(fractions), f"circuits by {name}")
            values = _values(runs, strongest(graph, ranked, int(fraction * total), hold))
            kept.append(ratio(values - corrupted, clean - corrupted))
        f = torch.tensor([one.value for one in kept], dtype=torch.float64)
        shares = torch.tensor(fractions, dtype=torch.float64)
        cpr, cmd = torch.trapezoid(f, shares), torch.trapezoid((1 - f).abs(), shares)
        return RankingCurve(name, tuple(kept), float(cpr), float(cmd))

    return EdgeCurve(
        model=model.name,
        prompts=len(runs),
        mlps=mode,
        edges=total,
        clean=mean_estimate(clean),
        corrupted=mean_estimate(corrupted),
        fractions=tuple(fractions),
        rankings=tuple(measure(*ranking) for ranking in rankings.items()),
    )


def _values(runs: Sequence[ComponentRuns], kept: EdgeMask | None) -> Float[Tensor, " prompt"]:
    """The predictions of all prompts with some edges, or with all."""
    return torch.tensor([one.value(kept) for one in runs], dtype=torch.float64)


def _by_gradients(
    runs: Sequence[ComponentRuns], steps: int, progress: Progress
) -> dict[str, EdgeScores]:
    """EAP and EAP-IG scores, as means over prompts."""
    rankings: dict[str, EdgeScores] = {}
    for name, count in (("EAP", None), ("EAP-IG", steps)):
        found: list[EdgeScores] = []
        for number, one in enumerate(runs):
            progress(number, len(runs), name)
            found.append(one.eap(count).cpu())
        rankings[name] = torch.stack(found).mean(0)
    return rankings
