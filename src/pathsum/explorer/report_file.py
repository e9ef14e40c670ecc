"""The file of a report: answers packed into blocks, and the HTML around them.

A report is the explorer's page with its script, style sheet and answers inlined. Its content
security policy allows that script and style by their hashes and nothing else: the page cannot load
or send anything, and no text of a token can run as code.

A fragment is one view as a piece of HTML, to paste into another page:

    <div></div><script>…</script>

Its script holds the explorer's bundle and the answers, compressed together, and shows the view
inside the element before it, in a shadow root, so that the styles of the page and of the view do
not affect each other. It requests nothing. The compressed data is

    uint32 n, little-endian · n bytes of UTF-8 JSON · style sheet · script · blocks of answers
"""

import base64
import hashlib
import html
import json
import re
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pathsum.base.errors import FailedError, FileError, InputError
from pathsum.base.files import read_text
from pathsum.explorer import bundle

FORMAT, VERSION = "pathsum-report", 2
ELEMENT = '<script type="application/json" id="pathsum-report">'
POLICY = "Content-Security-Policy"
# Higher levels take three times as long and save 1 %.
COMPRESSION = 6
# Bytes after which a block is closed: the browser unpacks a whole block for its first answer.
BLOCK_BYTES = 2**19


@dataclass
class Packed:
    """Blocks of answers; `places` maps the key of an answer to its block, first byte and length."""

    _blocks: list[bytearray] = field(default_factory=list[bytearray])
    places: dict[str, tuple[int, int, int]] = field(default_factory=dict[str, tuple[int, int, int]])
    _open: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def blocks(self) -> tuple[bytes, ...]:
        """All blocks, in order."""
        return tuple(bytes(block) for block in self._blocks)

    def add(self, key: str, wire: bytes) -> None:
        """Add an answer to the block of its question."""
        name = key.partition(":")[0]
        number = self._open.get(name)
        if number is None or len(self._blocks[number]) + len(wire) > BLOCK_BYTES:
            number = self._open[name] = len(self._blocks)
            self._blocks.append(bytearray())
        self.places[key] = (number, len(self._blocks[number]), len(wire))
        self._blocks[number] += wire


def deflate(data: bytes) -> str:
    """Bytes as text: raw deflate, base64."""
    compressor = zlib.compressobj(COMPRESSION, zlib.DEFLATED, -zlib.MAX_WBITS)
    return base64.b64encode(compressor.compress(data) + compressor.flush()).decode("ascii")


def inflate(packed: str) -> bytes:
    """The inverse of `deflate`.

    >>> inflate(deflate(b"abc"))
    b'abc'
    """
    return zlib.decompress(base64.b64decode(packed), -zlib.MAX_WBITS)


def assemble(head: dict[str, Any], blocks: Sequence[bytes]) -> bytes:
    """The bundle's page with script, style and answers inlined."""
    script = _escape_script(bundle.read(bundle.SCRIPT).decode("utf-8"))
    style = bundle.read(bundle.STYLE).decode("utf-8")
    if "</style" in style.lower():
        raise FailedError(
            "the bundle's style sheet contains </style, which would end its own element; rebuild it"
        )
    data = {**head, "blocks": list(map(deflate, blocks))}
    # In an element that does not run, with every < escaped so that nothing ends the element.
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    title = html.escape(head["title"])
    page = bundle.read(bundle.PAGE).decode("utf-8")
    page = _once(page, r"<title>[^<]*</title>", f"<title>{title} · pathsum</title>")
    page = _once(
        page,
        r"<head>",
        f'<head>\n    <meta http-equiv="{POLICY}" content="{_policy(script, style)}" />',
    )
    page = _once(page, r'<link rel="stylesheet"[^>]*>', f"<style>{style}</style>")
    page = _once(page, r"<script\b[^>]*></script>", f'<script type="module">{script}</script>')
    page = _once(page, r"</body>", f"  {ELEMENT}{text}</script>\n  </body>")
    return page.encode("utf-8")


