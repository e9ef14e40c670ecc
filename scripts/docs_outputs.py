"""Outputs shown in the guide: run the pages, compare what they print, write it into the pages.

    python -m scripts.docs_outputs                  # write the outputs of all pages
    python -m scripts.docs_outputs docs/copying.md  # of one page

A ```text block right below a ```python block is what the block prints; below a ```sh block it is
what the command prints, where `| head -N` keeps the first N lines. The blocks of a page run in
order, in one namespace. `tests/test_docs.py` fails if an output differs in a word, or in a number
by more than rounding on another processor explains.
"""

import io
import math
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from contextlib import chdir, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
# Pages that load SmolLM2, which the first run fetches.
REAL = ("real-model",)
WIDTH = 96
"""Characters of a line of output."""
TOLERANCE = 0.02
"""Accepted relative difference of numbers, in addition to one unit of the last digit shown."""
ROUNDING = 1e-5
"""Smaller numbers are reconstruction errors, which depend on the processor."""

_BLOCK = re.compile(
    r"^```(?P<kind>python|sh)\n(?P<code>.*?)^```\n(?P<shown>\n```text\n(?P<output>.*?)^```\n)?",
    re.MULTILINE | re.DOTALL,
)
_NUMBER = re.compile(r"(?<![\w.])[-+−]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?(?![\w])")


@dataclass(frozen=True)
class Block:
    """A block of code, the line it starts at, and the output shown below it, if any."""

    kind: str
    code: str
    line: int
    output: str | None
    span: tuple[int, int]


def blocks(text: str) -> Iterator[Block]:
    """The blocks of a page that run: all Python, and commands whose output is shown."""
    for found in _BLOCK.finditer(text):
        if found["kind"] == "python" or found["shown"]:
            line = text[: found.start("code")].count("\n")
            yield Block(found["kind"], found["code"], line, found["output"], found.span("output"))


def run_page(page: Path) -> Iterator[tuple[Block, str]]:
    """Run the blocks of a page in the working folder; each with what it printed."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(page.read_text(encoding="utf-8")):
        printed = io.StringIO()
        with redirect_stdout(printed):
            if block.kind == "python":
                # Blank lines before the code, so that a traceback names the page's own line.
                code = "\n" * block.line + block.code
                exec(compile(code, str(page), "exec"), namespace)  # noqa: S102
            else:
                run_command(block.code)
        lines = [line.rstrip() for line in printed.getvalue().splitlines()]
        lines = lines[: _head(block.code)] if block.kind == "sh" else lines
        yield block, "\n".join(lines).strip("\n") + "\n"


def run_command(command: str) -> None:
    """Run one `pathsum …` line in this process."""
    from pathsum.cli.main import main

    arguments = shlex.split(command.partition(" | head")[0], comments=True)
    if arguments[0] != "pathsum" or main(arguments[1:]) != 0:
        raise AssertionError(f"{command!r} failed, or is not a pathsum command")


def _head(command: str) -> int | None:
    found = re.search(r"\| head -(\d+)", command)
    return None if found is None else int(found[1])


def difference(shown: str, printed: str) -> str | None:
    """The first line that differs by more than rounding, or None.

    >>> difference("loss 2.67\\n", "loss  2.68\\n")
    >>> difference("loss 2.67\\n", "loss 2.97\\n")
    "shown: 'loss 2.67', printed: 'loss 2.97'"
    """
    pairs = [(a.split(), b.split()) for a, b in _lines(shown, printed)]
    for here, there in pairs:
        one, two = " ".join(here), " ".join(there)
        words = [_NUMBER.sub("#", text) for text in (one, two)]
        numbers = zip(_NUMBER.findall(one), _NUMBER.findall(two), strict=False)
        if words[0] != words[1] or not all(_close(a, b) for a, b in numbers):
            return f"shown: {one!r}, printed: {two!r}"
    return None


def _lines(shown: str, printed: str) -> list[tuple[str, str]]:
    here, there = shown.strip().splitlines(), printed.strip().splitlines()
    missing = len(there) - len(here)
    return list(zip(here + [""] * missing, there + [""] * -missing, strict=True))


def _close(a: str, b: str) -> bool:
    if a == b:
        return True
    one, two = (float(text.replace(",", "").replace("−", "-")) for text in (a, b))
    if max(abs(one), abs(two)) < ROUNDING:
        return True
    decimals = min(len(text.partition("e")[0].partition(".")[2]) for text in (a, b))
    power = int(a.partition("e")[2] or 0)
    return math.isclose(one, two, rel_tol=TOLERANCE, abs_tol=1.01 * 10.0 ** (power - decimals))


def refresh(page: Path) -> bool:
    """Write what a page prints below its blocks; whether anything changed."""
    text = page.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        found = list(run_page(page))
    updated = text
    for block, printed in reversed(found):
        if block.output is not None and (
            not block.output or difference(block.output, printed) is not None
        ):
            updated = updated[: block.span[0]] + printed + updated[block.span[1] :]
    if updated != text:
        page.write_text(updated, encoding="utf-8")
    return updated != text


def main(arguments: list[str]) -> None:
    """Refresh the pages given, or all of them."""
    os.environ["COLUMNS"] = str(WIDTH)
    given = [Path(name).resolve() for name in arguments]
    for page in given or [page for page in PAGES if page.stem not in REAL]:
        print(page.name, "changed" if refresh(page) else "unchanged")


if __name__ == "__main__":
    main(sys.argv[1:])
