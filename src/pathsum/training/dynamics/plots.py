"""Line plots in the terminal: dots of braille, eight to a character."""

import math
from collections.abc import Sequence
from itertools import pairwise

from rich.text import Text

WIDE, HIGH = 60, 4
_EMPTY = 0x2800
# The bit of each dot of a braille character, by row and column.
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


def line_plot(
    title: str,
    steps: Sequence[int],
    values: Sequence[float],
    marks: Sequence[float] = (),
    wide: int = WIDE,
    high: int = HIGH,
) -> Text:
    """A curve over log(step), step 0 left out; a mark is an upright line.

    >>> print(line_plot("a step", [1, 10, 100, 1000], [0.0, 0.0, 1.0, 1.0], wide=8, high=2))
    a step
     1.000 ⠀⠀⠀⠀⡰⠉⠉⠉
     0.000 ⣀⣀⣀⠜⠀⠀⠀⠀
           1   1000
    """
    points = [(math.log(s), v) for s, v in zip(steps, values, strict=True) if s > 0 and v == v]
    if len(points) < 2:
        return Text(f"{title}: fewer than two snapshots after step 0")
    left, right = points[0][0], points[-1][0]
    low, high_value = min(v for _, v in points), max(v for _, v in points)
    canvas = _Canvas(wide, high)
    for mark in marks:
        if left <= math.log(mark) <= right:
            canvas.upright((math.log(mark) - left) / (right - left))
    span = high_value - low or 1.0
    canvas.line([((x - left) / (right - left), (v - low) / span) for x, v in points])
    labels = [f"{high_value:6.3f}", *[" " * 6] * (high - 2), f"{low:6.3f}"]
    lines = [title, *(f"{a} {b}" for a, b in zip(labels, canvas.rows(), strict=True))]
    first, last = str(next(s for s in steps if s > 0)), str(steps[-1])
    lines.append(" " * 7 + first + last.rjust(wide - len(first)))
    return Text("\n".join(lines))


class _Canvas:
    """Dots, two columns and four rows to a character."""

    def __init__(self, wide: int, high: int) -> None:
        self.columns, self.dot_rows = 2 * wide, 4 * high
        self.cells = [[_EMPTY] * wide for _ in range(high)]

    def dot(self, column: int, row: int) -> None:
        self.cells[row // 4][column // 2] |= _DOTS[row % 4][column % 2]

    def upright(self, share: float) -> None:
        column = round(share * (self.columns - 1))
        for row in range(0, self.dot_rows, 2):
            self.dot(column, row)

    def line(self, points: Sequence[tuple[float, float]]) -> None:
        """Straight between points; shares of the width, and of the height from below."""
        across, down = self.columns - 1, self.dot_rows - 1
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

    def rows(self) -> list[str]:
        return ["".join(map(chr, row)) for row in self.cells]
