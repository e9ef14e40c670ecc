"""Faithfulness of circuits between whole components, by fraction of edges, over many prompts.

The definitions follow the MIB benchmark. Edges are ranked by |score|, and for 0.1% to 100% of them
the prediction is computed with these edges alone and all others from the corrupted prompts:

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
from pathsum.paths.component_edges import (
    ComponentGraph,
    ComponentRuns,
    EdgeMask,
    EdgeScores,
    component_runs,
    score_matrix,
    strongest,
)
from pathsum.paths.graph import Graph
from pathsum.paths.prompts import LAST, Prompt, name_prompt
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
        for curve in self.rankings:
            if curve.ranking == ranking:
                return curve
        names = ", ".join(curve.ranking for curve in self.rankings)
        raise InputError(f"there is no ranking {ranking!r}; this curve has {names}")

    def to_table(self) -> Table:
        """One size per row."""
        columns = (
            *(Column("edges"), Column("share", ".1%")),
            *(Column(curve.ranking, ".1%") for curve in self.rankings),
        )
        rows: list[tuple[Cell, ...]] = [
            (
                *(int(fraction * self.edges), fraction),
                *(curve.kept[at].value for curve in self.rankings),
            )
            for at, fraction in enumerate(self.fractions)
        ]
        areas = "; ".join(
            f"{curve.ranking}: CPR {curve.cpr:.3f}, CMD {curve.cmd:.3f}" for curve in self.rankings
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

    Args:
        model: The model.
        prompts: Prompts with corrupted partners.
        scores: The ranking of edges: a mapping from names such as `L0H1→L1H4.k` to numbers, or the
            graph of `mean_circuit`, whose edges are summed over positions: |effect| if effects were
            computed, otherwise shares, which cancel where they have opposite signs.
        mlps: Whether MLPs are recomputed or keep their outputs of the clean run ("held").
        position: The position of the prediction, for prompts that do not name one.
        token: The token of the logit, for prompts that do not name one.
        versus: None, "mean" or another token, for prompts that do not name one.
        fractions: The fractions of edges that stay intact.
        steps: The number of steps of EAP-IG.
        seed: The seed of the random ranking.
        progress: Called as the work proceeds.

    Returns:
        The fraction preserved at each size by the given, EAP, EAP-IG and random rankings.

    Example:
        >>> from pathsum.model import construct
        >>> prompts = [Prompt("a b c d a", token="b", corrupted="e b c d a")]
        >>> ranking = {"L1H0→logits": 1.0, "L0H0→L1H0.k": 1.0}
        >>> curve = edge_curve(construct.induction(), prompts, ranking)
        >>> curve.edges, [each.ranking for each in curve.rankings]
        (29, ['given', 'EAP', 'EAP-IG', 'random'])
    """
    mode = parse_option(MlpMode, mlps, "mlps")
    _check(prompts, fractions)
    matrix = None if scores is None else score_matrix(ComponentGraph(model.config), scores)
    runs, hold = list[ComponentRuns](), mode is MlpMode.HELD
    for number, prompt in enumerate(prompts):
        with name_prompt(number):
            runs.append(component_runs(model, prompt, position, token, versus, hold))
    curves = _Curves(runs, sorted(fractions), hold, progress)
    return EdgeCurve(
        model=model.name,
        prompts=len(runs),
        mlps=mode,
        edges=curves.edges,
        clean=mean_estimate(curves.clean),
        corrupted=mean_estimate(curves.corrupted),
        fractions=tuple(curves.fractions),
        rankings=curves.measure(matrix, steps, seed),
    )


def _check(prompts: Sequence[Prompt], fractions: Sequence[float]) -> None:
    if not prompts:
        raise InputError("there are no prompts; give at least one with a corrupted partner")
    if not fractions or not all(0 < fraction <= 1 for fraction in fractions):
        raise InputError(
            f"fractions={list(fractions)} are not shares of edges, above 0 and up to 1"
        )


class _Curves:
    """The predictions of all prompts, and the share of them that each ranking of edges keeps."""

    def __init__(
        self,
        runs: Sequence[ComponentRuns],
        fractions: Sequence[float],
        hold_mlps: bool,
        progress: Progress,
    ) -> None:
        self.runs, self.fractions, self.progress = runs, fractions, progress
        self.graph, self.hold_mlps = runs[0].graph, hold_mlps
        self.edges = int(self.graph.candidates(hold_mlps).sum())
        self.clean = self._values(None)
        self.corrupted = self._values(torch.zeros_like(self.graph.exists))

    def measure(self, scores: EdgeScores | None, steps: int, seed: int) -> tuple[RankingCurve, ...]:
        """The curves of the given scores, of EAP, of EAP-IG and of a random ranking."""
        rankings = {} if scores is None else {"given": scores}
        rankings["EAP"] = self._mean_eap("EAP", None)
        rankings["EAP-IG"] = self._mean_eap("EAP-IG", steps)
        rankings["random"] = torch.rand(self.graph.exists.shape, generator=seeded(seed))
        return tuple(self._curve(*ranking) for ranking in rankings.items())

    def _curve(self, name: str, scores: EdgeScores) -> RankingCurve:
        kept: list[Estimate] = []
        for number, fraction in enumerate(self.fractions):
            self.progress(number, len(self.fractions), f"circuits by {name}")
            count = int(fraction * self.edges)
            values = self._values(strongest(self.graph, scores, count, self.hold_mlps))
            kept.append(ratio(values - self.corrupted, self.clean - self.corrupted))
        f = torch.tensor([estimate.value for estimate in kept], dtype=torch.float64)
        x = torch.tensor(self.fractions, dtype=torch.float64)
        cpr, cmd = torch.trapezoid(f, x), torch.trapezoid((1 - f).abs(), x)
        return RankingCurve(name, tuple(kept), float(cpr), float(cmd))

    def _values(self, edges: EdgeMask | None) -> Float[Tensor, " prompt"]:
        """The predictions with these edges, or with all."""
        return torch.tensor([run.value(edges) for run in self.runs], dtype=torch.float64)

    def _mean_eap(self, name: str, steps: int | None) -> EdgeScores:
        """The mean over prompts of EAP scores, or of EAP-IG scores with steps."""
        scores: list[EdgeScores] = []
        for number, run in enumerate(self.runs):
            self.progress(number, len(self.runs), name)
            scores.append(run.eap(steps).cpu())
        return torch.stack(scores).mean(0)
