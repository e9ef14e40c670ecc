"""Curves over training, their phase changes, principal components of losses, and slopes.

A phase change is the transition of a curve from one level to another. It is a least-squares fit of
a logistic in log(step),

    y(s) = a + b / (1 + exp(−(log s − μ) / w)).

For each μ, the best width w is taken from a grid, and a and b are exact. The interval of μ follows
from its likelihood profile with unknown noise: all μ whose sum of squares is at most (1 + t²/f)
times the smallest, where t is the two-sided 95% quantile of Student's t with f degrees of freedom.
Snapshots before the first hundredth of the rise only determine the level a, so f is the number of
the other snapshots, less one each for b, μ and w. A jump between two snapshots cannot be located
more precisely than those two, because every μ between them fits equally well. Residuals are assumed
to be independent, and no smaller than the measurement error.
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

MIN_SNAPSHOTS = 6
CENTERS, WIDTHS = 1201, 60
MIN_WIDTH = 0.01
# Twice the log of the Bayes factor that is usually called "very strong".
STRONG = 10.0
# A logistic has made 1/10 and 1/100 of its rise this many widths before its center.
TENTH, HUNDREDTH = math.log(9.0), math.log(99.0)
PLOTTED = ("loss", "in_context", "previous_token", "prefix_matching", "k_composition")
# Nine columns fit into a terminal.
NOT_IN_TABLE = ("k_composition_largest",)
_SHORT = {"in_context": "in context", "k_composition": "K excess", "k_composition_z": "K z"}


@dataclass(frozen=True, eq=False)
class Curve(Record, kind="training-curve"):
    """A number over the snapshots of a run, with its standard error (NaN if unknown).

    `head` is its head or edge, empty for numbers of the whole model. `least` is the smallest rise
    or fall that counts as a change; 0 disables the search for a change.
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
    """The transition of a curve from one level to another at `step`, with its 95% interval.

    `begin` and `end` are the steps at 10% and 90% of the rise. `before` and `after` are the two
    levels. `explained` is the share of the curve's variance that the fit explains, and `evidence`
    the difference of BIC to a straight line in log(step) (above 10 is very strong). `about` notes a
    change that may not be complete at the last step.
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
            ("step", f"{self.step:.0f}, 95% interval {self.low:.0f} to {self.high:.0f}"),
            ("10% to 90% of the rise", f"{self.begin:.0f} to {self.end:.0f}"),
            ("level", f"{self.before:.3f} before, {self.after:.3f} after"),
            ("fit", f"explains {self.explained:.1%}; BIC {self.evidence:.0f} better than a line"),
        )
        return Table((text_column("change of"), prose_column(self.curve)), rows, note=self.about)


@dataclass(frozen=True, eq=False)
class Dynamics(Record, kind="dynamics"):
    """A run over its snapshots, with one row or value per snapshot; see `dynamics`.

    `tokens`             number of predicted tokens; empty if the run's recipe is not known
    `curves`             numbers by name, `run.curve("loss")`; a head score is of the best head at
                         the last snapshot
    `heads`              labels of the columns of `previous_token`, `prefix_matching`, `induction`
    `writer`, `reader`   the edge of the K-composition curves: the best induction head, and the best
                         previous-token head below it; empty if there is none
    `loss_by_index`      mean held-out loss of the token at each index, from 1 on
    `slope`              d loss / d log(index) around `slope_index`
    `pca`                snapshots in the first two principal components of their per-token losses
    `phase_change`       the phase change of prefix matching, or None and the reason in `why_none`;
                         `changes` are the phase changes of all curves
    `in_context_share`   the share of the total change of the in-context-learning score between the
                         phase change's `begin` and `end`; None without a phase change
    `logged_loss`        the training loss at `logged_steps`, from metrics.jsonl
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
        """A curve by name."""
        curves = {curve.name: curve for curve in self.curves}
        if name not in curves:
            near = near_misses(name, curves)
            raise InputError(
                f"there is no curve {name!r}{near} (the curves are {', '.join(curves)})"
            )
        return curves[name]

    def to_table(self) -> Table:
        """One row per snapshot."""
        curves = [curve for curve in self.curves if curve.name not in NOT_IN_TABLE]
        columns = [Column("step")]
        for curve in curves:
            spec = "+.0f" if curve.name.endswith("_z") else ".3f"
            columns.append(Column(_SHORT.get(curve.name, curve.title), spec, curve.unit))
        rows = tuple(
            (step, *(float(curve.values[row]) for curve in curves))
            for row, step in enumerate(self.steps)
        )
        return Table(tuple(columns), rows, f"dynamics of {self.run}", "\n".join(self.remarks()))

    def remarks(self) -> tuple[str, ...]:
        """The results in sentences."""
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
        first_share, second_share = self.pca_explained
        losses = (
            f"Per-token losses: two components explain {first_share:.0%} and {second_share:.0%}."
        )
        return (first, *remarks, losses, self.note)

    def __rich__(self) -> RenderableType:
        lines = [_sparkline(curve, self.steps) for curve in self.curves if curve.name in PLOTTED]
        return stacked(*lines, self.to_table())

    def to_html(self) -> str:
        """The table, because the figure shows the curves."""
        return self.to_table().to_html()


