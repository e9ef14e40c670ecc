"""Named curves over the snapshots of a run, from what was seen at each of them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.heads.kinds.prefix_matching import PREFIX_MATCHING
from pathsum.model import HeadId
from pathsum.result import Record
from pathsum.result.estimate import ratio
from pathsum.training.dynamics.snapshot_metrics import Places, SnapshotMetrics

# What counts as a change: of a head's score half the threshold of prefix matching, of a loss 0.1
# nats, of composition 0.02 over chance.
LEAST_SCORE = PREFIX_MATCHING.info.threshold / 2
LEAST_NATS = 0.1
LEAST_EXCESS = 0.02


@dataclass(frozen=True, eq=False)
class Curve(Record, kind="training-curve"):
    """One number over the snapshots of a run, with its standard error (NaN where it has none).

    `head` is the head or the edge that it is of, empty for the model's own numbers. `least` is the
    smallest rise or fall that counts as a change; 0 where changes are not looked for.
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
class Followed:
    """The heads that curves follow: those that are best at the last snapshot.

    `writer` is the best previous-token head below the best induction head; None where nothing is
    below it.
    """

    previous: HeadId
    prefix: HeadId
    induction: HeadId
    writer: HeadId | None


def followed(heads: Sequence[HeadId], last: SnapshotMetrics) -> Followed | None:
    """Whom to follow; None in a model without heads."""
    if not heads:
        return None

    def best(scores: Float[Tensor, "draw head"], among: Sequence[HeadId]) -> HeadId:
        mean = dict(zip(heads, scores.mean(0).tolist(), strict=True))
        return max(among, key=lambda head: mean[head])

    induction = best(last.induction, heads)
    below = [head for head in heads if head.layer < induction.layer]
    return Followed(
        previous=best(last.previous_token, heads),
        prefix=best(last.prefix_matching, heads),
        induction=induction,
        writer=best(last.previous_token, below) if below else None,
    )


def all_curves(
    looks: Sequence[SnapshotMetrics], heads: Sequence[HeadId], whom: Followed | None, places: Places
) -> tuple[Curve, ...]:
    """Every curve that the model's depth allows."""
    curves = _loss_curves(looks, places)
    if whom is not None:
        curves += _head_curves(looks, heads, whom)
        if whom.writer is not None:
            curves += _edge_curves(looks, heads, whom.writer, whom.induction)
    return tuple(curves)


def _loss_curves(looks: Sequence[SnapshotMetrics], places: Places) -> list[Curve]:
    means = [ratio(look.losses.double().mean(1), torch.ones(len(look.losses))) for look in looks]
    loss = [(mean.value, mean.stderr_or_nan) for mean in means]
    context = [(look.in_context.value, look.in_context.stderr_or_nan) for look in looks]
    drop = [(look.repeat_drop, look.repeat_drop_stderr) for look in looks]
    told = "loss on random tokens the first time minus the second"
    return [
        _curve("loss", "held-out loss", loss, "mean loss of held-out tokens", unit="nats"),
        _curve(
            *("in_context", "in-context learning", context, str(places)),
            unit="nats",
            least=LEAST_NATS,
        ),
        _curve("repeat_drop", "drop on repeats", drop, told, unit="nats", least=LEAST_NATS),
    ]


def _head_curves(
    looks: Sequence[SnapshotMetrics], heads: Sequence[HeadId], whom: Followed
) -> list[Curve]:
    parts = (
        ("previous_token", "previous token", whom.previous, "mean of A[i, i−1]"),
        (
            *("prefix_matching", "prefix matching", whom.prefix),
            "attention to what followed earlier copies, summed for each query",
        ),
        (
            *("induction", "induction stripe", whom.induction),
            "attention in the second copy to what followed in the first",
        ),
    )
    curves: list[Curve] = []
    for name, title, head, what in parts:
        drawn = [getattr(look, name)[:, heads.index(head)].double() for look in looks]
        rows = [(float(one.mean()), float(one.std() / len(one) ** 0.5)) for one in drawn]
        about = f"{what}, of {head}, the best at the last snapshot"
        curves.append(_curve(name, title, rows, about, head=str(head), least=LEAST_SCORE))
    return curves


def _edge_curves(
    looks: Sequence[SnapshotMetrics], heads: Sequence[HeadId], writer: HeadId, reader: HeadId
) -> list[Curve]:
    row, column = heads.index(writer), heads.index(reader)
    edge = f"{writer} → {reader}"
    excess = [(float(look.k_excess[row, column]), math.nan) for look in looks]
    z = [(float(look.k_z[row, column]), math.nan) for look in looks]
    largest = [(float(look.k_excess.nan_to_num(-1.0).max()), math.nan) for look in looks]
    return [
        _curve(
            *("k_composition", "K-composition", excess),
            f"score of {edge} over 1/√d, what a random rotation gives",
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
