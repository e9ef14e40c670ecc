"""The ten seconds of the README: a name typed twice, a head switched off, and the copy gone.

    .venv/bin/python scripts/animation.py           # into docs/pictures/story.png

Frames are screenshots, joined into one animated PNG: every viewer shows it, and writing one takes
no library. Needs the system's Chromium and playwright (`make setup` installs it).
"""

import argparse
import re
import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

from pictures import opened_page
from playwright.sync_api import Page, expect

WIDTH, HEIGHT = 1080, 680
LARGEST = 1_500_000
TEXT = "Mr. and Mrs. Tillerman kept the lighthouse on Gull Rock. On stormy nights Mr. Tiller"
PREDICTED, SWITCH = "man", "L0H3"
# Milliseconds that a frame of typing is shown, and those that are to be read.
TYPING, READING = 400, 2600

SETTLED = """() => document.querySelector(".headline")
  && !document.querySelector("main [aria-busy=true], main .loading")"""

Frame = tuple[bytes, int]
"""A PNG file, and the milliseconds that it is shown."""


def main() -> int:
    """Write the animation; returns 1 if it is too large."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/pictures/story.png"))
    out: Path = parser.parse_args().out
    with opened_page("two-layer", WIDTH, HEIGHT) as page:
        out.write_bytes(animated_png(list(frames(page))))
    size = out.stat().st_size
    print(f"{out}: {size / 1e3:.0f} kB{'' if size <= LARGEST else ', which is too large'}")
    return int(size > LARGEST)


def frames(page: Page) -> Iterator[Frame]:
    """The text as it is typed, two words at a time, its explanation, and a switch."""
    expect.set_options(timeout=120_000)
    headline = page.locator(".headline")
    expect(headline).to_be_visible()
    box = page.get_by_role("textbox", name="Text")
    for end in re.finditer(r"\S+(\s+\S+)?", TEXT):
        box.fill(TEXT[: end.end()])
        page.wait_for_timeout(600)
        page.wait_for_function(SETTLED)
        yield shot(page), TYPING
    page.keyboard.press("Escape")
    expect(headline).to_contain_text(f"→ {PREDICTED}")
    page.locator("section.graph .node").first.wait_for()
    page.wait_for_timeout(600)
    yield shot(page), READING
    switch = page.get_by_role("switch", name=SWITCH)
    switch.hover()
    yield shot(page), TYPING
    switch.click()
    expect(headline).to_contain_text(f"without {SWITCH}")
    page.wait_for_timeout(600)
    yield shot(page), 2 * READING


def shot(page: Page) -> bytes:
    """What the page shows, without a blinking caret."""
    return page.screenshot(animations="disabled", caret="hide")


def animated_png(shown: list[Frame]) -> bytes:
    """One animated PNG of equally large PNG files; the third edition of PNG has its chunks."""
    files = [(*_header_and_data(file), pause) for file, pause in shown]
    head = files[0][0]
    parts = [_chunk(b"IHDR", head), _chunk(b"acTL", struct.pack(">II", len(files), 0))]
    number = 0
    for at, (header, data, pause) in enumerate(files):
        if header != head:
            raise ValueError("the frames of an animation have one size and one kind of color")
        place = head[:8] + struct.pack(">IIHHBB", 0, 0, pause, 1000, 0, 0)
        parts.append(_chunk(b"fcTL", struct.pack(">I", number) + place))
        number += 1
        # The first frame is also the picture of viewers that do not animate.
        if at == 0:
            parts.append(_chunk(b"IDAT", data))
        else:
            parts.append(_chunk(b"fdAT", struct.pack(">I", number) + data))
            number += 1
    return b"\x89PNG\r\n\x1a\n" + b"".join([*parts, _chunk(b"IEND", b"")])


def _header_and_data(file: bytes) -> tuple[bytes, bytes]:
    """The header of a PNG file and its image data, which a file may have in pieces."""
    at, header, data = 8, b"", b""
    while at < len(file):
        size, name = struct.unpack(">I4s", file[at : at + 8])
        content = file[at + 8 : at + 8 + size]
        header = content if name == b"IHDR" else header
        data += content if name == b"IDAT" else b""
        at += size + 12
    return header, zlib.compress(zlib.decompress(data), 9)


def _chunk(name: bytes, content: bytes) -> bytes:
    check = zlib.crc32(name + content)
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", check)


if __name__ == "__main__":
    sys.exit(main())
