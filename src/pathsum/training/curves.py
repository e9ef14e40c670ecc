"""Curves over training: the phase change, principal components of losses, slopes in log(index).

The phase change is where a curve turns from one level to another. The fitted model is a logistic
in log(step),

    y(s) = a + b / (1 + exp(−(log s − μ) / w)),

by least squares. For each μ the best width w is taken from a grid, and a and b are exact. The
interval of μ comes from its likelihood profile with unknown noise: every μ whose sum of squares is
at most (1 + t²/f) times the smallest one, t the two-sided 95 % quantile of Student's t with f
degrees of freedom. Snapshots before the first hundredth of the rise determine the level a but not
how well a logistic describes the rise, so f counts the others, less one each for b, μ and w. A step
between two snapshots is located no more precisely than those two: any μ between them fits as well.

Residuals are taken as independent, and as no smaller than the measurement error.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.algebra.decompositions import eigh
from pathsum.base import Record, Table, prose_column, text_column
from pathsum.base.estimate import student

FEWEST = 6
CENTERS, WIDTHS = 1201, 60
NARROWEST = 0.01
# Twice the log of the Bayes factor that is usually called "very strong".
STRONG = 10.0
# Widths before the middle at which a logistic has made a tenth, and a hundredth, of its rise.
TENTH, HUNDREDTH = math.log(9.0), math.log(99.0)


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
    x, y, noise = _usable(steps, values, errors)
    if len(x) < FEWEST:
        return NoChange(
            curve,
            f"{len(x)} snapshots after step 0 are too few to locate a change ({FEWEST} are "
            "needed); train with more, --set watching.snapshots=20",
        )
    spread = float(y.max() - y.min())
    if spread < max(least, 1e-9):
        return NoChange(
            curve,
            f"{curve} stays between {float(y.min()):.3f} and {float(y.max()):.3f} from step "
            f"{steps[-len(x)]} to {steps[-1]}",
        )
    fit = _fit(x, y)
    residual = _line_residual(x, y)
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
        about="a logistic in log(step); the interval is its likelihood profile"
        + ("; the change may not be over at the last snapshot" if unfinished else ""),
    )


@dataclass(frozen=True, eq=False)
class _Fit:
    centers: Float[Tensor, " center"]
    profile: Float[Tensor, " center"]
    center: float
    width: float
    level: float
    rise: float
    least: float
    total: float


def _usable(
    steps: tuple[int, ...], values: Float[Tensor, " step"], errors: Float[Tensor, " step"]
) -> tuple[Tensor, Tensor, Tensor]:
    at = torch.tensor(steps, dtype=torch.float64)
    usable = (at > 0) & ~values.isnan()
    return at[usable].log(), values[usable].double(), errors[usable].double().nan_to_num(0.0)


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
    return _Fit(
        centers=centers,
        profile=profile,
        center=float(centers[best]),
        width=float(widths[chosen]),
        level=level,
        rise=slope,
        least=least,
        total=float(total),
    )


def _interval(fit: _Fit, floor: float, free: int) -> tuple[float, float]:
    reach = student(free) ** 2 / free * max(fit.least, floor)
    # The narrowest logistic of the grid is not quite a step, but counts as one.
    inside = fit.centers[fit.profile <= fit.least + reach + 1e-5 * fit.total]
    return float(inside.min()), float(inside.max())


def _line_residual(x: Float[Tensor, " n"], y: Float[Tensor, " n"]) -> float:
    dx, dy = x - x.mean(), y - y.mean()
    return float((dy - dx * (dx @ dy) / (dx @ dx)).square().sum())


def share_within(
    steps: tuple[int, ...], values: Float[Tensor, " step"], change: PhaseChange | None
) -> float | None:
    """The share of a curve's total change that falls between a phase change's begin and end.

    Between snapshots the curve is interpolated linearly in log(step); step 0 is left out.
    """
    if change is None:
        return None
    rows = [row for row, step in enumerate(steps) if step > 0]
    x = np.log([steps[row] for row in rows])
    y = values[rows].double().numpy()
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
