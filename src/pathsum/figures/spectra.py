"""Eigenvalues: one head in the complex plane, all heads as a histogram, and induction's scatter."""

import math
from typing import TYPE_CHECKING, NamedTuple

from pathsum.base.sentence import signed
from pathsum.figures import svg
from pathsum.figures.figure import (
    Axis,
    Figure,
    NoFigureError,
    format_tick,
    page,
    vertical_label,
    x_axis,
    y_axis,
)
from pathsum.figures.svg import MARGIN, Length, Pen, Theme, text_width

if TYPE_CHECKING:
    from pathsum.circuits.copying import Copying, HeadCopying
    from pathsum.heads import Atlas, Induction

BINS = 20
SCORES = ("copying_weights", "matching_through_previous")
"""Scores of the atlas: copying and matching."""
# With more heads than this, the blocks of a histogram are too small for names.
MOST_NAMED = 40


def eigenvalue_plane(
    copying: "HeadCopying", *, width: Length = svg.COLUMN, theme: Theme = "light"
) -> Figure:
    """The eigenvalues of a head's OV circuit in the complex plane, and their summary with its null.

    The distance from the center is the logarithm of the magnitude, as in the paper; the rings are
    powers of ten below the largest. The strip below shows Σλ/Σ|λ| on the null of random rotations
    (mean ± 2 standard deviations).

    Args:
        copying: One head of `ps.copying(model)`.
        width: In inches.
        theme: "light" or "dark".
    """
    pen = Pen(theme, width)
    values = [complex(value) for value in copying.eigenvalues.tolist()]
    largest = max(map(abs, values), default=0.0)
    if not largest:
        raise NoFigureError(f"{copying.head} has no eigenvalues to draw: it writes nothing")
    decades = 2
    radius = (pen.wide - 2 * MARGIN) * 0.33
    x, y = pen.wide / 2, MARGIN + radius + 20
    body = ""
    for power in range(decades):
        ring = radius * (1 - power / decades)
        body += pen.dot((x, y), ring, "none", stroke=svg.LINE, stroke_width=0.5)
        text = format_tick(float(f"{largest / 10**power:.2g}"))
        body += pen.note((x + ring * 0.72 + 2, y - ring * 0.72 - 2), f"|λ| = {text}")
    body += pen.line([(x - radius, y), (x + radius, y)], svg.LINE, 0.5)
    body += pen.line([(x, y - radius), (x, y + radius)], svg.LINE, 0.5)
    body += pen.note((x + radius + 3, y + 2), "Re")
    body += pen.note((x, y - radius - 2.5), "Im", "middle")
    for value in values:
        size = max(abs(value), 1e-300)
        away = (1 + math.log10(size / largest) / decades) * radius
        if away > 0:
            at = (x + away * value.real / size, y - away * value.imag / size)
            color = svg.RAISES if value.real > 0 else svg.LOWERS
            body += pen.dot(at, 1.7, color, f"{value:.3g}", fill_opacity=0.75)
    body += _ratio_strip(pen, copying, y + radius + 16)
    return page(pen, f"eigenvalues of {copying.head}", body, y + radius + 44)


def _ratio_strip(pen: Pen, copying: "HeadCopying", y: Length) -> str:
    """Σλ/Σ|λ| from −1 to 1, with the null as a band."""
    axis = Axis(-1.0, 1.0, 30.0, pen.wide - 30)
    low, high = (max(-1.0, min(1.0, copying.null + sign * 2 * copying.null_sd)) for sign in (-1, 1))
    body = pen.rect((axis(low), y - 6), (axis(high) - axis(low), 12), svg.MUTED, opacity=0.25)
    body += x_axis(pen, axis, y + 6, count=4) + pen.dot((axis(copying.ratio), y), 2.6, svg.ACCENT)
    text = f"Σλ/Σ|λ| = {signed(copying.ratio)}, null {signed(copying.null)} ± "
    text += f"{copying.null_sd:.2f}, p = {copying.p:.1g}"
    return body + pen.text((pen.wide / 2, y + 26), text, anchor="middle")