def read_report(path: str | Path) -> dict[str, bytes]:
    """The answers of a report, by key, each in the wire format."""
    page = read_text(Path(path))
    found = re.search(rf"{re.escape(ELEMENT)}(.*?)</script>", page, re.DOTALL)
    data = json.loads(found[1]) if found else {}
    if data.get("format") != FORMAT or data.get("version") != VERSION:
        raise FileError(f"{path} is not a report of this version of pathsum")
    blocks = [inflate(block) for block in data["blocks"]]
    return {
        key: blocks[block][start : start + length]
        for key, (block, start, length) in data["answers"].items()
    }


def _policy(script: str, style: str) -> str:
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src 'sha256-{_digest(script)}'",
            f"style-src 'sha256-{_digest(style)}'",
            "img-src data: blob:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


def _escape_script(script: str) -> str:
    """The script with `</script` and `<!--` escaped; they occur in string literals only."""
    return re.sub(r"<(?=/script|!--)", r"\\x3c", script, flags=re.IGNORECASE)


def _once(page: str, pattern: str, new: str) -> str:
    found, count = re.subn(pattern, lambda _: new, page, count=1)
    if count != 1:
        raise FailedError(f"the bundle's page has no {pattern!r}, so no report can be made from it")
    return found


MAX_BYTES = 2_500_000
HEIGHT = 720

# Base 85, which takes 6 % less room than base 64. The comma stands for "<", so that nothing in it
# begins or ends an element.
_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;,=>?@^_`{|}~"
_LOADER = """(async (place, letters, size, packed) => {
const value = Object.fromEntries([...letters].map((letter, number) => [letter, number]));
const bytes = new Uint8Array((packed.length / 5) * 4);
const view = new DataView(bytes.buffer);
for (let word = 0; word * 5 < packed.length; word++) {
let sum = 0;
for (let i = 0; i < 5; i++) sum = sum * 85 + value[packed[word * 5 + i]];
view.setUint32(word * 4, sum);
}
const unpack = new DecompressionStream("deflate-raw");
const stream = new Blob([bytes.subarray(0, size)]).stream().pipeThrough(unpack);
const whole = await new Response(stream).arrayBuffer();
const length = new DataView(whole).getUint32(0, true);
const text = (from, size) => new TextDecoder().decode(new Uint8Array(whole, from, size));
const head = JSON.parse(text(4, length));
let from = 4 + length;
const next = (size) => new Uint8Array(whole, (from += size) - size, size);
const style = new TextDecoder().decode(next(head.style));
const script = URL.createObjectURL(new Blob([next(head.script)], { type: "text/javascript" }));
const { embed } = await import(script);
URL.revokeObjectURL(script);
embed(place, style, { ...head.report, blocks: head.blocks.map(next) });
})(document.currentScript.previousElementSibling, "%s", %d, "%s");"""


def assemble_fragment(report: dict[str, Any], blocks: Sequence[bytes]) -> bytes:
    """The HTML of a fragment."""
    style, script = bundle.read(bundle.STYLE), bundle.read(bundle.SCRIPT)
    head = {
        "style": len(style),
        "script": len(script),
        "blocks": [len(block) for block in blocks],
        "report": report,
    }
    text = json.dumps(head, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    whole = b"".join((struct.pack("<I", len(text)), text, style, script, *blocks))
    # The best compression: every percent counts here.
    compressor = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS, 9)
    data = compressor.compress(whole) + compressor.flush()
    # Padded to words of four bytes; the loader gets the number of bytes that are data.
    packed = base64.b85encode(data + bytes(-len(data) % 4)).decode("ascii").replace("<", ",")
    label = html.escape(f"{report['title']}: {', '.join(report['views'])} (pathsum)")
    made = (
        f'<div role="group" aria-label="{label}" style="height: {HEIGHT}px"></div>'
        f"<script>{_LOADER % (_LETTERS, len(data), packed)}</script>\n"
    ).encode()
    if len(made) > MAX_BYTES:
        raise InputError(
            f"the fragment has {len(made) / 1e6:.2f} MB, and at most {MAX_BYTES / 1e6:.1f} MB fit "
            "into another page; give fewer or shorter texts, or explain one prediction "
            "(position)"
        )
    return made
