"""Eigenvalues: one head in the complex plane, all heads as a histogram, and induction's scatter."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pathsum.base.sentence import signed
from pathsum.figures.figure import (
    COLUMN,
    POINTS,
    Axis,
    Figure,
    NoFigureError,
    format_tick,
    x_axis,
    y_axis,
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
    SMALL,
    Length,
    Pen,
    Point,
    Theme,
    element,
    text_width,
)

if TYPE_CHECKING:
    from pathsum.circuits.copying import Copying, HeadCopying
    from pathsum.heads import Atlas, Induction

BINS = 20
COPIES, MATCHES = "copying_weights", "matching_through_previous"
"""Scores of the atlas."""
# With more heads the blocks of a histogram are too small for names.
MOST_NAMED = 40


def eigenvalue_plane(
    copying: "HeadCopying", *, width: Length = COLUMN, theme: Theme = "light"
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
    pen, wide = Pen(theme), width * POINTS
    values = [complex(value) for value in copying.eigenvalues.tolist()]
    largest = max(map(abs, values), default=0.0)
    if not largest:
        raise NoFigureError(f"{copying.head} has no eigenvalues to draw: it writes nothing")
    decades = 2
    top, radius = MARGIN + 14.0, (wide - 2 * MARGIN) * 0.33
    x, y = wide / 2, top + radius + 6

    def distance(magnitude: Length) -> float:
        share = 1 + math.log10(max(magnitude, 1e-300) / largest) / decades
        return max(share, 0.0) * radius

    body = [pen.title(f"eigenvalues of {copying.head}", wide)]
    for power in range(decades):
        ring = radius * (1 - power / decades)
        stroke = pen.of(LINE)
        body.append(pen.dot((x, y), ring, "none", stroke=stroke, stroke_width=0.5))
        text = format_tick(float(f"{largest / 10**power:.2g}"))
        place = (x + ring * 0.72 + 2, y - ring * 0.72 - 2)
        body.append(pen.text(place, f"|λ| = {text}", SMALL, color=pen.of(MUTED)))
    body.append(pen.line([(x - radius, y), (x + radius, y)], pen.of(LINE), 0.5))
    body.append(pen.line([(x, y - radius), (x, y + radius)], pen.of(LINE), 0.5))
    body.append(pen.text((x + radius + 3, y + 2), "Re", SMALL, color=pen.of(MUTED)))
    im = pen.text((x, y - radius - 2.5), "Im", SMALL, anchor="middle", color=pen.of(MUTED))
    body.append(im)
    for value in values:
        away = distance(abs(value))
        if not away:
            continue
        at = (x + away * value.real / abs(value), y - away * value.imag / abs(value))
        color = pen.of(RAISES if value.real > 0 else LOWERS)
        body.append(pen.dot(at, 1.7, color, f"{value:.3g}", fill_opacity=0.75))
    body.append(_ratio_strip(pen, copying, y + radius + 16, wide))
    height = (y + radius + 50) / POINTS
    return Figure(f"eigenvalues of {copying.head}", "".join(body), width, height, theme)


def _ratio_strip(pen: Pen, copying: "HeadCopying", y: Length, wide: Length) -> str:
    """Σλ/Σ|λ| from −1 to 1, with the null as a band."""
    axis = Axis(-1.0, 1.0, 30.0, wide - 30)
    low, high = (max(-1.0, min(1.0, copying.null + sign * 2 * copying.null_sd)) for sign in (-1, 1))
    band = pen.rect((axis(low), y - 6), (axis(high) - axis(low), 12), pen.of(MUTED), opacity=0.25)
    mark = pen.dot((axis(copying.ratio), y), 2.6, pen.of(ACCENT))
    text = f"Σλ/Σ|λ| = {signed(copying.ratio)}, null {signed(copying.null)} ± "
    text += f"{copying.null_sd:.2f}, p = {copying.p:.1g}"
    label = pen.text((wide / 2, y + 26), text, LABEL, anchor="middle")
    return band + x_axis(pen, axis, y + 6, count=4) + mark + label


def eigenvalue_histogram(
    copying: "Copying", *, width: Length = COLUMN, theme: Theme = "light"
) -> Figure:
    """Σλ/Σ|λ| of every head as a histogram: heads that copy are at the right.

    The curve is the null: the number of heads expected in each bin if every head were rotated at
    random, taking each head's null as normal. Heads whose p is at most 0.01 are blue. Heads that
    write nothing have no ratio and are left out.

    Args:
        copying: From `ps.copying(model)`.
        width: In inches.
        theme: "light" or "dark".
    """
    pen, wide = Pen(theme), width * POINTS
    bins: list[list[HeadCopying]] = [[] for _ in range(BINS)]
    drawn = [head for head in copying.heads if math.isfinite(head.ratio)]
    for head in drawn:
        bins[min(int((head.ratio + 1) / 2 * BINS), BINS - 1)].append(head)
    expected = [sum(_normal_share(head, at) for head in drawn) for at in range(BINS)]
    most = max(*map(len, bins), math.ceil(max(expected, default=1.0)), 1)
    named = len(drawn) <= MOST_NAMED
    high = min(max(most * (9.0 if named else 4.0), 60.0), 110.0)
    top = MARGIN + 16.0
    across = Axis(-1.0, 1.0, 26.0, wide - MARGIN - 4)
    up = Axis(0.0, float(most), top + high, top)
    body = [pen.title("heads by their OV eigenvalues", wide)]
    body.append(y_axis(pen, up, across.start, "heads", count=min(most, 4), grid=across.end))
    bar = (across.end - across.start) / BINS
    for place, heads in enumerate(bins):
        x = across.start + place * bar
        for row, head in enumerate(sorted(heads, key=lambda each: each.ratio)):
            color = pen.of(RAISES if head.p <= 0.01 else MUTED)
            y = up(row + 1)
            size = (bar - 1, up(row) - y - (0.6 if named else 0.0))
            title = f"{head.head}: {head.ratio:+.2f}, p = {head.p:.2g}"
            body.append(pen.rect((x + 0.5, y), size, color, opacity=0.85, title=title))
            if named:
                fit = min(SMALL, (bar - 1) / text_width(head.head, 1.0))
                at = (x + bar / 2, y + size[1] / 2 + fit * 0.35)
                ink = "#ffffff" if theme == "light" else "#000000"
                body.append(pen.text(at, head.head, fit, anchor="middle", color=ink))
    curve = [
        (across.start + (place + 0.5) * bar, up(value)) for place, value in enumerate(expected)
    ]
    body.append(pen.line(curve, pen.of(INK), 0.8, "2 1.5"))
    null = pen.text((wide - MARGIN - 4, top - 5), "null", SMALL, anchor="end")
    end = wide - MARGIN - 4 - text_width("null", SMALL)
    null += pen.line([(end - 18, top - 7), (end - 3, top - 7)], pen.of(INK), 0.8, "2 1.5")
    body.append(null + x_axis(pen, across, top + high, "Σλ/Σ|λ| of W_E W_OV W_U", count=4))
    return Figure(
        "eigenvalue histogram", "".join(body), width, (top + high + 20 + MARGIN) / POINTS, theme
    )


def _normal_share(head: "HeadCopying", place: int) -> float:
    """The share of a head's null in a bin, from the normal distribution."""
    scale = max(head.null_sd, 1e-6) * math.sqrt(2)
    ends = (-1 + 2 * (place + side) / BINS for side in (0, 1))
    low, high = (0.5 * math.erf((end - head.null) / scale) for end in ends)
    return high - low