def eigenvalue_histogram(
    copying: "Copying", *, width: Length = svg.COLUMN, theme: Theme = "light"
) -> Figure:
    """Σλ/Σ|λ| of every head as a histogram: heads that copy are at the right.

    The curve is the null: the number of heads expected in each bin if every head were rotated at
    random, with a normal distribution for each head's null. Heads with p ≤ 0.01 are blue. Heads
    with zero output have no ratio and are omitted.

    Args:
        copying: From `ps.copying(model)`.
        width: In inches.
        theme: "light" or "dark".
    """
    pen = Pen(theme, width)
    right = pen.wide - MARGIN - 4
    bins: list[list[HeadCopying]] = [[] for _ in range(BINS)]
    finite = [head for head in copying.heads if math.isfinite(head.ratio)]
    for head in finite:
        bins[min(int((head.ratio + 1) / 2 * BINS), BINS - 1)].append(head)
    expected = [sum(_normal_share(head, at) for head in finite) for at in range(BINS)]
    most = max(*map(len, bins), math.ceil(max(expected, default=1.0)), 1)
    with_names = len(finite) <= MOST_NAMED
    top = MARGIN + 16.0
    bottom = top + min(max(most * (9.0 if with_names else 4.0), 60.0), 110.0)
    across = Axis(-1.0, 1.0, 26.0, right)
    up = Axis(0.0, float(most), bottom, top)
    body = y_axis(pen, up, across.start, count=min(most, 4), grid=right)
    body += vertical_label(pen, (8.0, (top + bottom) / 2), "heads")
    bar = (right - across.start) / BINS
    for index, heads in enumerate(bins):
        x = across.start + index * bar
        for row, head in enumerate(sorted(heads, key=lambda entry: entry.ratio)):
            y = up(row + 1)
            size = (bar - 1, up(row) - y - (0.6 if with_names else 0.0))
            color = svg.RAISES if head.p <= 0.01 else svg.MUTED
            title = f"{head.head}: {head.ratio:+.2f}, p = {head.p:.2g}"
            body += pen.rect((x + 0.5, y), size, color, opacity=0.85, title=title)
            if with_names:
                fit = min(svg.SMALL, (bar - 1) / text_width(head.head, 1.0))
                at = (x + bar / 2, y + size[1] / 2 + fit * 0.35)
                ink = "#ffffff" if theme == "light" else "#000000"
                body += pen.text(at, head.head, fit, anchor="middle", color=ink)
    points = [(across.start + (at + 0.5) * bar, up(value)) for at, value in enumerate(expected)]
    body += pen.line(points, svg.INK, 0.8, "2 1.5")
    body += pen.note((right, top - 5), "null", "end", svg.INK)
    end = right - text_width("null", svg.SMALL)
    body += pen.line([(end - 18, top - 7), (end - 3, top - 7)], svg.INK, 0.8, "2 1.5")
    body += x_axis(pen, across, bottom, "Σλ/Σ|λ| of W_E W_OV W_U", count=4)
    heading = "heads by their OV eigenvalues"
    return page(pen, "eigenvalue histogram", body, bottom + 20, heading)


def _normal_share(head: "HeadCopying", index: int) -> float:
    """The share of a head's null in a bin, from the normal distribution."""
    scale = max(head.null_sd, 1e-6) * math.sqrt(2)
    ends = (-1 + 2 * (index + side) / BINS for side in (0, 1))
    low, high = (0.5 * math.erf((end - head.null) / scale) for end in ends)
    return high - low


class _Dot(NamedTuple):
    head: str
    x: Length
    y: Length
    induction: bool


def _dots(result: "Atlas | Induction") -> list[_Dot]:
    """The heads that have both numbers."""
    from pathsum.heads.induction import InductionHead

    dots: list[_Dot] = []
    for head in result.heads:
        if isinstance(head, InductionHead):
            copies, matches, is_induction = head.ov_positivity, head.qk_positivity, True
        else:
            copies, matches = (head.scores[s].value if s in head.scores else None for s in SCORES)
            is_induction = head.kind == "induction"
        if copies is not None and matches is not None and math.isfinite(copies + matches):
            dots.append(_Dot(head.head, copies, matches, is_induction))
    return dots


def induction_scatter(
    heads: "Atlas | Induction", *, width: Length = svg.COLUMN, theme: Theme = "light"
) -> Figure:
    """Copying against matching through a previous-token head, for every head above layer 0.

    The paper's check of its theory of induction: an induction head has positive eigenvalues in its
    OV circuit (it copies) and in its QK circuit composed with a previous-token head (it matches),
    so induction heads are in the upper right corner.

    Args:
        heads: From `ps.atlas(model)`, or from `ps.induction(model)` for induction heads only.
        width: In inches.
        theme: "light" or "dark".
    """
    dots = _dots(heads)
    if not dots:
        raise NoFigureError(
            f"{heads.model} has no head that could match through a previous-token head, so there "
            "are no points to draw; use a model of at least two layers"
        )
    pen = Pen(theme, width)
    top, side = MARGIN + 16.0, pen.wide * 0.62
    left = (pen.wide - side) / 2 + 6
    across = Axis(-1.05, 1.05, left, left + side)
    up = Axis(-1.05, 1.05, top + side, top)
    body = pen.frame((left, top), (side, side))
    body += pen.line([(left, up(0)), (left + side, up(0))], svg.LINE, 0.5)
    body += pen.line([(across(0), top), (across(0), top + side)], svg.LINE, 0.5)
    for dot in sorted(dots, key=lambda each: each.induction):
        x, y = across(dot.x), up(dot.y)
        color = svg.ACCENT if dot.induction else svg.MUTED
        title = f"{dot.head}: {dot.x:+.2f}, {dot.y:+.2f}"
        body += pen.dot((x, y), 2.6 if dot.induction else 1.9, color, title)
        if (dot.induction or len(dots) <= 12) and x < left + side - 22:
            body += pen.note((x + 4, y + 2), dot.head, color=color)
        elif dot.induction or len(dots) <= 12:
            body += pen.note((x - 4, y + 2), dot.head, "end", color)
    body += x_axis(pen, across, top + side, "Σλ/Σ|λ| of OV: copying", count=4)
    body += y_axis(pen, up, left)
    label = "Σλ/Σ|λ| of QK through a previous-token head"
    body += vertical_label(pen, (left - 22, top + side / 2), label)
    y = top + side + 27
    key = pen.dot((left + 3, y - 2), 2.6, svg.ACCENT) + pen.text((left + 8, y), "induction")
    key += pen.dot((left + 53, y - 2), 1.9, svg.MUTED) + pen.text((left + 58, y), "other")
    body += svg.element("g", key)
    return page(pen, f"induction heads of {heads.model}", body, y + 5)
