"""Figure: a drawing of a known size, shown in notebooks and saved as SVG, PNG or PDF."""

import importlib
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
from pathsum.figures.svg import PAPER, SANS, Length, Theme, element, number

COLUMN = 3.3
"""The width of a column of a two-column paper, in inches."""
POINTS = 72.0
DPI = 300
FORMATS = (".svg", ".png", ".pdf")
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
# Seconds; a cold start on a slow machine takes about five.
BROWSER_LIMIT = 60


class NoFigureError(InputError):
    """A result that has no figure, or not with this content."""


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
        wide, high = self.width * POINTS, self.height * POINTS
        ground = element("rect", width=wide, height=high, fill=PAPER.color(self.theme))
        return element(
            "svg",
            element("title", escape(self.title)) + ground + self.body,
            xmlns="http://www.w3.org/2000/svg",
            role="img",
            width=f"{self.width:.4g}in",
            height=f"{self.height:.4g}in",
            viewBox=f"0 0 {number(wide)} {number(high)}",
            font_family=SANS,
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
    """The path of a figure that can be written, or an InputError that explains why it cannot."""
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
        output = (
            [f"--print-to-pdf={target}", "--no-pdf-header-footer"]
            if kind == ".pdf"
            else [
                f"--screenshot={target}",
                f"--window-size={across},{down}",
                f"--force-device-scale-factor={DPI / 96}",
            ]
        )
        _run_browser([browser, *output, f"--user-data-dir={folder}/profile", source.as_uri()])
        if not target.exists():
            raise FailedError(f"{browser} wrote no {kind} file; save the figure as .svg instead")
        return target.read_bytes()


def _run_browser(command: Sequence[str]) -> None:
    options = ["--headless", "--disable-gpu", "--hide-scrollbars"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        options.append("--no-sandbox")  # Chromium refuses to run as root with its sandbox
    try:
        subprocess.run(
            [command[0], *options, *command[1:]],
            check=True,
            capture_output=True,
            timeout=BROWSER_LIMIT,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise FailedError(
            f"{command[0]} could not convert the figure ({type(error).__name__}); "
            "save it as .svg instead"
        ) from error
