"""Plots and table of a run for a page: drawings inline, every string escaped, nothing loaded."""

import html
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathsum.training.dynamics.curves import Curve
    from pathsum.training.dynamics.dynamics_record import Dynamics

WIDE, HIGH, EDGE = 360, 120, 28


def dynamics_html(run: "Dynamics") -> str:
    """One element: a drawing a curve, the path of the loss vectors, then the table."""
    plots = "".join(_plot(run, curve) for curve in run.curves) + _components(run)
    return (
        '<div class="pathsum-dynamics"><div style="display:flex;flex-wrap:wrap;gap:12px">'
        f"{plots}</div>{run.to_table().to_html()}</div>"
    )


def _plot(run: "Dynamics", curve: "Curve") -> str:
    rows = [
        (math.log(step), value)
        for step, value in zip(run.steps, curve.values.tolist(), strict=True)
        if step > 0 and value == value
    ]
    if len(rows) < 2:
        return ""
    low, high = min(v for _, v in rows), max(v for _, v in rows)
    left, right = rows[0][0], rows[-1][0]

    def across(x: float) -> float:
        return EDGE + (WIDE - 2 * EDGE) * (x - left) / (right - left)

    def down(value: float) -> float:
        return HIGH - EDGE - (HIGH - 2 * EDGE) * (value - low) / (high - low or 1.0)

    points = " ".join(f"{across(x):.1f},{down(v):.1f}" for x, v in rows)
    unit = f" ({curve.unit})" if curve.unit else ""
    title = html.escape(curve.title + unit + (f", {curve.head}" if curve.head else ""))
    told = html.escape(curve.about)
    return (
        f'<svg role="img" aria-label="{told}" width="{WIDE}" height="{HIGH}" '
        f'viewBox="0 0 {WIDE} {HIGH}" font-family="sans-serif" font-size="11" '
        f'fill="currentColor"><title>{told}</title>{_band(run, across, left, right)}'
        f'<polyline points="{points}" fill="none" stroke="currentColor" stroke-width="1.5"/>'
        f'<text x="{EDGE}" y="14">{title}</text>'
        f'<text x="{EDGE}" y="{HIGH - 8}">{run.steps[-len(rows)]}</text>'
        f'<text x="{WIDE - EDGE}" y="{HIGH - 8}" text-anchor="end">{run.steps[-1]} steps</text>'
        f'<text x="{WIDE - EDGE + 2}" y="{down(rows[-1][1]):.1f}">{rows[-1][1]:.2f}</text></svg>'
    )


def _band(run: "Dynamics", across: Callable[[float], float], left: float, right: float) -> str:
    """The phase change as an upright band: its interval."""
    change = run.phase_change
    if change is None:
        return ""
    ends = [min(right, max(left, math.log(step))) for step in (change.low, change.high)]
    x, wide = across(ends[0]), across(ends[1]) - across(ends[0])
    return (
        f'<rect x="{x:.1f}" y="{EDGE - 8}" width="{max(wide, 1.0):.1f}" '
        f'height="{HIGH - 2 * EDGE + 16}" fill="#e08a1e" fill-opacity="0.3"/>'
    )


def _components(run: "Dynamics") -> str:
    """The snapshots in the plane of their two principal components, joined in order."""
    places = run.pca.double()
    low, high = places.min(0).values, places.max(0).values
    shares = (places - low) / (high - low).clamp_min(1e-12)
    at = [
        (EDGE + (WIDE - 2 * EDGE) * x, HIGH - EDGE - (HIGH - 2 * EDGE) * y)
        for x, y in shares.tolist()
    ]
    first, second = run.pca_explained
    dots = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5"><title>step {step}</title></circle>'
        for step, (x, y) in zip(run.steps, at, strict=True)
    )
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
    return (
        f'<svg role="img" aria-label="loss vectors" width="{WIDE}" height="{HIGH}" '
        f'viewBox="0 0 {WIDE} {HIGH}" font-family="sans-serif" font-size="11" '
        f'fill="currentColor"><polyline points="{path}" fill="none" stroke="currentColor" '
        f'stroke-width="0.75"/>{dots}<text x="{EDGE}" y="14">per-token losses: two components, '
        f"{first:.0%} and {second:.0%}</text></svg>"
    )
