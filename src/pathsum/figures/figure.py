"""Figure: a drawing of a known size, shown in notebooks and saved as SVG, PNG or PDF.

Axes, ticks, legends and color bars are shared by all figures.
"""

import importlib
import math
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from pathsum.base.errors import FailedError, InputError
from pathsum.base.files import check_output, write_output
from pathsum.figures import svg
from pathsum.figures.svg import MARGIN, Length, Pen, Point, Theme, clip_text, text_width

DPI = 300
FORMATS = (".svg", ".png", ".pdf")
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
# Seconds; a cold start on a slow machine takes about five.
BROWSER_LIMIT = 60


class NoFigureError(InputError):
    """A result without a figure, or without content to draw."""


@dataclass(frozen=True, repr=False)
class Figure:
    """A drawing: SVG elements on a page of `width` × `height` inches.

    Args:
        title: Read by screen readers, and the figure's name in a repr.
        body: The SVG elements, in points.
        width: In inches.
        height: In inches.
        theme: "light" or "dark"; the figure paints its own background.

    Example:
        >>> import pathsum as ps
        >>> trace = ps.construct.induction().trace("a b c a")
        >>> ps.attention(trace, "L1H0").figure()
        Figure('attention of L1H0', 3.3 × 3.68 in)
    """

    title: str
    body: str
    width: Length
    height: Length
    theme: Theme = "light"

    def to_svg(self) -> str:
        """The figure as one `<svg>` element that needs no other file."""
        wide, high = self.width * svg.POINTS, self.height * svg.POINTS
        ground = svg.element("rect", width=wide, height=high, fill=svg.PAPER.color(self.theme))
        return svg.element(
            "svg",
            svg.element("title", escape(self.title)) + ground + self.body,
            xmlns="http://www.w3.org/2000/svg",
            role="img",
            width=f"{self.width:.4g}in",
            height=f"{self.height:.4g}in",
            viewBox=f"0 0 {svg.number(wide)} {svg.number(high)}",
            font_family=svg.SANS,
        )

    def save(self, file: str | Path) -> Path:
        """Write the figure to a file whose name ends in .svg, .png or .pdf.

        PNG (300 dots per inch) and PDF are converted by cairosvg if it is installed, and otherwise
        by the system's Chromium.

        Args:
            file: The file to write; its folder must exist.

        Returns:
            The path of the file.
        """
        path = check_figure(file)
        kind = path.suffix.lower()
        content = self.to_svg() + "\n" if kind == ".svg" else _convert(self, kind)
        return write_output(path, content)

    def _repr_svg_(self) -> str:
        return self.to_svg()

    def __repr__(self) -> str:
        return f"Figure({self.title!r}, {self.width:.3g} × {self.height:.3g} in)"


def check_figure(file: str | Path) -> Path:
    """The path of a figure; raises an InputError if it cannot be written."""
    path = Path(file)
    if path.suffix.lower() not in FORMATS:
        raise InputError(
            f"a figure cannot be written to {path.name!r}: the name must end in .svg, .png or .pdf"
        )
    return check_output(path)


def _convert(figure: Figure, kind: str) -> bytes:
    try:
        cairo = importlib.import_module("cairosvg")
    except (ImportError, OSError):  # OSError: the package without the cairo library
        return _print_with_browser(figure, kind)
    convert = cairo.svg2png if kind == ".png" else cairo.svg2pdf
    return convert(bytestring=figure.to_svg().encode(), dpi=96, scale=DPI / 96)


