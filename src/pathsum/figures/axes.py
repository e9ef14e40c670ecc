"""Axes, ticks, legends and color bars, shared by all figures."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pathsum.figures.svg import (
    INK,
    LABEL,
    LINE,
    MUTED,
    SMALL,
    Length,
    Pen,
    Point,
    Scale,
    Style,
    color_at,
    element,
    text_width,
)

TICK = 2.0


@dataclass(frozen=True)
class Axis:
    """Maps data from `low` … `high` to points from `start` to `end`; `log` on a logarithmic scale.

    >>> Axis(0.0, 2.0, 10.0, 110.0)(0.5)
    35.0
    >>> Axis(1.0, 100.0, 0.0, 50.0, log=True)(10.0)
    25.0
    """

    low: Length
    high: Length
    start: Length
    end: Length
    log: bool = False

    def __call__(self, value: Length) -> float:
        """The place of a value, in points."""
        ends = (self.low, self.high, value)
        low, high, at = (math.log(x) for x in ends) if self.log else ends
        share = (at - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.end - self.start)

    def ticks(self, count: int = 5) -> list[float]:
        """About `count` round numbers between both ends."""
        if self.log:
            decades = range(math.ceil(math.log10(self.low)), math.floor(math.log10(self.high)) + 1)
            return [10.0**power for power in decades]
        step = round_step((self.high - self.low) / max(count, 1))
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [round(step * at, 12) for at in range(first, last + 1)]


def round_step(step: Length) -> float:
    """The smallest of 1, 2, 2.5, 5 times a power of ten that is not below `step`.

    >>> round_step(0.13), round_step(21), round_step(0.0)
    (0.2, 25.0, 1.0)
    """
    if not step > 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(step))
    factor = next(f for f in (1, 2, 2.5, 5, 10) if f * power >= step * (1 - 1e-9))
    return round(factor * power, 12)


def format_tick(value: Length) -> str:
    """A tick's number, with a true minus sign.

    >>> format_tick(-0.50), format_tick(1000.0), format_tick(20000.0)
    ('−0.5', '1,000', '20,000')
    """
    text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.6g}"
    return text.replace("-", "−")


def padded_range(values: Sequence[float], include: Length | None = None) -> Point:
    """The range of finite values with a margin of 5%; it may have to include one more number."""
    known = [value for value in values if math.isfinite(value)]
    if include is not None:
        known.append(include)
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    margin = 0.05 * ((high - low) or abs(high) or 1.0)
    return low - (0.0 if low == include else margin), high + (0.0 if high == include else margin)


def x_axis(pen: Pen, axis: Axis, y: Length, label: str = "", *, count: int = 5) -> str:
    """A horizontal axis with ticks and numbers below it."""
    ink, parts = pen.of(MUTED), [pen.line([(axis.start, y), (axis.end, y)], pen.of(LINE))]
    for value in axis.ticks(count):
        x = axis(value)
        parts.append(pen.line([(x, y), (x, y + TICK)], pen.of(LINE)))
        parts.append(pen.text((x, y + 8), format_tick(value), SMALL, anchor="middle", color=ink))
    if label:
        middle = (axis.start + axis.end) / 2
        parts.append(pen.text((middle, y + 16), label, LABEL, anchor="middle"))
    return "".join(parts)


def y_axis(
    pen: Pen, axis: Axis, x: Length, label: str = "", *, count: int = 4, grid: Length | None = None
) -> str:
    """A vertical axis with numbers on its left; `grid` is where lines across the plot end."""
    ink, parts = pen.of(MUTED), list[str]()
    for value in axis.ticks(count):
        y = axis(value)
        end = x if grid is None else grid
        parts.append(pen.line([(x - TICK, y), (end, y)], pen.of(LINE), 0.4))
        parts.append(pen.text((x - 4, y + 2), format_tick(value), SMALL, anchor="end", color=ink))
    if label:
        parts.append(vertical_label(pen, (8.0, (axis.start + axis.end) / 2), label))
    return "".join(parts)


def vertical_label(pen: Pen, at: Point, label: str) -> str:
    """A label that reads upward, centered at a point."""
    return pen.text(at, label, LABEL, anchor="middle", turn=-90)


def color_bar(pen: Pen, at: Point, width: Length, scale: Scale, extent: Length, label: str) -> str:
    """A horizontal color scale with its ends and its label, 12 points high."""
    x, y = at
    low = 0.0 if scale == "sequential" else -1.0
    steps = 24
    cells = "".join(
        element(
            "rect",
            x=x + width * step / steps,
            y=y,
            width=width / steps + 0.2,
            height=4,
            fill=color_at(low + (1 - low) * (step + 0.5) / steps, scale, pen.theme),
        )
        for step in range(steps)
    )
    ends = [(x, low * extent), (x + width, extent)]
    if low:
        ends.insert(1, (x + width / 2, 0.0))
    numbers = "".join(
        pen.text((place, y + 10.5), format_tick(float(f"{value:.2g}")), SMALL, anchor="middle")
        for place, value in ends
    )
    frame = pen.rect((x, y), (width, 4), "none", stroke=pen.of(LINE))
    return cells + frame + numbers + pen.text((x - 6, y + 4.5), label, LABEL, anchor="end")


def legend(pen: Pen, at: Point, entries: Sequence[tuple[str, Style]], gap: Length = 10.0) -> str:
    """Line styles with their names, on one row."""
    x, y = at
    parts: list[str] = []
    for name, style in entries:
        parts.append(pen.line([(x, y - 2), (x + 14, y - 2)], pen.of(style), 1.4, style.dash))
        parts.append(pen.text((x + 17, y), name, LABEL))
        x += 17 + text_width(name, LABEL) + gap
    return "".join(parts)


def zero_line(pen: Pen, points: Sequence[Point]) -> str:
    """A thin line that marks zero."""
    return pen.line(points, pen.of(INK), 0.5)
