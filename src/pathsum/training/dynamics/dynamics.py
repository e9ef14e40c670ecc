"""`dynamics`: how heads and circuits form over the snapshots of a training run."""

import math
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.errors import InputError
from pathsum.heads.induction import attention_scores
from pathsum.heads.kinds.kind import ALPHA
from pathsum.heads.kinds.prefix_matching import PREFIX_MATCHING
from pathsum.heads.probe import SEQUENCES as PROBE_SEQUENCES
from pathsum.heads.probe import repeats_probe
from pathsum.model import Model
from pathsum.model.transformer import check_tokens
from pathsum.result import Progress, silent
from pathsum.text.probes import RepeatedTokens
from pathsum.training.checkpoint import RUN, read_run
from pathsum.training.dynamics.curves import Curve, Followed, all_curves, followed
from pathsum.training.dynamics.dynamics_record import Dynamics
from pathsum.training.dynamics.loss_vectors import log_slopes, principal_components
from pathsum.training.dynamics.phase_change import NoChange, PhaseChange, find_change
from pathsum.training.dynamics.snapshot_metrics import Places, SnapshotMetrics, measure_snapshot
from pathsum.training.held_out import held_out_tokens
from pathsum.training.recipe import Recipe
from pathsum.training.run_folder import run_folder
from pathsum.training.snapshots import Snapshot, read_snapshots
from pathsum.training.train import TrainingRun

SEQUENCES = 64
PHASE_CURVE = "prefix matching"


@torch.no_grad()
def dynamics(
    run: str | Path | TrainingRun,
    *,
    tokens: Int[Tensor, "sequence pos"] | None = None,
    sequences: int = SEQUENCES,
    probe_sequences: int = PROBE_SEQUENCES,
    seed: int = 0,
    progress: Progress = silent,
) -> Dynamics:
    """Look at every snapshot of a run: losses, heads, composition; and find the phase change.

    `run` is the folder of a run that kept snapshots, what `train` returned, or the name of a run
    that comes with pathsum. Losses are measured on `sequences` held-out sequences of the run, or on
    `tokens`, for a run whose text is not known; heads on random tokens, repeated, as in `atlas`.

        found = ps.dynamics("runs/two-layer")
        found.phase_change.step, found.phase_change.low, found.phase_change.high

    The phase change is where prefix matching of the best induction head turns from one level to
    another: a logistic in log(step) that beats a straight line, of a head that chance does not
    explain at the end. A run of one layer has none, and `why_none` says so.
    """
    folder = run_folder(run)
    if sequences < 2 or probe_sequences < 2:
        raise InputError(
            f"sequences={sequences} and probe_sequences={probe_sequences}: a standard error needs "
            "at least two of each"
        )
    snapshots = read_snapshots(folder)
    if not snapshots:
        raise InputError(
            f"{folder} has no snapshots, so how it came to be is not known; train with some, "
            "--set watching.snapshots=20"
        )
    last = snapshots[-1].model
    if tokens is None:
        tokens = held_out_tokens(folder, sequences, progress)
    tokens = check_tokens(last.config, tokens)
    places = Places.of(tokens.shape[1])
    probe = repeats_probe(last, probe_sequences, seed)
    looks: list[SnapshotMetrics] = []
    for number, snapshot in enumerate(snapshots):
        progress(number, len(snapshots), f"step {snapshot.step}")
        looks.append(measure_snapshot(snapshot.model, tokens, probe, places))
    progress(len(snapshots), len(snapshots), "snapshots")
    return _assemble(folder, snapshots, looks, probe, places, seed)


def _assemble(
    folder: Path,
    snapshots: tuple[Snapshot, ...],
    looks: list[SnapshotMetrics],
    probe: RepeatedTokens,
    places: Places,
    seed: int,
) -> Dynamics:
    last = snapshots[-1].model
    steps = tuple(snapshot.step for snapshot in snapshots)
    heads = [head.id for head in last.heads]
    whom = followed(heads, looks[-1])
    curves = all_curves(looks, heads, whom, places)
    found = [_change(steps, curve) for curve in curves if curve.least > 0]
    why_none = _why_none(last, probe, whom, seed)
    phase = next((one for one in found if one.curve == PHASE_CURVE), None)
    if isinstance(phase, NoChange):
        why_none = why_none or phase.why
    changes = tuple(one for one in found if isinstance(one, PhaseChange))
    phase_change = phase if isinstance(phase, PhaseChange) and not why_none else None
    losses = torch.stack([look.losses for look in looks])
    components = principal_components(losses.flatten(1))
    slopes = log_slopes(losses.mean(1))
    context = next(curve.values for curve in curves if curve.name == "in_context")
    edge = None if whom is None or whom.writer is None else (whom.writer, whom.induction)
    return Dynamics(
        run=folder.name,
        steps=steps,
        tokens=_tokens_seen(folder, steps),
        heads=tuple(map(str, heads)),
        curves=curves,
        previous_token=torch.stack([look.previous_token.mean(0) for look in looks]),
        prefix_matching=torch.stack([look.prefix_matching.mean(0) for look in looks]),
        induction=torch.stack([look.induction.mean(0) for look in looks]),
        writer=str(edge[0]) if edge else "",
        reader=str(edge[1]) if edge else "",
        loss_by_index=losses.mean(1),
        slope_index=slopes.index,
        slope=slopes.values,
        pca=components.places,
        pca_explained=components.explained,
        phase_change=phase_change,
        why_none=why_none,
        changes=changes,
        in_context_share=share_within(steps, context, phase_change),
        note=f"{losses.shape[1]} held-out sequences; {len(probe.tokens)} draws of {probe.length} "
        f"random tokens, {probe.repeats} times; in-context learning: {places}.",
        _token_losses=losses,
    )


def _change(steps: tuple[int, ...], curve: Curve) -> PhaseChange | NoChange:
    return find_change(
        steps, curve.values, curve.stderr, curve=curve.title, head=curve.head, least=curve.least
    )


def _why_none(last: Model, probe: RepeatedTokens, whom: Followed | None, seed: int) -> str:
    """Why the last snapshot has no induction head, or nothing if it has one."""
    if whom is None:
        return "the model has no layers, so no position knows of another"
    score = attention_scores(last.trace(probe.tokens), probe, seed=seed)[
        whom.prefix
    ].prefix_matching
    threshold = PREFIX_MATCHING.info.threshold
    if score.passes(threshold, ALPHA):
        return ""
    alone = ", and one layer of heads cannot do it" if last.config.n_layers == 1 else ""
    return (
        f"no head's prefix matching reaches {threshold} with p ≤ {ALPHA} at the last snapshot "
        f"(the best is {score.value:.3f}, of {whom.prefix}){alone}"
    )


def share_within(
    steps: tuple[int, ...], values: Float[Tensor, " step"], change: PhaseChange | None
) -> float:
    """The share of a curve's whole change that falls between a change's begin and end.

    Between snapshots the curve is taken as straight in log(step); step 0 is left out.
    """
    if change is None:
        return math.nan
    kept = [row for row, step in enumerate(steps) if step > 0]
    x = np.log([steps[row] for row in kept])
    y = values[kept].double().numpy()
    whole = float(y[-1] - y[0])
    inside = np.interp(np.log([change.begin, change.end]), x, y)
    return float(inside[1] - inside[0]) / whole if whole else math.nan


def _tokens_seen(folder: Path, steps: tuple[int, ...]) -> tuple[int, ...]:
    if not (folder / RUN).exists():
        return ()
    recipe = Recipe.from_dict(read_run(folder)["recipe"])
    return tuple(step * recipe.batch * recipe.config.n_ctx for step in steps)
