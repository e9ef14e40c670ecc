"""Curves over the snapshots of a run: what is measured at each snapshot, and curves of it by name.

Measured are held-out losses, head scores on the probe, and K-composition.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.base import Edge, HeadId, HeadRead, Record, Side
from pathsum.base.errors import InputError
from pathsum.base.estimate import Estimate, mean_estimate
from pathsum.base.shapes import Tokens
from pathsum.circuits.composition import composition
from pathsum.heads.in_context_learning import EARLY, LATE, late_minus_early
from pathsum.heads.layer_view import LayerView, layer_views
from pathsum.heads.pattern_scores import INDUCTION_STRIPE, PREFIX_MATCHING, PREVIOUS_TOKEN
from pathsum.heads.probe import copy_losses
from pathsum.heads.score import DataScore
from pathsum.model import Model
from pathsum.model.losses import run_losses
from pathsum.text.probes import RepeatedTokens

# The in-context-learning score averages over this many tokens at each of its two positions.
WINDOW = 16

# The smallest change that counts: half the threshold of prefix matching for a head's score, 0.1
# nats for a loss, 0.02 above chance for composition.
LEAST_SCORE = PREFIX_MATCHING.info.threshold / 2
LEAST_NATS = 0.1
LEAST_EXCESS = 0.02


@dataclass(frozen=True)
class ComparedTokens:
    """The tokens whose losses the in-context-learning score compares."""

    early: int
    late: int
    window: int

    @classmethod
    def of(cls, length: int) -> "ComparedTokens":
        """The 2022 paper's 50 and 500, or the same ratio in a shorter text.

        >>> ComparedTokens.of(256)
        ComparedTokens(early=25, late=255, window=16)
        """
        if length < 4:
            raise InputError(
                f"sequences of {length} tokens are too short to compare late with early; use at "
                "least 4 tokens"
            )
        late = min(LATE, length - 1)
        early = max(1, min(EARLY, late // 10))
        return cls(early, late, min(WINDOW, early))

    def __str__(self) -> str:
        over = "" if self.window == 1 else f", each a mean over the {self.window} tokens up to it"
        return f"loss at token {self.late} minus loss at token {self.early}{over}"


@dataclass(frozen=True, eq=False)
class SnapshotMetrics:
    """The metrics of one snapshot; `k_excess` and `k_z` are K-composition, rows write."""

    losses: Float[Tensor, "sequence next"]
    in_context: Estimate
    repeat_drop: Estimate
    previous_token: Float[Tensor, "draw head"]
    prefix_matching: Float[Tensor, "draw head"]
    induction: Float[Tensor, "draw head"]
    k_excess: Float[Tensor, "writer reader"]
    k_z: Float[Tensor, "writer reader"]


def measure_snapshot(
    model: Model, tokens: Tokens, probe: RepeatedTokens, compared: ComparedTokens
) -> SnapshotMetrics:
    """Measure a model with the scores of `heads` and the composition of `circuits`."""
    losses = run_losses(model, tokens)
    trace = model.trace(probe.tokens)
    first, second = copy_losses(trace, probe)
    views = list(layer_views(trace, probe))
    none = torch.full((len(model.heads), len(model.heads)), torch.nan)
    composed = composition(model).k if model.config.n_layers > 1 else None
    return SnapshotMetrics(
        losses=losses,
        in_context=late_minus_early(
            losses, early=compared.early, late=compared.late, window=compared.window
        ),
        repeat_drop=Estimate.around(
            first.value - second.value, math.hypot(first.stderr_or_nan, second.stderr_or_nan)
        ),
        previous_token=_every_head(PREVIOUS_TOKEN, views, probe),
        prefix_matching=_every_head(PREFIX_MATCHING, views, probe),
        induction=_every_head(INDUCTION_STRIPE, views, probe),
        k_excess=none if composed is None else composed.excess.cpu(),
        k_z=none if composed is None else composed.z.cpu(),
    )


def _every_head(
    score: DataScore, views: list[LayerView], probe: RepeatedTokens
) -> Float[Tensor, "draw head"]:
    none = torch.zeros(len(probe.tokens), 0)
    return torch.cat([none, *(score.measure(view).cpu().to(none) for view in views)], 1)


@dataclass(frozen=True, eq=False)
class Curve(Record, kind="training-curve"):
    """One number over the snapshots of a run, with its standard error (NaN where it has none).

    `head` is the head or edge that it belongs to, empty for numbers of the whole model. `least` is
    the smallest rise or fall that counts as a change; 0 where changes are not searched.
    """

    name: str
    title: str
    unit: str
    head: str
    values: Float[Tensor, " step"]
    stderr: Float[Tensor, " step"]
    least: float
    about: str


@dataclass(frozen=True)
class FollowedHeads:
    """The heads that curves follow: the best ones at the last snapshot.

    `writer` is the best previous-token head below the best induction head; None if there are no
    heads below it.
    """

    previous: HeadId
    prefix: HeadId
    induction: HeadId
    writer: HeadId | None


def heads_to_follow(heads: Sequence[HeadId], last: SnapshotMetrics) -> FollowedHeads | None:
    """The best heads at the last snapshot; None in a model without heads."""
    if not heads:
        return None

    def best(scores: Float[Tensor, "draw head"], among: Sequence[HeadId]) -> HeadId:
        mean = dict(zip(heads, scores.mean(0).tolist(), strict=True))
        return max(among, key=lambda head: mean[head])

    induction = best(last.induction, heads)
    below = [head for head in heads if head.layer < induction.layer]
    return FollowedHeads(
        previous=best(last.previous_token, heads),
        prefix=best(last.prefix_matching, heads),
        induction=induction,
        writer=best(last.previous_token, below) if below else None,
    )


def all_curves(
    snapshots: Sequence[SnapshotMetrics],
    heads: Sequence[HeadId],
    best: FollowedHeads | None,
    compared: ComparedTokens,
) -> tuple[Curve, ...]:
    """Every curve that a model of this depth has."""
    curves = _loss_curves(snapshots, compared)
    if best is not None:
        curves += _head_curves(snapshots, heads, best)
        if best.writer is not None:
            curves += _edge_curves(snapshots, heads, best.writer, best.induction)
    return tuple(curves)


def _loss_curves(snapshots: Sequence[SnapshotMetrics], compared: ComparedTokens) -> list[Curve]:
    means = [mean_estimate(at.losses.double().mean(1)) for at in snapshots]
    loss = [(mean.value, mean.stderr_or_nan) for mean in means]
    context = [(at.in_context.value, at.in_context.stderr_or_nan) for at in snapshots]
    drop = [(at.repeat_drop.value, at.repeat_drop.stderr_or_nan) for at in snapshots]
    about = "loss on the first copy of random tokens minus loss on the second"
    return [
        _curve("loss", "held-out loss", loss, "mean loss of held-out tokens", unit="nats"),
        _curve(
            "in_context",
            "in-context learning",
            context,
            str(compared),
            unit="nats",
            least=LEAST_NATS,
        ),
        _curve("repeat_drop", "drop on repeats", drop, about, unit="nats", least=LEAST_NATS),
    ]


def _head_curves(
    snapshots: Sequence[SnapshotMetrics], heads: Sequence[HeadId], best: FollowedHeads
) -> list[Curve]:
    parts = (
        ("previous_token", "previous token", best.previous, "mean of A[i, i−1]"),
        (
            *("prefix_matching", "prefix matching", best.prefix),
            "attention to what followed earlier copies, summed per query",
        ),
        (
            *("induction", "induction stripe", best.induction),
            "attention in the second copy to what followed in the first",
        ),
    )
    curves: list[Curve] = []
    for name, title, head, what in parts:
        drawn = [getattr(at, name)[:, heads.index(head)].double() for at in snapshots]
        rows = [(float(one.mean()), float(one.std() / len(one) ** 0.5)) for one in drawn]
        about = f"{what}, of {head}, the best at the last snapshot"
        curves.append(_curve(name, title, rows, about, head=str(head), least=LEAST_SCORE))
    return curves


def _edge_curves(
    snapshots: Sequence[SnapshotMetrics], heads: Sequence[HeadId], writer: HeadId, reader: HeadId
) -> list[Curve]:
    row, column = heads.index(writer), heads.index(reader)
    edge = str(Edge(writer, HeadRead(reader, Side.K)))
    excess = [(float(at.k_excess[row, column]), math.nan) for at in snapshots]
    z = [(float(at.k_z[row, column]), math.nan) for at in snapshots]
    largest = [(float(at.k_excess.nan_to_num(-1.0).max()), math.nan) for at in snapshots]
    return [
        _curve(
            "k_composition",
            "K-composition",
            excess,
            f"score of {edge} minus 1/√d, what a random rotation gives",
            head=edge,
            least=LEAST_EXCESS,
        ),
        _curve(
            "k_composition_z",
            "K-composition z",
            z,
            f"z of the squared K-composition score of {edge} under random rotations",
            head=edge,
        ),
        _curve(
            "k_composition_largest",
            "largest K-composition",
            largest,
            "the largest excess of the K-composition score of any two heads",
        ),
    ]


def _curve(
    name: str,
    title: str,
    rows: Sequence[tuple[float, float]],
    about: str,
    *,
    unit: str = "",
    head: str = "",
    least: float = 0.0,
) -> Curve:
    values, stderr = torch.tensor(list(rows), dtype=torch.float64).T
    return Curve(name, title, unit, head, values, stderr, least, about)