def _print_with_browser(figure: Figure, kind: str) -> bytes:
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise FailedError(
            f"a figure can be saved as {kind} only with cairosvg or Chromium, and neither is "
            "installed; run `pip install cairosvg`, or save it as .svg"
        )
    size = f"{figure.width:.4f}in {figure.height:.4f}in"
    page = (
        f"<!doctype html><meta charset=utf-8><style>@page{{size:{size};margin:0}}"
        f"body{{margin:0}}svg{{display:block}}</style>{figure.to_svg()}"
    )
    # Ends inside the temporary folder, so that the browser leaves no profile behind.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        source, target = Path(folder, "figure.html"), Path(folder, f"figure{kind}")
        source.write_text(page, encoding="utf-8")
        across, down = (-int(-side * 96 // 1) for side in (figure.width, figure.height))
        options = ["--headless", "--disable-gpu", f"--user-data-dir={folder}/profile"]
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            options.append("--no-sandbox")  # Chromium refuses to run as root with its sandbox
        if kind == ".pdf":
            options += [f"--print-to-pdf={target}", "--no-pdf-header-footer"]
        else:
            options += [f"--screenshot={target}", f"--window-size={across},{down}"]
            options += ["--hide-scrollbars", f"--force-device-scale-factor={DPI / 96}"]
        command = [browser, *options, source.as_uri()]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=BROWSER_LIMIT)
            return target.read_bytes()
        except (OSError, subprocess.SubprocessError) as error:
            raise FailedError(
                f"{browser} could not convert the figure ({type(error).__name__}); "
                "save it as .svg instead"
            ) from error


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
        """The position of a value, in points."""
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
    """The range of finite values, and of `include` if it is given, with a margin of 5%."""
    finite = [value for value in values if math.isfinite(value)]
    if include is not None:
        finite.append(include)
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    margin = 0.05 * ((high - low) or abs(high) or 1.0)
    return low - (0.0 if low == include else margin), high + (0.0 if high == include else margin)


def page(pen: Pen, title: str, body: str, bottom: Length, heading: str | None = None) -> Figure:
    """The figure that a pen drew, down to `bottom` in points; `heading` is by default its title."""
    heading = title if heading is None else heading
    body = (pen.title(heading) if heading else "") + body
    return Figure(title, body, pen.width, (bottom + MARGIN) / svg.POINTS, pen.theme)


def x_axis(pen: Pen, axis: Axis, y: Length, label: str = "", *, count: int = 5) -> str:
    """A horizontal axis with ticks and numbers below it."""
    body = pen.line([(axis.start, y), (axis.end, y)], svg.LINE)
    for value in axis.ticks(count):
        x = axis(value)
        body += pen.line([(x, y), (x, y + TICK)], svg.LINE)
        body += pen.note((x, y + 8), format_tick(value), "middle")
    if label:
        body += pen.text(((axis.start + axis.end) / 2, y + 16), label, anchor="middle")
    return body


def y_axis(pen: Pen, axis: Axis, x: Length, *, count: int = 4, grid: Length | None = None) -> str:
    """A vertical axis with numbers on its left; grid lines, if any, end at x = `grid`."""
    body = ""
    for value in axis.ticks(count):
        y = axis(value)
        body += pen.line([(x - TICK, y), (x if grid is None else grid, y)], svg.LINE, 0.4)
        body += pen.note((x - 4, y + 2), format_tick(value), "end")
    return body


def vertical_label(pen: Pen, at: Point, label: str) -> str:
    """A label that reads upward, centered at a point."""
    return pen.text(at, label, anchor="middle", turn=-90)


def color_bar(
    pen: Pen, at: Point, width: Length, scale: svg.Scale, extent: Length, label: str
) -> str:
    """A horizontal color scale with its ends and its label, 12 points high."""
    x, y = at
    low = 0.0 if scale == "sequential" else -1.0
    steps = 24
    body = ""
    for step in range(steps):
        color = svg.color_at(low + (1 - low) * (step + 0.5) / steps, scale, pen.theme)
        body += pen.rect((x + width * step / steps, y), (width / steps + 0.2, 4), color)
    body += pen.frame((x, y), (width, 4))
    ends = [(x, low * extent), (x + width, extent)]
    for position, value in [ends[0], (x + width / 2, 0.0), ends[1]] if low else ends:
        text = format_tick(float(f"{value:.2g}"))
        body += pen.text((position, y + 10.5), text, svg.SMALL, anchor="middle")
    label = clip_text(label, x - 6 - MARGIN, svg.LABEL)
    return body + pen.text((x - 6, y + 4.5), label, anchor="end")


def legend(pen: Pen, at: Point, entries: Sequence[tuple[str, svg.Style]]) -> str:
    """Line styles with their names, on one row."""
    x, y = at
    body = ""
    for name, style in entries:
        body += pen.line([(x, y - 2), (x + 14, y - 2)], style, 1.4, style.dash)
        body += pen.text((x + 17, y), name)
        x += 27 + text_width(name, svg.LABEL)
    return body
