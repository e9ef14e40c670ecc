"""Bars: term importance, and a logit as a waterfall of direct contributions."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pathsum.base.estimate import Estimate
from pathsum.base.sentence import signed
from pathsum.figures.axes import Axis, padded_range, x_axis, zero_line
from pathsum.figures.figure import COLUMN, POINTS, Figure
from pathsum.figures.svg import (
    INK,
    LABEL,
    LINE,
    LOWERS,
    MUTED,
    RAISES,
    SMALL,
    Length,
    Pen,
    Theme,
    clip_text,
    text_width,
)

if TYPE_CHECKING:
    from pathsum.paths.attribution import LogitAttribution
    from pathsum.paths.terms import TermImportance

MARGIN, ROW = 6.0, 11.0
NAME_SHARE = 0.3


def _left(names: Sequence[str], wide: Length) -> float:
    """Where bars begin, to the right of their names."""
    widest = max((text_width(name, LABEL) for name in names), default=0.0)
    return MARGIN + min(widest, NAME_SHARE * wide) + 5


def term_bars(terms: "TermImportance", *, width: Length = COLUMN, theme: Theme = "light") -> Figure:
    """How much the paths of each order reduce the loss, with 95% intervals over sequences.

    Below the orders, each set of terms (a layer, a head, a virtual head) given all others.

    Args:
        terms: From `ps.term_importance(model, …)`.
        width: In inches.
        theme: "light" or "dark".
    """
    orders = [("direct path", terms.gain_estimates[0])] if terms.gain_estimates else []
    for order, gain in enumerate(terms.gain_estimates[1:], start=1):
        orders.append((f"order {order}: {order} head{'s' if order > 1 else ''}", gain))
    sets = [(each.name, each.given_others) for each in terms.sets]
    pen, wide = Pen(theme), width * POINTS
    left = _left([name for name, _ in (*orders, *sets)], wide)
    ends = [x for _, e in (*orders, *sets) for x in (e.value, e.low, e.high) if x is not None]
    axis = Axis(*padded_range(ends, include=0.0), left, wide - MARGIN - 22)
    body = [pen.title(f"term importance of {terms.model}", wide)]
    y = MARGIN + 14.0
    start = y
    for title, rows in (("", orders), ("given all other terms", sets)):
        if title and rows:
            y += 4
            body.append(pen.text((left, y + 7), title, SMALL, color=pen.of(MUTED)))
            y += ROW
        for name, gain in rows:
            body.append(_bar(pen, axis, name, gain, y))
            y += ROW
    body.insert(1, zero_line(pen, [(axis(0), start), (axis(0), y)]))
    label = f"reduction of the loss ({terms.unit})"
    body.append(x_axis(pen, axis, y + 2, label, count=4))
    title = f"term importance of {terms.model}"
    return Figure(title, "".join(body), width, (y + 22 + MARGIN) / POINTS, theme)


def _bar(pen: Pen, axis: Axis, name: str, value: Estimate, y: Length) -> str:
    color = pen.of(RAISES if value.value >= 0 else LOWERS)
    ends = sorted((axis(0.0), axis(value.value)))
    parts = [
        pen.text(
            (axis.start - 5, y + 7.3),
            clip_text(name, axis.start - MARGIN, LABEL),
            LABEL,
            anchor="end",
        ),
        pen.rect((ends[0], y + 1.5), (ends[1] - ends[0], ROW - 3), color, opacity=0.85),
    ]
    reach = ends[1]
    if value.low is not None and value.high is not None:
        low, high = axis(value.low), axis(value.high)
        parts.append(pen.line([(low, y + ROW / 2), (high, y + ROW / 2)], pen.of(INK), 0.8))
        reach = max(reach, high)
    number = f"{value.value:.2f}".replace("-", "−")
    parts.append(pen.text((reach + 3, y + 7.3), number, SMALL, color=pen.of(MUTED)))
    return "".join(parts)


def logit_waterfall(
    toward: "LogitAttribution", *, k: int = 10, width: Length = COLUMN, theme: Theme = "light"
) -> Figure:
    """A logit as a sum of direct contributions: each bar begins where the one above ends.

    Args:
        toward: From `trace.paths().toward(…)`.
        k: Contributions shown one by one, the largest first; the others are one bar.
        width: In inches.
        theme: "light" or "dark".
    """
    ranked = [(str(name), value) for name, value in toward.by_last.ranked()]
    shown, others = ranked[:k], ranked[k:]
    if others:
        shown.append((f"{len(others)} others", sum(value for _, value in others)))
    pen, wide = Pen(theme), width * POINTS
    sums, total = [0.0], 0.0
    for _, value in shown:
        total += value
        sums.append(total)
    left = _left([name for name, _ in shown] + ["total"], wide)
    axis = Axis(*padded_range(sums, include=0.0), left, wide - MARGIN - 24)
    top = MARGIN + 14.0
    body = [
        pen.title(toward.question, wide),
        zero_line(pen, [(axis(0), top), (axis(0), top + ROW * (len(shown) + 1))]),
    ]
    rows = [
        (name, value, sums[at], RAISES if value >= 0 else LOWERS)
        for at, (name, value) in enumerate(shown)
    ]
    rows.append(("total", total, 0.0, INK))
    for row, (name, value, begin, style) in enumerate(rows):
        y = top + row * ROW
        ends = sorted((axis(begin), axis(begin + value)))
        body.append(pen.text((left - 5, y + 7.3), name, LABEL, anchor="end"))
        size = (max(ends[1] - ends[0], 0.5), ROW - 3)
        body.append(pen.rect((ends[0], y + 1.5), size, pen.of(style), opacity=0.85))
        if row + 1 < len(rows) - 1:
            at = axis(begin + value)
            body.append(pen.line([(at, y + ROW - 1.5), (at, y + ROW + 1.5)], pen.of(LINE)))
        at = (ends[1] + 3, y + 7.3)
        body.append(pen.text(at, signed(value), SMALL, color=pen.of(MUTED)))
    bottom = top + ROW * len(rows) + 2
    body.append(x_axis(pen, axis, bottom, "logits", count=4))
    return Figure(toward.question, "".join(body), width, (bottom + 20 + MARGIN) / POINTS, theme)
