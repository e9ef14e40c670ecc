"""`dynamics`: the formation of heads and circuits over the snapshots of a training run.

Held-out losses, head scores on a probe, and K-composition are measured at each snapshot. Curves
over the snapshots are of the best heads at the last snapshot.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

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
from pathsum.heads.score import layer_views
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
)
from pathsum.training.curves import (
    Curve,
    Dynamics,
    PhaseChange,
    find_change,
    log_slopes,
    principal_components,
    share_within,
)
from pathsum.training.metrics import read_metrics
from pathsum.training.train import TrainingRun

SEQUENCES = 64
# The number of tokens averaged at each of the two positions of the in-context-learning score.
WINDOW = 16

# The smallest change that counts: half the threshold of prefix matching for a head's score, 0.1
# nats for a loss, 0.02 above the null for composition.
LEAST_SCORE = PREFIX_MATCHING.info.threshold / 2
LEAST_NATS = 0.1
LEAST_EXCESS = 0.02

SCORES = {
    "previous_token": (PREVIOUS_TOKEN, "previous token", "mean of A[i, i−1]"),
    "prefix_matching": (
        PREFIX_MATCHING,
        "prefix matching",
        "attention to the tokens after earlier copies, summed per query",
    ),
    "induction": (
        INDUCTION_STRIPE,
        "induction stripe",
        "attention in the second copy to the token after its first occurrence",
    ),
}
"""The scores of heads, each with the title of its curve and its definition."""


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

    Args:
        run: The folder of a run with snapshots, the result of `train`, or the name of a bundled
            run.
        tokens: The sequences for the losses; by default, held-out text of the run.
        sequences: The number of held-out sequences.
        probe_sequences: The number of sequences of repeated random tokens, as in `atlas`.
        seed: The seed of the random tokens.
        progress: Called before each snapshot.

    Returns:
        The curves, with the phase change and its interval.

    Example:
        ```python
        found = ps.dynamics("runs/two-layer")
        found.phase_change.step, found.phase_change.low, found.phase_change.high
        ```

    The phase change is the transition of the best head's prefix matching from one level to another:
    a logistic in log(step) that fits better than a straight line, for a head whose final score has
    a small p-value. A one-layer model has no phase change, and `why_none` gives the reason.
    """
    folder = find_run(run.folder if isinstance(run, TrainingRun) else run)
    # A standard error needs two sequences.
    parse_count(sequences, "held-out sequences", "sequences", minimum=2)
    parse_count(probe_sequences, "probe sequences", "probe_sequences", minimum=2)
    snapshots = read_snapshots(folder)
    if not snapshots:
        raise InputError(
            f"{folder} has no snapshots, so its training cannot be followed; train with "
            "snapshots, --set watching.snapshots=20"
        )
    last = snapshots[-1].model
    if tokens is None:
        tokens = held_out_tokens(folder, sequences, progress)
    tokens = check_tokens(last.config, tokens)
    indices = compared_tokens(tokens.shape[1])
    probe = repeats_probe(last, probe_sequences, seed)
    metrics: list[SnapshotMetrics] = []
    for number, snapshot in enumerate(snapshots):
        progress(number, len(snapshots), f"step {snapshot.step}")
        metrics.append(measure_snapshot(snapshot.model, tokens, probe))
    progress(len(snapshots), len(snapshots), "snapshots")
    return _assemble(folder, snapshots, metrics, probe, indices, seed)


