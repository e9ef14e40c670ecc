"""Dynamics: the result of `dynamics`, with its tables, sentences and plots in a terminal."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from jaxtyping import Float
from rich.console import Group, RenderableType
from rich.text import Text
from torch import Tensor

from pathsum.base import Column, Record, Table
from pathsum.base.errors import InputError, near_misses
from pathsum.training.curves import Curve, PhaseChange

PLOTTED = ("loss", "in_context", "previous_token", "prefix_matching", "k_composition")
# Nine columns fit a terminal; the largest composition of any pair is only in the record.
NOT_IN_TABLE = ("k_composition_largest",)
_SHORT = {"in_context": "in context", "k_composition": "K excess", "k_composition_z": "K z"}
COLUMNS, ROWS = 60, 4
_BLANK = 0x2800
# The bit of each dot of a braille character, by row and column.
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


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
        for curve in self.curves:
            if curve.name == name:
                return curve
        known = [curve.name for curve in self.curves]
        raise InputError(
            f"there is no curve {name!r}{near_misses(name, known)} "
            f"(the curves are {', '.join(known)})"
        )

    def to_table(self) -> Table:
        """One row per snapshot."""
        shown = [curve for curve in self.curves if curve.name not in NOT_IN_TABLE]
        columns = (Column("step"), *(_column(curve) for curve in shown))
        rows = tuple(
            (step, *(float(curve.values[row]) for curve in shown))
            for row, step in enumerate(self.steps)
        )
        return Table(columns, rows, f"dynamics of {self.run}", "\n".join(self.remarks()))

    def remarks(self) -> tuple[str, ...]:
        """The findings, in sentences."""
        remarks = [self._phase_change_text()]
        remarks += [
            f"{change.curve}: {change.before:.2f} to {change.after:.2f} at step "
            f"{change.step:.0f} [{change.low:.0f}, {change.high:.0f}]."
            for change in self.changes
            if change is not self.phase_change
        ]
        if self.in_context_share is not None:
            remarks.append(
                f"{self.in_context_share:.0%} of the change of the in-context-learning score falls "
                "within the phase change."
            )
        remarks.append(
            f"Per-token losses: two components explain {self.pca_explained[0]:.0%} and "
            f"{self.pca_explained[1]:.0%}."
        )
        return (*remarks, self.note)

    def _phase_change_text(self) -> str:
        change = self.phase_change
        if change is None:
            return f"No phase change: {self.why_none}."
        return (
            f"Phase change of this run at step {change.step:.0f} (95% interval of the fit "
            f"{change.low:.0f} to {change.high:.0f}; seeds vary more): {change.curve} of "
            f"{change.head} rises from {change.before:.2f} to {change.after:.2f}, mostly "
            f"between steps {change.begin:.0f} and {change.end:.0f}."
        )

    def __rich__(self) -> RenderableType:
        marks = () if self.phase_change is None else (self.phase_change.step,)
        plots = [
            line_plot(curve.title, self.steps, curve.values.tolist(), marks)
            for curve in self.curves
            if curve.name in PLOTTED
        ]
        spaced: list[RenderableType] = [part for plot in plots for part in (plot, Text())]
        return Group(*spaced, self.to_table())

    def to_html(self) -> str:
        """The table, because the figure shows the curves."""
        return self.to_table().to_html()


def _column(curve: Curve) -> Column:
    spec = "+.0f" if curve.name.endswith("_z") else ".3f"
    return Column(_SHORT.get(curve.name, curve.title), spec, curve.unit)


def line_plot(
    title: str,
    steps: Sequence[int],
    values: Sequence[float],
    marks: Sequence[float] = (),
    columns: int = COLUMNS,
    rows: int = ROWS,
) -> Text:
    """A curve over log(step), without step 0; a mark is a vertical line.

    >>> print(line_plot("a step", [1, 10, 100, 1000], [0.0, 0.0, 1.0, 1.0], columns=8, rows=2))
    a step
     1.000 ⠀⠀⠀⠀⡰⠉⠉⠉
     0.000 ⣀⣀⣀⠜⠀⠀⠀⠀
           1   1000
    """
    points = _over_log_step(steps, values)
    if len(points) < 2:
        return Text(f"{title}: fewer than two snapshots after step 0")
    left, right = points[0][0], points[-1][0]
    low, high = min(v for _, v in points), max(v for _, v in points)
    canvas = _Canvas(columns, rows)
    for mark in marks:
        if left <= math.log(mark) <= right:
            canvas.vertical_line((math.log(mark) - left) / (right - left))
    canvas.line(_scaled(points))
    labels = [f"{high:6.3f}", *[" " * 6] * (rows - 2), f"{low:6.3f}"]
    lines = [title, *(f"{a} {b}" for a, b in zip(labels, canvas.lines(), strict=True))]
    first, last = str(next(s for s in steps if s > 0)), str(steps[-1])
    lines.append(" " * 7 + first + last.rjust(columns - len(first)))
    return Text("\n".join(lines))


def _over_log_step(steps: Sequence[int], values: Sequence[float]) -> list[tuple[float, float]]:
    """The values that exist, over log(step)."""
    return [(math.log(s), v) for s, v in zip(steps, values, strict=True) if s > 0 and v == v]


def _scaled(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points as shares of the ranges that they cover."""
    columns = [[point[axis] for point in points] for axis in (0, 1)]
    lows, spans = [min(c) for c in columns], [(max(c) - min(c)) or 1.0 for c in columns]
    return [((x - lows[0]) / spans[0], (y - lows[1]) / spans[1]) for x, y in points]


class _Canvas:
    """Dots, two columns and four rows per character."""

    def __init__(self, columns: int, rows: int) -> None:
        self.dot_columns, self.dot_rows = 2 * columns, 4 * rows
        self.cells = [[_BLANK] * columns for _ in range(rows)]

    def dot(self, column: int, row: int) -> None:
        self.cells[row // 4][column // 2] |= _DOTS[row % 4][column % 2]

    def vertical_line(self, x: float) -> None:
        column = round(x * (self.dot_columns - 1))
        for row in range(0, self.dot_rows, 2):
            self.dot(column, row)

    def line(self, points: Sequence[tuple[float, float]]) -> None:
        """Straight lines between points given as shares of the width and, from below, height."""
        across, down = self.dot_columns - 1, self.dot_rows - 1
        row = round((1 - points[0][1]) * down)
        for (x0, y0), (x1, y1) in pairwise(points):
            for column in range(round(x0 * across), round(x1 * across) + 1):
                share = (column - x0 * across) / (x1 * across - x0 * across or 1.0)
                height = y0 + min(1.0, max(0.0, share)) * (y1 - y0)
                before, row = row, round((1 - height) * down)
                # A steep line passes through every row between.
                step = 1 if row >= before else -1
                for passed in (row, *range(before + step, row, step)):
                    self.dot(column, passed)

    def lines(self) -> list[str]:
        return ["".join(map(chr, row)) for row in self.cells]
