"""`dynamics`: how heads and circuits form over the snapshots of a training run."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.algebra.decompositions import eigh
from pathsum.base import Progress, silent
from pathsum.base.arguments import checked
from pathsum.base.errors import InputError
from pathsum.heads.induction import induction_scores
from pathsum.heads.pattern_scores import PREFIX_MATCHING
from pathsum.heads.probe import SEQUENCES as PROBE_SEQUENCES
from pathsum.heads.probe import repeats_probe
from pathsum.heads.score import ALPHA
from pathsum.model import Model
from pathsum.model.sequences import check_tokens
from pathsum.text.probes import RepeatedTokens
from pathsum.training.dynamics.curves import (
    ComparedTokens,
    Curve,
    FollowedHeads,
    SnapshotMetrics,
    all_curves,
    heads_to_follow,
    measure_snapshot,
)
from pathsum.training.dynamics.dynamics_record import Dynamics
from pathsum.training.dynamics.phase_change import NoChange, PhaseChange, find_change
from pathsum.training.run_folder import (
    RUN,
    find_run,
    held_out_tokens,
    read_recipe,
    without_snapshots,
)
from pathsum.training.snapshots import Snapshot, read_snapshots
from pathsum.training.train import TrainingRun

SEQUENCES = 64
PHASE_CURVE = "prefix matching"


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

    `run` is the folder of a run that saved snapshots, what `train` returned, or the name of a
    bundled run. Losses are measured on `sequences` held-out sequences of the run, or on `tokens`
    for a run whose text is not known; heads on `probe_sequences` sequences of repeated random
    tokens, as in `atlas`.

        found = ps.dynamics("runs/two-layer")
        found.phase_change.step, found.phase_change.low, found.phase_change.high

    The phase change is where prefix matching of the best head turns from one level to another: a
    logistic in log(step) that fits better than a straight line, for a head that chance does not
    explain at the end. A one-layer model has none, and `why_none` says so.
    """
    folder = find_run(run.folder if isinstance(run, TrainingRun) else run)
    if sequences < 2 or probe_sequences < 2:
        raise InputError(
            f"sequences={sequences} and probe_sequences={probe_sequences}: a standard error needs "
            "at least two of each"
        )
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
    score = induction_scores(trace, probe, [best.prefix], seed=seed)[best.prefix].prefix_matching
    threshold = PREFIX_MATCHING.info.threshold
    if score.passes(threshold, ALPHA):
        return ""
    alone = ", and one layer of heads cannot do it" if last.config.n_layers == 1 else ""
    return (
        f"no head's prefix matching reaches {threshold} with p ≤ {ALPHA} at the last snapshot "
        f"(the best is {score.value:.3f}, of {best.prefix}){alone}"
    )


def share_within(
    steps: tuple[int, ...], values: Float[Tensor, " step"], change: PhaseChange | None
) -> float | None:
    """The share of a curve's total change that falls between a phase change's begin and end.

    Between snapshots the curve is interpolated linearly in log(step); step 0 is left out.
    """
    if change is None:
        return None
    kept = [row for row, step in enumerate(steps) if step > 0]
    x = np.log([steps[row] for row in kept])
    y = values[kept].double().numpy()
    total = float(y[-1] - y[0])
    inside = np.interp(np.log([change.begin, change.end]), x, y)
    return float(inside[1] - inside[0]) / total if total else None


def _tokens_seen(folder: Path, steps: tuple[int, ...]) -> tuple[int, ...]:
    if not (folder / RUN).exists():
        return ()
    recipe = read_recipe(folder)
    return tuple(step * recipe.batch * recipe.config.n_ctx for step in steps)


@dataclass(frozen=True, eq=False)
class Components:
    """Snapshots in the plane of their first two principal components, and the variance explained.

    Signs are fixed: the first component grows from the first snapshot to the last, and the second
    is positive where it is largest.
    """

    coordinates: Float[Tensor, "step 2"]
    explained: tuple[float, float]


def principal_components(vectors: Float[Tensor, "step token"]) -> Components:
    """PCA of the per-token losses, one vector per snapshot (a figure of the 2022 paper).

    Computed from the small matrix of inner products between snapshots: its eigenvectors times the
    square roots of its eigenvalues are the coordinates.
    """
    centered = (vectors - vectors.mean(0)).double()
    values, axes = eigh(centered @ centered.T)
    values, axes = values.flip(0).clamp_min(0.0), axes.flip(1)
    coordinates = torch.zeros(len(vectors), 2, dtype=torch.float64)
    count = min(2, len(vectors))
    coordinates[:, :count] = axes[:, :count] * values[:count].sqrt()
    if coordinates[-1, 0] < coordinates[0, 0]:
        coordinates[:, 0] *= -1
    if coordinates[coordinates[:, 1].abs().argmax(), 1] < 0:
        coordinates[:, 1] *= -1
    total = max(float(values.sum()), 1e-300)
    shares = [float(value) / total for value in values[:2]] + [0.0, 0.0]
    return Components(coordinates, (shares[0], shares[1]))


@dataclass(frozen=True, eq=False)
class Slopes:
    """d loss / d log(token index) around some indices, one row per snapshot."""

    index: tuple[float, ...]
    values: Float[Tensor, "step index"]


def log_slopes(by_index: Float[Tensor, "step next"]) -> Slopes:
    """The slope of the mean loss in log(token index), per octave.

    Column i is the loss of token i + 1. In each octave [m, 2m] a straight line in log(index) is
    fitted by least squares; its slope is reported at the octave's middle, √2 m. A loss of
    a + b log(index) has slope b everywhere.
    """
    length = by_index.shape[1]
    log_index = torch.arange(1, length + 1, dtype=torch.float64).log()
    losses = by_index.double()
    middles: list[float] = []
    columns: list[Tensor] = []
    first = 2
    while 2 * first <= length:
        inside = slice(first - 1, 2 * first)
        x = log_index[inside] - log_index[inside].mean()
        columns.append(losses[:, inside] @ x / (x @ x))
        middles.append(first * 2**0.5)
        first *= 2
    values = torch.stack(columns, 1) if columns else losses.new_zeros(len(losses), 0)
    return Slopes(tuple(middles), values)
