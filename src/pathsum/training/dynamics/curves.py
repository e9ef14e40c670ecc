"""Named curves over the snapshots of a run, from the metrics of each snapshot."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.heads.kinds.prefix_matching import PREFIX_MATCHING
from pathsum.names import Edge, HeadId, HeadRead, Side
from pathsum.result import Record
from pathsum.result.estimate import mean_estimate
from pathsum.training.dynamics.snapshot_metrics import ComparedTokens, SnapshotMetrics

# The smallest change that counts: half the threshold of prefix matching for a head's score, 0.1
# nats for a loss, 0.02 above chance for composition.
LEAST_SCORE = PREFIX_MATCHING.info.threshold / 2
LEAST_NATS = 0.1
LEAST_EXCESS = 0.02


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
            *("in_context", "in-context learning", context, str(compared)),
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
            *("k_composition", "K-composition", excess),
            f"score of {edge} minus 1/√d, what a random rotation gives",
            head=edge,
            least=LEAST_EXCESS,
        ),
        _curve(
            *("k_composition_z", "K-composition z", z),
            f"z of the squared K-composition score of {edge} under random rotations",
            head=edge,
        ),
        _curve(
            *("k_composition_largest", "largest K-composition", largest),
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