def compared_tokens(length: int) -> dict[str, int]:
    """The token indices of the in-context-learning score, as for `late_minus_early`.

    They are 50 and 500, as in the 2022 paper, or have the same ratio in a shorter text.

    >>> compared_tokens(256)
    {'early': 25, 'late': 255, 'window': 16}
    """
    if length < 4:
        raise InputError(
            f"sequences of {length} tokens are too short to compare late with early; use at "
            "least 4 tokens"
        )
    late = min(LATE, length - 1)
    early = max(1, min(EARLY, late // 10))
    return {"early": early, "late": late, "window": min(WINDOW, early)}


@dataclass(frozen=True, eq=False)
class SnapshotMetrics:
    """The metrics of one snapshot; `k_excess` and `k_z` are K-composition [writer, reader]."""

    losses: Float[Tensor, "sequence next"]
    repeat_drop: Estimate
    scores: Mapping[str, Float[Tensor, "draw head"]]
    k_excess: Float[Tensor, "writer reader"]
    k_z: Float[Tensor, "writer reader"]


def measure_snapshot(model: Model, tokens: Tokens, probe: RepeatedTokens) -> SnapshotMetrics:
    """Measure a model with the scores of `heads` and the composition of `circuits`."""
    trace = model.trace(probe.tokens)
    first, second = copy_losses(trace, probe)
    error = math.hypot(first.stderr_or_nan, second.stderr_or_nan)
    views = list(layer_views(trace, probe))
    no_heads = torch.zeros(len(probe.tokens), 0)
    scores = composition(model).k
    return SnapshotMetrics(
        losses=run_losses(model, tokens),
        repeat_drop=Estimate.around(first.value - second.value, error),
        scores={
            name: torch.cat([no_heads, *(score.measure(v).cpu().to(no_heads) for v in views)], 1)
            for name, (score, _, _) in SCORES.items()
        },
        k_excess=scores.excess.cpu(),
        k_z=scores.z.cpu(),
    )


def best_heads(heads: Sequence[HeadId], last: SnapshotMetrics) -> dict[str, HeadId]:
    """The best head of each score at the last snapshot.

    `writer` is the best previous-token head below the best induction head, if there are heads below
    it.
    """

    def best(name: str, candidates: Sequence[HeadId]) -> HeadId:
        mean = dict(zip(heads, last.scores[name].mean(0).tolist(), strict=True))
        return max(candidates, key=lambda head: mean[head])

    heads_by_score = {name: best(name, heads) for name in SCORES if heads}
    below = [head for head in heads if head.layer < heads_by_score["induction"].layer]
    return heads_by_score | ({"writer": best("previous_token", below)} if below else {})


def all_curves(
    snapshots: Sequence[SnapshotMetrics],
    heads: Sequence[HeadId],
    best: Mapping[str, HeadId],
    indices: Mapping[str, int],
) -> tuple[Curve, ...]:
    """All curves of a run."""
    loss = [mean_estimate(at.losses.double().mean(1)) for at in snapshots]
    context = [late_minus_early(at.losses, **indices) for at in snapshots]
    about_context = f"loss at token {indices['late']} minus loss at token {indices['early']}"
    if indices["window"] > 1:
        about_context += f", each a mean over the {indices['window']} tokens up to it"
    drop = [at.repeat_drop for at in snapshots]
    about = "loss on the first copy of random tokens minus loss on the second"
    curves = [
        _curve("loss", "held-out loss", loss, "mean loss of held-out tokens", unit="nats"),
        _curve("in_context", "in-context learning", context, about_context, "nats", LEAST_NATS),
        _curve("repeat_drop", "drop on repeats", drop, about, "nats", LEAST_NATS),
    ]
    for name, (_, title, about) in SCORES.items() if best else ():
        head = best[name]
        column = heads.index(head)
        values = [mean_estimate(at.scores[name][:, column].double()) for at in snapshots]
        about = f"{about}, of {head}, the best at the last snapshot"
        curves.append(_curve(name, title, values, about, "", LEAST_SCORE, head))
    if "writer" in best:
        curves += _edge_curves(snapshots, heads, best["writer"], best["induction"])
    return tuple(curves)


def _edge_curves(
    snapshots: Sequence[SnapshotMetrics], heads: Sequence[HeadId], writer: HeadId, reader: HeadId
) -> list[Curve]:
    cell = heads.index(writer), heads.index(reader)
    edge = str(Site(writer, reader, Side.K))
    excess = [Estimate(float(at.k_excess[cell])) for at in snapshots]
    z = [Estimate(float(at.k_z[cell])) for at in snapshots]
    largest = [Estimate(float(at.k_excess.nan_to_num(-1.0).max())) for at in snapshots]
    name, title = "k_composition", "K-composition"
    about = f"score of {edge} minus 1/√d, the mean under random rotations"
    about_z = f"z of the squared K-composition score of {edge} under random rotations"
    about_largest = "the largest excess of the K-composition score of any two heads"
    return [
        _curve(name, title, excess, about, "", LEAST_EXCESS, edge),
        _curve(f"{name}_z", f"{title} z", z, about_z, head=edge),
        _curve(f"{name}_largest", f"largest {title}", largest, about_largest),
    ]


def _curve(
    name: str,
    title: str,
    estimates: Sequence[Estimate],
    about: str,
    unit: str = "",
    least: float = 0.0,
    head: str = "",
) -> Curve:
    rows = [(estimate.value, estimate.stderr_or_nan) for estimate in estimates]
    values, stderr = torch.tensor(rows, dtype=torch.float64).T
    return Curve(name, title, unit, str(head), values, stderr, least, about)


def _assemble(
    folder: Path,
    snapshots: tuple[Snapshot, ...],
    metrics: list[SnapshotMetrics],
    probe: RepeatedTokens,
    indices: Mapping[str, int],
    seed: int,
) -> Dynamics:
    last = snapshots[-1].model
    steps = tuple(snapshot.step for snapshot in snapshots)
    heads = last.config.every_head
    best = best_heads(heads, metrics[-1])
    curves = all_curves(metrics, heads, best, indices)
    changes = {
        c.name: find_change(steps, c.values, c.stderr, curve=c.title, head=c.head, least=c.least)
        for c in curves
        if c.least > 0
    }
    why_none = _why_none(last, probe, best.get("prefix_matching"), seed)
    phase = changes.get("prefix_matching")
    if not isinstance(phase, PhaseChange):
        why_none = why_none or ("" if phase is None else phase.why)
    phase_change = phase if isinstance(phase, PhaseChange) and not why_none else None
    losses = torch.stack([at.losses for at in metrics])
    components = principal_components(losses.flatten(1))
    slopes = log_slopes(losses.mean(1))
    context = next(curve for curve in curves if curve.name == "in_context")
    scores = {name: torch.stack([at.scores[name].mean(0) for at in metrics]) for name in SCORES}
    lines = [line for line in read_metrics(folder) if isinstance(line.get("loss"), float)]
    recipe = read_recipe(folder) if (folder / RUN).exists() else None
    return Dynamics(
        run=folder.name,
        steps=steps,
        tokens=()
        if recipe is None
        else tuple(step * recipe.batch * recipe.config.n_ctx for step in steps),
        heads=tuple(map(str, heads)),
        curves=curves,
        **scores,
        writer=str(best.get("writer", "")),
        reader=str(best["induction"]) if "writer" in best else "",
        loss_by_index=losses.mean(1),
        slope_index=slopes.index,
        slope=slopes.values,
        pca=components.coordinates,
        pca_explained=components.explained,
        phase_change=phase_change,
        why_none=why_none,
        changes=tuple(change for change in changes.values() if isinstance(change, PhaseChange)),
        in_context_share=share_within(steps, context.values, phase_change),
        note=f"{losses.shape[1]} held-out sequences; {len(probe.tokens)} sequences of "
        f"{probe.length} random tokens, {probe.repeats} times; {context.title}: {context.about}.",
        logged_steps=tuple(line["step"] for line in lines),
        logged_loss=tuple(line["loss"] for line in lines),
        _token_losses=losses,
    )


def _why_none(last: Model, probe: RepeatedTokens, best: HeadId | None, seed: int) -> str:
    """The reason why the last snapshot has no induction head; "" if it has one."""
    if best is None:
        return "the model has no layers of attention heads"
    info = PREFIX_MATCHING.info
    scores = induction_scores(last.trace(probe.tokens), probe, [best], seed=seed)
    score = scores[best][PREFIX_MATCHING.name]
    if score.passes(info.threshold, ALPHA):
        return ""
    depth = "; one layer of heads cannot do it" if last.config.n_layers == 1 else ""
    return (
        f"no head's prefix matching reaches {info.threshold} with p ≤ {ALPHA} at the last snapshot "
        f"(the best is {score.value:.3f}, of {best}){depth}"
    )
