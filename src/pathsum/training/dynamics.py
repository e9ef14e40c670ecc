"""`dynamics`: how heads and circuits form over the snapshots of a training run.

At each snapshot held-out losses, head scores on a probe and K-composition are measured; curves
over the snapshots follow the heads that are best at the last one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.algebra.nulls import ALPHA
from pathsum.base import HeadId, Progress, Side, Site, silent
from pathsum.base.errors import InputError
from pathsum.base.estimate import Estimate, mean_estimate
from pathsum.base.options import checked, parse_count
from pathsum.base.shapes import Tokens
from pathsum.circuits.composition import composition
from pathsum.heads.induction import induction_scores
from pathsum.heads.probe import (
    EARLY,
    INDUCTION_STRIPE,
    LATE,
    PREFIX_MATCHING,
    PREVIOUS_TOKEN,
    copy_losses,
    late_minus_early,
    repeats_probe,
)
from pathsum.heads.probe import SEQUENCES as PROBE_SEQUENCES
from pathsum.heads.score import DataScore, LayerView, layer_views
from pathsum.model import Model
from pathsum.model.losses import run_losses
from pathsum.model.sequences import check_tokens
from pathsum.text.token_pool import RepeatedTokens
from pathsum.training.checkpoint import (
    RUN,
    Snapshot,
    find_run,
    held_out_tokens,
    read_recipe,
    read_snapshots,
    without_snapshots,
)
from pathsum.training.curves import (
    Curve,
    NoChange,
    PhaseChange,
    find_change,
    log_slopes,
    principal_components,
    share_within,
)
from pathsum.training.dynamics_record import Dynamics
from pathsum.training.metrics import read_metrics
from pathsum.training.train import TrainingRun

SEQUENCES = 64
PHASE_CURVE = "prefix matching"
# The in-context-learning score averages over this many tokens at each of its two positions.
WINDOW = 16

# The smallest change that counts: half the threshold of prefix matching for a head's score, 0.1
# nats for a loss, 0.02 above the null for composition.
LEAST_SCORE = PREFIX_MATCHING.info.threshold / 2
LEAST_NATS = 0.1
LEAST_EXCESS = 0.02


@torch.no_grad()
@checked
def dynamics(
    run: str | Path | TrainingRun,
    *,
    tokens: Int[Tensor, "sequence pos"] | None = None,
    sequences: int = SEQUENCES,
    probe_sequences: int = PROBE_SEQUENCES,
    seed: int = 0,
    progress: Progress = silent,
) -> Dynamics:
    """Measure every snapshot of a run (losses, heads, composition) and find the phase change.

    `run` is the folder of a run that saved snapshots, the result of `train`, or the name of a
    bundled run. Losses are measured on `sequences` held-out sequences of the run, or on `tokens`
    for a run whose text is not known; heads on `probe_sequences` sequences of repeated random
    tokens, as in `atlas`.

        found = ps.dynamics("runs/two-layer")
        found.phase_change.step, found.phase_change.low, found.phase_change.high

    The phase change is where prefix matching of the best head turns from one level to another: a
    logistic in log(step) that fits better than a straight line, for a head whose final score has a
    small p-value. A one-layer model has no phase change, and `why_none` gives the reason.
    """
    folder = find_run(run.folder if isinstance(run, TrainingRun) else run)
    # A standard error needs two of each.
    parse_count(sequences, "held-out sequences", "sequences", least=2)
    parse_count(probe_sequences, "probe sequences", "probe_sequences", least=2)
    snapshots = read_snapshots(folder)
    if not snapshots:
        raise without_snapshots(folder)
    last = snapshots[-1].model
    if tokens is None:
        tokens = held_out_tokens(folder, sequences, progress)
    tokens = check_tokens(last.config, tokens)
    compared = ComparedTokens.of(tokens.shape[1])
    probe = repeats_probe(last, probe_sequences, seed)
    measured: list[SnapshotMetrics] = []
    for number, snapshot in enumerate(snapshots):
        progress(number, len(snapshots), f"step {snapshot.step}")
        measured.append(measure_snapshot(snapshot.model, tokens, probe, compared))
    progress(len(snapshots), len(snapshots), "snapshots")
    return _assemble(folder, snapshots, measured, probe, compared, seed)


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
    loss = [mean_estimate(at.losses.double().mean(1)) for at in snapshots]
    context, drop = [at.in_context for at in snapshots], [at.repeat_drop for at in snapshots]
    about = "loss on the first copy of random tokens minus loss on the second"
    nats: dict[str, Any] = {"unit": "nats", "least": LEAST_NATS}
    curves = [
        _curve("loss", "held-out loss", loss, "mean loss of held-out tokens", unit="nats"),
        _curve("in_context", "in-context learning", context, str(compared), **nats),
        _curve("repeat_drop", "drop on repeats", drop, about, **nats),
    ]
    if best is not None:
        curves += _head_curves(snapshots, heads, best)
        if best.writer is not None:
            curves += _edge_curves(snapshots, heads, best.writer, best.induction)
    return tuple(curves)


def _head_curves(
    snapshots: Sequence[SnapshotMetrics], heads: Sequence[HeadId], best: FollowedHeads
) -> list[Curve]:
    earlier = "attention to the tokens after earlier copies, summed per query"
    stripe = "attention in the second copy to the token after its first occurrence"
    curves: list[Curve] = []
    for name, title, head, about in (
        ("previous_token", "previous token", best.previous, "mean of A[i, i−1]"),
        ("prefix_matching", "prefix matching", best.prefix, earlier),
        ("induction", "induction stripe", best.induction, stripe),
    ):
        column = heads.index(head)
        values = [mean_estimate(getattr(at, name)[:, column].double()) for at in snapshots]
        about = f"{about}, of {head}, the best at the last snapshot"
        curves.append(_curve(name, title, values, about, head=str(head), least=LEAST_SCORE))
    return curves


def _edge_curves(
    snapshots: Sequence[SnapshotMetrics], heads: Sequence[HeadId], writer: HeadId, reader: HeadId
) -> list[Curve]:
    row, column = heads.index(writer), heads.index(reader)
    edge = str(Site(writer, reader, Side.K))
    excess = [Estimate(float(at.k_excess[row, column])) for at in snapshots]
    z = [Estimate(float(at.k_z[row, column])) for at in snapshots]
    largest = [Estimate(float(at.k_excess.nan_to_num(-1.0).max())) for at in snapshots]
    return [
        _curve(
            "k_composition",
            "K-composition",
            excess,
            f"score of {edge} minus 1/√d, the mean under random rotations",
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
    estimates: Sequence[Estimate],
    about: str,
    *,
    unit: str = "",
    head: str = "",
    least: float = 0.0,
) -> Curve:
    rows = [(estimate.value, estimate.stderr_or_nan) for estimate in estimates]
    values, stderr = torch.tensor(rows, dtype=torch.float64).T
    return Curve(name, title, unit, head, values, stderr, least, about)


def _assemble(
    folder: Path,
    snapshots: tuple[Snapshot, ...],
    measured: list[SnapshotMetrics],
    probe: RepeatedTokens,
    compared: ComparedTokens,
    seed: int,
) -> Dynamics:
    last = snapshots[-1].model
    steps = tuple(snapshot.step for snapshot in snapshots)
    heads = [head.id for head in last.heads]
    best = heads_to_follow(heads, measured[-1])
    curves = all_curves(measured, heads, best, compared)
    found = [_change(steps, curve) for curve in curves if curve.least > 0]
    why_none = _why_none(last, probe, best, seed)
    phase = next((one for one in found if one.curve == PHASE_CURVE), None)
    if isinstance(phase, NoChange):
        why_none = why_none or phase.why
    changes = tuple(one for one in found if isinstance(one, PhaseChange))
    phase_change = phase if isinstance(phase, PhaseChange) and not why_none else None
    losses = torch.stack([at.losses for at in measured])
    components = principal_components(losses.flatten(1))
    slopes = log_slopes(losses.mean(1))
    context = next(curve.values for curve in curves if curve.name == "in_context")
    edge = None if best is None or best.writer is None else (best.writer, best.induction)
    logged = [line for line in read_metrics(folder) if isinstance(line.get("loss"), float)]
    return Dynamics(
        run=folder.name,
        steps=steps,
        tokens=_tokens_seen(folder, steps),
        heads=tuple(map(str, heads)),
        curves=curves,
        previous_token=torch.stack([at.previous_token.mean(0) for at in measured]),
        prefix_matching=torch.stack([at.prefix_matching.mean(0) for at in measured]),
        induction=torch.stack([at.induction.mean(0) for at in measured]),
        writer=str(edge[0]) if edge else "",
        reader=str(edge[1]) if edge else "",
        loss_by_index=losses.mean(1),
        slope_index=slopes.index,
        slope=slopes.values,
        pca=components.coordinates,
        pca_explained=components.explained,
        phase_change=phase_change,
        why_none=why_none,
        changes=changes,
        in_context_share=share_within(steps, context, phase_change),
        note=f"{losses.shape[1]} held-out sequences; {len(probe.tokens)} sequences of "
        f"{probe.length} random tokens, {probe.repeats} times; in-context learning: {compared}.",
        logged_steps=tuple(line["step"] for line in logged),
        logged_loss=tuple(line["loss"] for line in logged),
        _token_losses=losses,
    )


def _change(steps: tuple[int, ...], curve: Curve) -> PhaseChange | NoChange:
    return find_change(
        steps, curve.values, curve.stderr, curve=curve.title, head=curve.head, least=curve.least
    )


def _why_none(last: Model, probe: RepeatedTokens, best: FollowedHeads | None, seed: int) -> str:
    """Why the last snapshot has no induction head; empty if it has one."""
    if best is None:
        return "the model has no layers, so positions do not see each other"
    trace = last.trace(probe.tokens)
    score = induction_scores(trace, probe, [best.prefix], seed=seed)[best.prefix][
        PREFIX_MATCHING.name
    ]
    threshold = PREFIX_MATCHING.info.threshold
    if score.passes(threshold, ALPHA):
        return ""
    alone = ", and one layer of heads cannot do it" if last.config.n_layers == 1 else ""
    return (
        f"no head's prefix matching reaches {threshold} with p ≤ {ALPHA} at the last snapshot "
        f"(the best is {score.value:.3f}, of {best.prefix}){alone}"
    )


def _tokens_seen(folder: Path, steps: tuple[int, ...]) -> tuple[int, ...]:
    if not (folder / RUN).exists():
        return ()
    recipe = read_recipe(folder)
    return tuple(step * recipe.batch * recipe.config.n_ctx for step in steps)
