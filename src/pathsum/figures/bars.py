"""Bars and curves: term importance, a logit as a waterfall, and the curves of a training run."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pathsum.base.estimate import Estimate
from pathsum.base.sentence import signed
from pathsum.figures import svg
from pathsum.figures.figure import (
    Axis,
    Figure,
    NoFigureError,
    padded_range,
    page,
    x_axis,
    y_axis,
)
from pathsum.figures.svg import MARGIN, Length, Pen, Theme, clip_text, text_width

if TYPE_CHECKING:
    from pathsum.paths.attribution import LogitAttribution
    from pathsum.paths.terms import TermImportance
    from pathsum.training.curves import Dynamics


ROW, TOP = 11.0, MARGIN + 14.0
NAME_SHARE = 0.3


def _bar_axis(pen: Pen, names: Sequence[str], ends: Sequence[Length], room: Length) -> Axis:
    """The axis of bars to the right of their names; `room` is for numbers at its end."""
    widest = max((text_width(name, svg.LABEL) for name in names), default=0.0)
    left = MARGIN + min(widest, NAME_SHARE * pen.wide) + 5
    return Axis(*padded_range(ends, include=0.0), left, pen.wide - MARGIN - room)


def _bar(
    pen: Pen,
    y: Length,
    axis: Axis,
    begin: Length,
    end: Length,
    color: svg.Color,
    thin: Length = 0.0,
) -> str:
    """A bar from one value to another, at least `thin` points wide."""
    low, high = sorted((axis(begin), axis(end)))
    return pen.rect((low, y + 1.5), (max(high - low, thin), ROW - 3), color, opacity=0.85)


def term_bars(
    terms: "TermImportance", *, width: Length = svg.COLUMN, theme: Theme = "light"
) -> Figure:
    """The reduction of the loss by the paths of each order, with 95% intervals over sequences.

    Below the orders: each set of terms (a layer, a head, a virtual head) given all others.

    Args:
        terms: From `ps.term_importance(model, …)`.
        width: In inches.
        theme: "light" or "dark".
    """
    orders = [("direct path", terms.gain_estimates[0])] if terms.gain_estimates else []
    for order, gain in enumerate(terms.gain_estimates[1:], start=1):
        orders.append((f"order {order}: {order} head{'s' if order > 1 else ''}", gain))
    sets = [(term.name, term.given_others) for term in terms.sets]
    gains = [*orders, *sets]
    pen = Pen(theme, width)
    ends = [x for _, e in gains for x in (e.value, e.low, e.high) if x is not None]
    axis = _bar_axis(pen, [name for name, _ in gains], ends, 22)
    bars, y = "", TOP
    for title, rows in (("", orders), ("given all other terms", sets)):
        if title and rows:
            bars += pen.note((axis.start, y + 11), title)
            y += ROW + 4
        for name, gain in rows:
            bars += _term_bar(pen, axis, name, gain, y)
            y += ROW
    body = pen.line([(axis(0), TOP), (axis(0), y)], svg.INK, 0.5) + bars
    body += x_axis(pen, axis, y + 2, f"reduction of the loss ({terms.unit})", count=4)
    return page(pen, f"term importance of {terms.model}", body, y + 22)


def _term_bar(pen: Pen, axis: Axis, name: str, gain: Estimate, y: Length) -> str:
    label = clip_text(name, axis.start - MARGIN, svg.LABEL)
    body = pen.text((axis.start - 5, y + 7.3), label, anchor="end")
    body += _bar(pen, y, axis, 0.0, gain.value, svg.RAISES if gain.value >= 0 else svg.LOWERS)
    reach = max(axis(0.0), axis(gain.value))
    if gain.low is not None and gain.high is not None:
        body += pen.line([(axis(end), y + ROW / 2) for end in (gain.low, gain.high)], svg.INK, 0.8)
        reach = max(reach, axis(gain.high))
    return body + pen.note((reach + 3, y + 7.3), f"{gain.value:.2f}".replace("-", "−"))


def logit_waterfall(
    toward: "LogitAttribution", *, k: int = 10, width: Length = svg.COLUMN, theme: Theme = "light"
) -> Figure:
    """A logit as a sum of direct contributions: each bar begins where the one above ends.

    Args:
        toward: From `trace.paths().toward(…)`.
        k: Contributions with their own bars, the largest first; the others share a bar.
        width: In inches.
        theme: "light" or "dark".
    """
    ranked = [(str(name), value) for name, value in toward.by_last.ranked()]
    terms, rest = ranked[:k], ranked[k:]
    if rest:
        terms.append((f"{len(rest)} others", sum(value for _, value in rest)))
    pen = Pen(theme, width)
    rows, sums = (
        [(name, value, svg.RAISES if value >= 0 else svg.LOWERS) for name, value in terms],
        [0.0],
    )
    for _, value in terms:
        sums.append(sums[-1] + value)
    rows.append(("total", sums[-1], svg.INK))
    axis = _bar_axis(pen, [name for name, *_ in rows], sums, 24)
    body = pen.line([(axis(0), TOP), (axis(0), TOP + ROW * len(rows))], svg.INK, 0.5)
    for row, (name, value, style) in enumerate(rows):
        y, begin = TOP + row * ROW, sums[row] if row < len(terms) else 0.0
        body += pen.text((axis.start - 5, y + 7.3), name, anchor="end")
        body += _bar(pen, y, axis, begin, begin + value, style, 0.5)
        at = axis(begin + value)
        if row + 1 < len(terms):
            body += pen.line([(at, y + ROW - 1.5), (at, y + ROW + 1.5)], svg.LINE)
        body += pen.note((max(axis(begin), at) + 3, y + 7.3), signed(value))
    bottom = TOP + ROW * len(rows) + 2
    body += x_axis(pen, axis, bottom, "logits", count=4)
    return page(pen, toward.question, body, bottom + 20)


LEFT, PANEL, GAP = 30.0, 44.0, 15.0
CURVES = ("loss", "in_context", "previous_token", "prefix_matching", "k_composition")


def training_curves(
    run: "Dynamics",
    *,
    curves: tuple[str, ...] = CURVES,
    width: Length = svg.COLUMN,
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
    pen = Pen(theme, width)
    steps = [step for step in run.steps if step > 0]
    if not steps:
        raise NoFigureError(f"{run.run} has no measurement after step 0, so there is no curve")
    right = pen.wide - MARGIN - 4
    across = Axis(min(steps), max(steps), LEFT, right, log=True)
    body, y, end = "", TOP, TOP + len(curves) * (PANEL + GAP) - 4
    change = run.phase_change
    if change is not None:
        low, high = (across(min(max(x, steps[0]), steps[-1])) for x in (change.low, change.high))
        body += pen.rect((low, y), (max(high - low, 0.8), end - y), svg.LOWERS, opacity=0.22)
        text = f"phase change: step {change.step:,.0f}"
        body += pen.note((right, MARGIN + 7), text, "end", svg.LOWERS)
    for name in curves:
        curve = run.curve(name)
        pairs = zip(run.steps, curve.values.tolist(), strict=True)
        points = [(step, value) for step, value in pairs if step > 0 and math.isfinite(value)]
        up = Axis(*padded_range([value for _, value in points]), y + 10 + PANEL, y + 10)
        unit = f" ({curve.unit})" if curve.unit else ""
        title = f"{curve.title}{unit}" + (f", {curve.head}" if curve.head else "")
        body += pen.text((LEFT, y + 7), clip_text(title, pen.wide - LEFT - 8, svg.LABEL))
        body += y_axis(pen, up, LEFT, grid=right)
        line = [(across(step), up(value)) for step, value in points]
        body += pen.line(line, svg.SERIES[0] if name == "loss" else svg.ACCENT, 1.2)
        body += pen.line([(LEFT, up.start), (right, up.start)], svg.LINE)
        y += PANEL + GAP
    body += x_axis(pen, across, end, "training step")
    body += pen.note((right, end + 16), f"{run.steps[-1]:,}", "end")
    return page(pen, f"training of {run.run}", body, end + 20)
