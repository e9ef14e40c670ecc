"""Curves of a training run over steps, with the phase change as a band."""

import math
from typing import TYPE_CHECKING

from pathsum.figures.axes import Axis, padded_range, x_axis, y_axis
from pathsum.figures.figure import COLUMN, POINTS, Figure, NoFigureError
from pathsum.figures.svg import (
    ACCENT,
    LABEL,
    LINE,
    LOWERS,
    MUTED,
    SERIES,
    SMALL,
    Length,
    Pen,
    Theme,
    clip_text,
)

if TYPE_CHECKING:
    from pathsum.training.dynamics_record import Dynamics

MARGIN, LEFT, PANEL, GAP = 6.0, 30.0, 44.0, 15.0
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
