"""SVG elements as strings, text widths, and the colors that figures share with the explorer.

Lengths are points (1/72 inch). The colors are the same as in `web/src/lib/draw/color.ts`; a test
compares the two.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from typing import Literal, TypeAlias

from pathsum.base.options import parse_choice

Theme: TypeAlias = Literal["light", "dark"]
Anchor: TypeAlias = Literal["start", "middle", "end"]
Scale: TypeAlias = Literal["sequential", "diverging"]
Length: TypeAlias = int | float
Point: TypeAlias = tuple[Length, Length]

SANS = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"
MONO = "Menlo, Consolas, 'DejaVu Sans Mono', 'Liberation Mono', monospace"
# Width of an average letter as a share of the font size, in the widest fonts of the two lists.
SANS_EM, MONO_EM = 0.56, 0.602
LABEL, SMALL, TITLE = 6.5, 5.5, 7.5
"""Font sizes in points."""
COLUMN = 3.3
"""The width of a column of a two-column paper, in inches."""
POINTS, MARGIN = 72.0, 6.0
LEVELS = 48
"""Distinct colors of a heat map."""


@dataclass(frozen=True)
class Style:
    """A stroke: its color in each theme and its dash pattern."""

    light: str
    dark: str
    dash: str = ""

    def color(self, theme: Theme) -> str:
        """The color in a theme."""
        return self.light if theme == "light" else self.dark


PAPER = Style("#ffffff", "#18191c")
INK = Style("#1c1c1e", "#eaeaee")
MUTED = Style("#5d5c62", "#a8a9b2")
LINE = Style("#c8c4bb", "#4b4e57")
ACCENT = Style("#54308f", "#c3adf5")
RAISES = Style("#1b62a8", "#7db8f0")
LOWERS = Style("#b04a05", "#f0a25c")
SIDES = {
    "q": Style("#0b7a6f", "#4fd1c0", "4 2"),
    "k": Style("#b3246b", "#ff8fc0", "1.2 1.6"),
    "v": Style("#4d5a78", "#b3bfdb"),
    "u": Style("#6b5310", "#dcc77a"),
    "g": Style("#6a3fa0", "#c9a8f5", "4 3"),
}
"""Edges into queries, keys and values of heads, and into values and gates of MLPs."""
SERIES = (
    Style("#0067a5", "#6cb8ff"),
    Style("#b84a00", "#ffa35c", "4 2"),
    Style("#00795a", "#4fd6a8", "1.2 1.8"),
    Style("#9a3f86", "#ec9bd8", "5 2 1 2"),
)
RAMPS: dict[str, dict[Theme, tuple[str, ...]]] = {
    "sequential": {
        "light": ("#ffffff", "#e0d6f0", "#ad94d6", "#7450af", "#3f187d"),
        "dark": ("#18191c", "#443668", "#7056ac", "#a58ce0", "#e0d3ff"),
    },
    "positive": {
        "light": ("#ffffff", "#c9dff3", "#74adde", "#236fb6", "#083c78"),
        "dark": ("#18191c", "#17324e", "#215c93", "#549cdb", "#baddff"),
    },
    "negative": {
        "light": ("#ffffff", "#fdddbe", "#f5a65c", "#d4600e", "#8a3400"),
        "dark": ("#18191c", "#4a2a0e", "#8c4b10", "#e08632", "#ffd3a6"),
    },
}


def color_at(share: Length, scale: Scale, theme: Theme) -> str:
    """The color of a share: 0 to 1 on a sequential scale, −1 to 1 on a diverging scale.

    >>> color_at(1.0, "sequential", "light"), color_at(0.0, "diverging", "light")
    ('#3f187d', '#ffffff')
    """
    name = "sequential" if scale == "sequential" else "positive" if share >= 0 else "negative"
    stops = RAMPS[name][theme]
    position = min(max(abs(share) if scale == "diverging" else share, 0.0), 1.0) * (len(stops) - 1)
    low = min(int(position), len(stops) - 2)
    pairs = zip(_rgb(stops[low]), _rgb(stops[low + 1]), strict=True)
    return "#" + "".join(f"{round(a + (position - low) * (b - a)):02x}" for a, b in pairs)


def ink_on(ground: str) -> str:
    """Black or white, whichever has more contrast with a color."""
    r, g, b = (
        s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4
        for s in (value / 255 for value in _rgb(ground))
    )
    return "#000000" if 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 else "#ffffff"


def _rgb(color: str) -> list[int]:
    return [int(color[at : at + 2], 16) for at in (1, 3, 5)]


def number(value: Length) -> str:
    """A length with at most two decimals.

    >>> number(2.0), number(0.125), number(-0.001)
    ('2', '0.13', '0')
    """
    text = f"{value + 1e-9:.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def element(name: str, content: str = "", **attributes: str | Length | None) -> str:
    """An element; `stroke_width` becomes `stroke-width`, and attributes of None are omitted.

    >>> element("rect", x=1.5, stroke_width=2, fill=None)
    '<rect x="1.5" stroke-width="2"/>'
    """
    parts = [
        f'{key.rstrip("_").replace("_", "-")}="'
        f'{escape(value) if isinstance(value, str) else number(value)}"'
        for key, value in attributes.items()
        if value is not None
    ]
    opening = " ".join([name, *parts])
    return f"<{opening}>{content}</{name}>" if content else f"<{opening}/>"


def text_width(text: str, size: Length, mono: bool = False) -> float:
    """An upper estimate of the width of a text."""
    return len(text) * size * (MONO_EM if mono else SANS_EM)


def clip_text(text: str, width: Length, size: Length, mono: bool = False) -> str:
    """A text that fits into a width, with an ellipsis if it is cut.

    >>> clip_text("previous token", 30, 6)
    'previou…'
    """
    most = max(1, int(width / (size * (MONO_EM if mono else SANS_EM))))
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def hint(text: str) -> str:
    """A tooltip for its parent element."""
    return element("title", escape(text))


Color: TypeAlias = Style | str


@dataclass(frozen=True)
class Pen:
    """Draws in one theme, on a page of a width in inches: every method returns an element."""

    theme: Theme = "light"
    width: Length = COLUMN

    def __post_init__(self) -> None:
        parse_choice(("light", "dark"), self.theme, "theme")

    @property
    def wide(self) -> float:
        """The width of the page in points."""
        return self.width * POINTS

    def element(self, name: str, content: str = "", **attributes: Color | Length | None) -> str:
        """An element in the colors of the theme."""
        colored = {
            key: value.color(self.theme) if isinstance(value, Style) else value
            for key, value in attributes.items()
        }
        return element(name, content, **colored)

    def text(
        self,
        at: Point,
        text: str,
        size: Length = LABEL,
        *,
        anchor: Anchor = "start",
        color: Color = INK,
        mono: bool = False,
        turn: Length = 0.0,
    ) -> str:
        """A text that starts, centers or ends at a point; `turn` rotates it clockwise."""
        x, y = at
        return self.element(
            "text",
            escape(text, quote=False),
            x=x,
            y=y,
            font_size=size,
            font_family=MONO if mono else None,
            text_anchor=None if anchor == "start" else anchor,
            fill=color,
            transform=f"rotate({number(turn)} {number(x)} {number(y)})" if turn else None,
            # Tokens may begin with spaces.
            style="white-space:pre" if text != text.strip() else None,
        )

    def note(self, at: Point, text: str, anchor: Anchor = "start", color: Color = MUTED) -> str:
        """A small text."""
        return self.text(at, text, SMALL, anchor=anchor, color=color)

    def title(self, text: str) -> str:
        """The title of a figure: in smaller letters, or clipped, if it is long."""
        room = self.wide - 12
        size = min(TITLE, max(SMALL, room / max(len(text) * 0.5, 1)))
        return self.text((6.0, 13.0), clip_text(text, room * SANS_EM / 0.5, size), size)

    def line(
        self, points: Sequence[Point], color: Color = INK, width: Length = 0.75, dash: str = ""
    ) -> str:
        """Straight lines between points."""
        return self.element(
            "polyline",
            points=" ".join(f"{number(x)},{number(y)}" for x, y in points),
            fill="none",
            stroke=color,
            stroke_width=width,
            stroke_dasharray=dash or None,
            stroke_linejoin="round",
        )

    def rect(
        self,
        at: Point,
        size: Point,
        fill: Color,
        *,
        stroke: Color | None = None,
        round_: Length | None = None,
        opacity: Length | None = None,
        title: str = "",
    ) -> str:
        """A rectangle by its upper left corner and its size."""
        return self.element(
            "rect",
            hint(title) if title else "",
            x=at[0],
            y=at[1],
            width=max(size[0], 0.0),
            height=max(size[1], 0.0),
            fill=fill,
            stroke=stroke,
            stroke_width=0.6 if stroke else None,
            rx=round_,
            fill_opacity=opacity,
        )

    def frame(self, at: Point, size: Point) -> str:
        """The border of a plot."""
        return self.rect(at, size, "none", stroke=LINE)

    def dot(
        self, at: Point, radius: Length, fill: Color, title: str = "", **attributes: Color | Length
    ) -> str:
        """A filled circle."""
        content = hint(title) if title else ""
        return self.element(
            "circle", content, cx=at[0], cy=at[1], r=radius, fill=fill, **attributes
        )

    def cells(
        self,
        values: Sequence[Sequence[Length]],
        at: Point,
        cell: Point,
        scale: Scale,
        extent: Length,
    ) -> str:
        """A heat map: one path per color, with runs of equal cells in a row merged.

        Values that round to zero or are NaN are not drawn.
        """

        def level(value: Length) -> int:
            share = value / extent if extent and value == value else 0.0
            return round(min(max(share, -1.0), 1.0) * LEVELS)

        runs: dict[int, list[str]] = {}
        for row, line in enumerate(values):
            column = 0
            for shade, group in groupby(line, key=level):
                count = sum(1 for _ in group)
                if shade and (shade > 0 or scale == "diverging"):
                    runs.setdefault(shade, []).append(f"M{column} {row}h{count}v1h-{count}z")
                column += count
        paths = "".join(
            element("path", d="".join(subpaths), fill=color_at(shade / LEVELS, scale, self.theme))
            for shade, subpaths in sorted(runs.items())
        )
        transform = f"translate({number(at[0])} {number(at[1])}) scale({cell[0]:.5g} {cell[1]:.5g})"
        return (
            element("g", paths, transform=transform, shape_rendering="crispEdges") if paths else ""
        )
