"""Bars and curves: term importance, a logit as a waterfall, and a training run over its steps."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pathsum.base.estimate import Estimate
from pathsum.base.sentence import signed
from pathsum.figures.figure import (
    COLUMN,
    POINTS,
    Axis,
    Figure,
    NoFigureError,
    padded_range,
    x_axis,
    y_axis,
    zero_line,
)
from pathsum.figures.svg import (
    ACCENT,
    INK,
    LABEL,
    LINE,
    LOWERS,
    MARGIN,
    MUTED,
    RAISES,
    SERIES,
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
    from pathsum.training.dynamics_record import Dynamics


ROW = 11.0
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


LEFT, PANEL, GAP = 30.0, 44.0, 15.0
SHOWN = ("loss", "in_context", "previous_token", "prefix_matching", "k_composition")


def training_curves(
    run: "Dynamics",
    *,
    curves: tuple[str, ...] = SHOWN,
    width: Length = COLUMN,
    theme: Theme = "light",
) -> Figure:
    """Curves of a training run, one panel each, over a logarithmic axis of steps.

    The band is the 95% interval of the phase change, if the run has one.

    Args:
        run: From `ps.dynamics(run)`.
        curves: Names of curves, from the top.
        width: In inches.
        theme: "light" or "dark".
    """
    pen, wide = Pen(theme), width * POINTS
    steps = [step for step in run.steps if step > 0]
    if not steps:
        raise NoFigureError(f"{run.run} has no measurement after step 0, so there is no curve")
    across = Axis(min(steps), max(steps), LEFT, wide - MARGIN - 4, log=True)
    body = [pen.title(f"training of {run.run}", wide)]
    y = MARGIN + 14.0
    end = y + len(curves) * (PANEL + GAP) - 4
    if run.phase_change is not None:
        low, high = (
            across(min(max(step, across.low), across.high))
            for step in (run.phase_change.low, run.phase_change.high)
        )
        size = (max(high - low, 0.8), end - y)
        body.append(pen.rect((low, y), size, pen.of(LOWERS), opacity=0.22))
        text = f"phase change: step {run.phase_change.step:,.0f}"
        at = (wide - MARGIN - 4, MARGIN + 7)
        body.append(pen.text(at, text, SMALL, anchor="end", color=pen.of(LOWERS)))
    for name in curves:
        curve = run.curve(name)
        pairs = zip(run.steps, curve.values.tolist(), strict=True)
        points = [(step, value) for step, value in pairs if step > 0 and math.isfinite(value)]
        up = Axis(*padded_range([value for _, value in points]), y + 10 + PANEL, y + 10)
        unit = f" ({curve.unit})" if curve.unit else ""
        title = f"{curve.title}{unit}" + (f", {curve.head}" if curve.head else "")
        body.append(pen.text((LEFT, y + 7), clip_text(title, wide - LEFT - 8, LABEL), LABEL))
        body.append(y_axis(pen, up, LEFT, count=4, grid=across.end))
        drawn = [(across(step), up(value)) for step, value in points]
        color = pen.of(SERIES[0] if name == "loss" else ACCENT)
        body.append(pen.line(drawn, color, 1.2))
        body.append(pen.line([(LEFT, up.start), (across.end, up.start)], pen.of(LINE)))
        y += PANEL + GAP
    body.append(x_axis(pen, across, end, "training step"))
    muted = pen.of(MUTED)
    last = f"{run.steps[-1]:,}"
    body.append(pen.text((across.end, end + 16), last, SMALL, anchor="end", color=muted))
    height = (end + 20 + MARGIN) / POINTS
    return Figure(f"training of {run.run}", "".join(body), width, height, theme)
