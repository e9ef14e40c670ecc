"""Dynamics: curves over training, their phase change, principal components of losses, slopes.

The phase change is where a curve turns from one level to another. The fitted model is a logistic
in log(step),

    y(s) = a + b / (1 + exp(−(log s − μ) / w)),

by least squares. For each μ the best width w is taken from a grid, and a and b are exact. The
interval of μ comes from its likelihood profile with unknown noise: every μ whose sum of squares is
at most (1 + t²/f) times the smallest one, t the two-sided 95 % quantile of Student's t with f
degrees of freedom. Snapshots before the first hundredth of the rise determine the level a, not how
well a logistic fits, so f counts the others, less one each for b, μ and w. A step between two
snapshots is located no more precisely than those two: any μ between them fits as well. Residuals
are taken as independent, and as no smaller than the measurement error.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from rich.console import RenderableType
from rich.text import Text
from torch import Tensor

from pathsum.algebra.decompositions import eigh
from pathsum.base import Column, Record, Table, prose_column, stacked, text_column
from pathsum.base.errors import InputError, near_misses
from pathsum.base.estimate import student
from pathsum.base.sentence import sparkline

FEWEST = 6
CENTERS, WIDTHS = 1201, 60
NARROWEST = 0.01
# Twice the log of the Bayes factor that is usually called "very strong".
STRONG = 10.0
# Widths before the middle at which a logistic has made a tenth, and a hundredth, of its rise.
TENTH, HUNDREDTH = math.log(9.0), math.log(99.0)
PLOTTED = ("loss", "in_context", "previous_token", "prefix_matching", "k_composition")
# Nine columns fit a terminal; the largest composition of any pair is only in the record.
NOT_IN_TABLE = ("k_composition_largest",)
_SHORT = {"in_context": "in context", "k_composition": "K excess", "k_composition_z": "K z"}


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
class PhaseChange(Record, kind="phase-change"):
    """A curve that turns from one level to another at `step`, with its 95 % interval.

    `begin` and `end` are where the fit has made a tenth and nine tenths of its rise. `before` and
    `after` are its two levels. `explained` is the share of the curve's variance that the fit
    explains, and `evidence` the difference of BIC to a straight line in log(step) (above 10 is very
    strong). `about` notes a change that may not be complete at the last step.
    """

    curve: str
    head: str
    step: float
    low: float
    high: float
    begin: float
    end: float
    before: float
    after: float
    explained: float
    evidence: float
    about: str

    def to_table(self) -> Table:
        """One row per number."""
        rows = (
            ("step", f"{self.step:.0f}, 95 % interval {self.low:.0f} to {self.high:.0f}"),
            ("a tenth to nine tenths", f"{self.begin:.0f} to {self.end:.0f}"),
            ("level", f"{self.before:.3f} before, {self.after:.3f} after"),
            ("fit", f"explains {self.explained:.1%}; {self.evidence:.0f} in BIC over a line"),
        )
        return Table((text_column("change of"), prose_column(self.curve)), rows, note=self.about)


@dataclass(frozen=True, eq=False)
class Dynamics(Record, kind="dynamics"):
    """A run over its snapshots, one row or value per snapshot; see `dynamics`.

    `tokens`             predicted so far; empty where the run's recipe is not known
    `curves`             named numbers over the snapshots, `run.curve("loss")`; a head score is that
                         of the head that is best at the last snapshot
    `heads`              labels of the columns of `previous_token`, `prefix_matching`, `induction`
    `writer`, `reader`   the edge whose K-composition is followed: the best induction head, and the
                         best previous-token head below it; empty where there is none
    `loss_by_index`      mean held-out loss of the token at each index, from 1 on
    `slope`              d loss / d log(index) around `slope_index`
    `pca`                snapshots in the first two principal components of their per-token losses
    `phase_change`       where prefix matching turns from one level to another, or None and
                         `why_none`; `changes` are those of all curves that have one
    `in_context_share`   the share of the total change of the in-context-learning score between the
                         phase change's `begin` and `end`; None where there is none
    `logged_loss`        the training loss at `logged_steps`, as the run wrote it to metrics.jsonl
    """

    run: str
    steps: tuple[int, ...]
    tokens: tuple[int, ...]
    heads: tuple[str, ...]
    curves: tuple[Curve, ...]
    previous_token: Float[Tensor, "step head"]
    prefix_matching: Float[Tensor, "step head"]
    induction: Float[Tensor, "step head"]
    writer: str
    reader: str
    loss_by_index: Float[Tensor, "step next"]
    slope_index: tuple[float, ...]
    slope: Float[Tensor, "step index"]
    pca: Float[Tensor, "step 2"]
    pca_explained: tuple[float, float]
    phase_change: PhaseChange | None
    why_none: str
    changes: tuple[PhaseChange, ...]
    in_context_share: float | None
    note: str
    logged_steps: tuple[int, ...]
    logged_loss: tuple[float, ...]
    _token_losses: Float[Tensor, "step sequence next"]

    @property
    def token_losses(self) -> Float[Tensor, "step sequence next"]:
        """The loss of every held-out token at every snapshot: the vectors of `pca`."""
        return self._token_losses

    def curve(self, name: str) -> Curve:
        """One curve by its name."""
        known = {curve.name: curve for curve in self.curves}
        if name not in known:
            near = near_misses(name, known)
            raise InputError(
                f"there is no curve {name!r}{near} (the curves are {', '.join(known)})"
            )
        return known[name]

    def to_table(self) -> Table:
        """One row per snapshot."""
        shown = [curve for curve in self.curves if curve.name not in NOT_IN_TABLE]
        columns = [Column("step")]
        for curve in shown:
            spec = "+.0f" if curve.name.endswith("_z") else ".3f"
            columns.append(Column(_SHORT.get(curve.name, curve.title), spec, curve.unit))
        rows = tuple(
            (step, *(float(curve.values[row]) for curve in shown))
            for row, step in enumerate(self.steps)
        )
        return Table(tuple(columns), rows, f"dynamics of {self.run}", "\n".join(self.remarks()))

    def remarks(self) -> tuple[str, ...]:
        """The findings, in sentences."""
        main = self.phase_change
        first = f"No phase change: {self.why_none}."
        if main is not None:
            first = (
                f"Phase change of this run at step {main.step:.0f} (95% interval of the fit "
                f"{main.low:.0f} to {main.high:.0f}; seeds vary more): {main.curve} of "
                f"{main.head} rises from {main.before:.2f} to {main.after:.2f}, mostly "
                f"between steps {main.begin:.0f} and {main.end:.0f}."
            )
        remarks = [
            f"{change.curve}: {change.before:.2f} to {change.after:.2f} at step "
            f"{change.step:.0f} [{change.low:.0f}, {change.high:.0f}]."
            for change in self.changes
            if change is not main
        ]
        if self.in_context_share is not None:
            share = f"{self.in_context_share:.0%} of the change of the in-context-learning score"
            remarks.append(f"{share} falls within the phase change.")
        one, two = self.pca_explained
        losses = f"Per-token losses: two components explain {one:.0%} and {two:.0%}."
        return (first, *remarks, losses, self.note)

    def __rich__(self) -> RenderableType:
        lines = [_sparkline(curve, self.steps) for curve in self.curves if curve.name in PLOTTED]
        return stacked(*lines, self.to_table())

    def to_html(self) -> str:
        """The table, because the figure shows the curves."""
        return self.to_table().to_html()


def _sparkline(curve: Curve, steps: Sequence[int]) -> Text:
    """A curve on one line, a bar per snapshot after step 0; these are even in log(step)."""
    pairs = zip(steps, curve.values.tolist(), strict=True)
    known = [value for step, value in pairs if step > 0 and math.isfinite(value)]
    if len(known) < 2:
        return Text(f"{curve.title}: fewer than two snapshots after step 0")
    low, high = min(known), max(known)
    return Text(f"{curve.title:<22} {sparkline(known, low, high)}  {low:.3f} to {high:.3f}")


@dataclass(frozen=True)
class NoChange:
    """Why a curve has no phase change."""

    curve: str
    why: str


def find_change(
    steps: tuple[int, ...],
    values: Float[Tensor, " step"],
    errors: Float[Tensor, " step"],
    *,
    curve: str,
    head: str = "",
    least: float = 0.0,
) -> PhaseChange | NoChange:
    """Fit the logistic and decide whether it is a change: large enough, and not a straight line.

    `errors` are the standard errors of the measurement, `least` the smallest rise or fall that
    counts. Step 0 has no logarithm and is left out.
    """
    at = torch.tensor(steps, dtype=torch.float64)
    usable = (at > 0) & ~values.isnan()
    x, y = at[usable].log(), values[usable].double()
    noise = errors[usable].double().nan_to_num(0.0)
    if len(x) < FEWEST:
        return NoChange(
            curve,
            f"{len(x)} snapshots after step 0 are too few to locate a change ({FEWEST} are "
            "needed); train with more, --set watching.snapshots=20",
        )
    spread = float(y.max() - y.min())
    if spread < max(least, 1e-9):
        reach = f"between {float(y.min()):.3f} and {float(y.max()):.3f}"
        return NoChange(curve, f"{curve} stays {reach} from step {steps[-len(x)]} to {steps[-1]}")
    fit = _fit(x, y)
    dx, dy = x - x.mean(), y - y.mean()
    residual = float((dy - dx * (dx @ dy) / (dx @ dx)).square().sum())
    floor = float(noise.square().mean()) * len(x) + 1e-12 * spread**2 * len(x)
    evidence = len(x) * math.log((residual + floor) / (fit.least + floor)) - 2 * math.log(len(x))
    if abs(fit.rise) < least or evidence < STRONG:
        return NoChange(
            curve,
            f"{curve} goes from {float(y[0]):.3f} to {float(y[-1]):.3f} about as evenly in "
            f"log(step) as a straight line (BIC {evidence:.0f} in favor of a change, "
            f"{STRONG:.0f} needed)",
        )
    informative = int((x > fit.center - HUNDREDTH * fit.width).sum())
    low, high = _interval(fit, floor, free=max(1, informative - 3))
    unfinished = max(high, fit.center + TENTH * fit.width) > float(x[-1]) - 1e-9
    return PhaseChange(
        curve=curve,
        head=head,
        step=math.exp(fit.center),
        low=math.exp(low),
        high=math.exp(high),
        begin=math.exp(fit.center - TENTH * fit.width),
        end=math.exp(fit.center + TENTH * fit.width),
        before=fit.level,
        after=fit.level + fit.rise,
        explained=1 - fit.least / fit.total,
        evidence=evidence,
        about="a logistic in log(step), with a profile-likelihood interval"
        + ("; the change may not be over at the last snapshot" if unfinished else ""),
    )


class _Fit(NamedTuple):
    centers: Float[Tensor, " center"]
    profile: Float[Tensor, " center"]
    center: float
    width: float
    level: float
    rise: float
    least: float
    total: float


def _fit(x: Float[Tensor, " n"], y: Float[Tensor, " n"]) -> _Fit:
    """The sum of squares for every middle and width at once, with exact levels."""
    centers = torch.linspace(float(x[0]), float(x[-1]), CENTERS, dtype=torch.float64)
    widest = float(x[-1] - x[0]) / 4
    widths = torch.logspace(math.log10(NARROWEST), math.log10(widest), WIDTHS, dtype=torch.float64)
    shape = torch.sigmoid((x - centers[:, None, None]) / widths[:, None])
    centered = shape - shape.mean(-1, keepdim=True)
    power = centered.square().sum(-1)
    rise = (centered * y).sum(-1) / power.clamp_min(1e-12)
    total = (y - y.mean()).square().sum()
    squares = (total - rise.square() * power).clamp_min(0.0)
    # A curve that is flat at the snapshots does not explain them.
    squares = torch.where(power > 1e-12, squares, total)
    profile, width = squares.min(1)
    least = float(profile.min())
    # Where several middles fit equally well, take the central one.
    ties = (profile <= least + 1e-9 * float(total)).nonzero()[:, 0]
    best = int(ties[len(ties) // 2])
    chosen = int(width[best])
    slope = float(rise[best, chosen])
    level = float(y.mean() - slope * shape[best, chosen].mean())
    middle = float(centers[best]), float(widths[chosen])
    return _Fit(centers, profile, *middle, level, slope, least, float(total))


def _interval(fit: _Fit, floor: float, free: int) -> tuple[float, float]:
    reach = student(free) ** 2 / free * max(fit.least, floor)
    # The narrowest logistic of the grid is not quite a step, but counts as one.
    inside = fit.centers[fit.profile <= fit.least + reach + 1e-5 * fit.total]
    return float(inside.min()), float(inside.max())


def share_within(
    steps: tuple[int, ...], values: Float[Tensor, " step"], change: PhaseChange | None
) -> float | None:
    """The share of a curve's total change that falls between a phase change's begin and end.

    Between snapshots the curve is interpolated linearly in log(step); step 0 is left out.
    """
    if change is None:
        return None
    at = np.array(steps)
    x, y = np.log(at[at > 0]), values.double().numpy()[at > 0]
    total = float(y[-1] - y[0])
    inside = np.interp(np.log([change.begin, change.end]), x, y)
    return float(inside[1] - inside[0]) / total if total else None


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
    first, second = coordinates.T
    first *= -1 if first[-1] < first[0] else 1
    second *= -1 if second[second.abs().argmax()] < 0 else 1
    shares = [*(values[:2] / values.sum().clamp_min(1e-300)).tolist(), 0.0, 0.0]
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
    length, losses = by_index.shape[1], by_index.double()
    log_index = torch.arange(1, length + 1, dtype=torch.float64).log()
    octaves = [2**power for power in range(1, max(1, length.bit_length() - 1))]
    values = losses.new_zeros(len(losses), len(octaves))
    for column, first in enumerate(octaves):
        inside = slice(first - 1, 2 * first)
        x = log_index[inside] - log_index[inside].mean()
        values[:, column] = losses[:, inside] @ x / (x @ x)
    return Slopes(tuple(first * 2**0.5 for first in octaves), values)