@dataclass(frozen=True)
class _Dot:
    head: str
    x: Length
    y: Length
    induction: bool


def _dots(found: "Atlas | Induction") -> list[_Dot]:
    """The heads that have both numbers."""
    from pathsum.heads import Induction

    absent = float("nan")
    if isinstance(found, Induction):
        dots = [
            _Dot(head.head, head.ov_positivity, head.qk_positivity, induction=True)
            for head in found.heads
            if head.qk_positivity is not None
        ]
    else:
        dots = [
            _Dot(
                entry.head,
                entry.scores[COPIES].value if COPIES in entry.scores else absent,
                entry.scores[MATCHES].value if MATCHES in entry.scores else absent,
                induction=entry.kind == "induction",
            )
            for entry in found.heads
        ]
    return [dot for dot in dots if math.isfinite(dot.x) and math.isfinite(dot.y)]


def induction_scatter(
    heads: "Atlas | Induction", *, width: Length = COLUMN, theme: Theme = "light"
) -> Figure:
    """Copying against matching through a previous-token head, for every head above layer 0.

    The paper's check of its theory of induction: an induction head has positive eigenvalues in its
    OV circuit (it copies) and in its QK circuit composed with a previous-token head (it matches),
    so induction heads are in the upper right corner.

    Args:
        heads: From `ps.atlas(model)`, or from `ps.induction(model)` for induction heads alone.
        width: In inches.
        theme: "light" or "dark".
    """
    dots = _dots(heads)
    if not dots:
        raise NoFigureError(
            f"{heads.model} has no head that could match through a previous-token head, so there "
            "are no points to draw; use a model of at least two layers"
        )
    pen, wide = Pen(theme), width * POINTS
    top, side = MARGIN + 16.0, wide * 0.62
    left = (wide - side) / 2 + 6
    across = Axis(-1.05, 1.05, left, left + side)
    up = Axis(-1.05, 1.05, top + side, top)
    body = [pen.title(f"induction heads of {heads.model}", wide)]
    body.append(pen.rect((left, top), (side, side), "none", stroke=pen.of(LINE)))
    body.append(pen.line([(left, up(0)), (left + side, up(0))], pen.of(LINE), 0.5))
    body.append(pen.line([(across(0), top), (across(0), top + side)], pen.of(LINE), 0.5))
    for dot in sorted(dots, key=lambda each: each.induction):
        at = across(dot.x), up(dot.y)
        color = pen.of(ACCENT if dot.induction else MUTED)
        title = f"{dot.head}: {dot.x:+.2f}, {dot.y:+.2f}"
        body.append(pen.dot(at, 2.6 if dot.induction else 1.9, color, title))
        if dot.induction or len(dots) <= 12:
            right = at[0] < left + side - 22
            place = (at[0] + (4 if right else -4), at[1] + 2)
            anchor = "start" if right else "end"
            body.append(pen.text(place, dot.head, SMALL, anchor=anchor, color=color))
    body.append(x_axis(pen, across, top + side, "Σλ/Σ|λ| of OV: copying", count=4))
    body.append(y_axis(pen, up, left, count=4))
    label = "Σλ/Σ|λ| of QK through a previous-token head"
    place = (left - 22, top + side / 2)
    body.append(pen.text(place, label, LABEL, anchor="middle", turn=-90))
    body.append(_scatter_key(pen, (left, top + side + 27)))
    return Figure(
        f"induction heads of {heads.model}",
        "".join(body),
        width,
        (top + side + 32 + MARGIN) / POINTS,
        theme,
    )


def _scatter_key(pen: Pen, at: Point) -> str:
    x, y = at
    parts = [pen.dot((x + 3, y - 2), 2.6, pen.of(ACCENT)), pen.text((x + 8, y), "induction", LABEL)]
    parts += [pen.dot((x + 53, y - 2), 1.9, pen.of(MUTED)), pen.text((x + 58, y), "other", LABEL)]
    return element("g", "".join(parts))