def _sparkline(curve: Curve, steps: Sequence[int]) -> Text:
    """A curve on one line, with a bar per snapshot after step 0."""
    pairs = zip(steps, curve.values.tolist(), strict=True)
    values = [value for step, value in pairs if step > 0 and math.isfinite(value)]
    if len(values) < 2:
        return Text(f"{curve.title}: fewer than two snapshots after step 0")
    low, high = min(values), max(values)
    return Text(f"{curve.title:<22} {sparkline(values, low, high)}  {low:.3f} to {high:.3f}")


@dataclass(frozen=True)
class NoChange:
    """The reason why a curve has no phase change."""

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
    """Fit a logistic, which is a phase change if its rise is large and better than a line.

    `errors` are the standard errors of the values, and `least` is the smallest rise or fall that
    counts. Step 0, which has no logarithm, is omitted.
    """
    at = torch.tensor(steps, dtype=torch.float64)
    usable = (at > 0) & ~values.isnan()
    x, y = at[usable].log(), values[usable].double()
    noise = errors[usable].double().nan_to_num(0.0)
    if len(x) < MIN_SNAPSHOTS:
        return NoChange(
            curve,
            f"{len(x)} snapshots after step 0 are too few to locate a change ({MIN_SNAPSHOTS} are "
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
        + ("; the change may not be complete at the last snapshot" if unfinished else ""),
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
    """The best logistic over a grid of centers and widths, with exact levels."""
    centers = torch.linspace(float(x[0]), float(x[-1]), CENTERS, dtype=torch.float64)
    widest = float(x[-1] - x[0]) / 4
    widths = torch.logspace(math.log10(MIN_WIDTH), math.log10(widest), WIDTHS, dtype=torch.float64)
    shape = torch.sigmoid((x - centers[:, None, None]) / widths[:, None])
    centered = shape - shape.mean(-1, keepdim=True)
    power = centered.square().sum(-1)
    rise = (centered * y).sum(-1) / power.clamp_min(1e-12)
    total = (y - y.mean()).square().sum()
    squares = (total - rise.square() * power).clamp_min(0.0)
    # A logistic that is flat at the snapshots explains nothing.
    squares = torch.where(power > 1e-12, squares, total)
    profile, width = squares.min(1)
    least = float(profile.min())
    # Among equally good centers, take the middle one.
    ties = (profile <= least + 1e-9 * float(total)).nonzero()[:, 0]
    best = int(ties[len(ties) // 2])
    best_width = int(width[best])
    slope = float(rise[best, best_width])
    level = float(y.mean() - slope * shape[best, best_width].mean())
    middle = float(centers[best]), float(widths[best_width])
    return _Fit(centers, profile, *middle, level, slope, least, float(total))


def _interval(fit: _Fit, floor: float, free: int) -> tuple[float, float]:
    reach = student(free) ** 2 / free * max(fit.least, floor)
    # The tolerance treats the narrowest logistic of the grid as a jump.
    centers = fit.centers[fit.profile <= fit.least + reach + 1e-5 * fit.total]
    return float(centers.min()), float(centers.max())


def share_within(
    steps: tuple[int, ...], values: Float[Tensor, " step"], change: PhaseChange | None
) -> float | None:
    """The share of a curve's total change between the begin and end of a phase change.

    Between snapshots, the curve is interpolated linearly in log(step); step 0 is omitted.
    """
    if change is None:
        return None
    at = np.array(steps)
    x, y = np.log(at[at > 0]), values.double().numpy()[at > 0]
    total = float(y[-1] - y[0])
    levels = np.interp(np.log([change.begin, change.end]), x, y)
    return float(levels[1] - levels[0]) / total if total else None


@dataclass(frozen=True, eq=False)
class Components:
    """Snapshots in the plane of their first two principal components, and the variance explained.

    By convention, the first component grows from the first snapshot to the last, and the entry of
    the second with the largest absolute value is positive.
    """

    coordinates: Float[Tensor, "step 2"]
    explained: tuple[float, float]


def principal_components(vectors: Float[Tensor, "step token"]) -> Components:
    """PCA of the per-token losses, one vector per snapshot (a figure of the 2022 paper).

    The coordinates are the eigenvectors of the small matrix of inner products between snapshots,
    times the square roots of its eigenvalues.
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
    """d loss / d log(token index) around each index, one row per snapshot."""

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
        octave = slice(first - 1, 2 * first)
        x = log_index[octave] - log_index[octave].mean()
        values[:, column] = losses[:, octave] @ x / (x @ x)
    return Slopes(tuple(first * 2**0.5 for first in octaves), values)
