"""A fragment: one view of a report as a piece of HTML, to paste into another page.

    <div></div><script>…</script>

The script holds the explorer's bundle and the answers, compressed together, and shows the view
inside the element before it, in a shadow root, so that the styles of the page and of the view leave
each other alone. It requests nothing. What is compressed is

    uint32 n, little-endian · n bytes of UTF-8 JSON · style sheet · script · blocks of answers
"""

import html
import json
import struct
import zlib
from base64 import b85encode
from collections.abc import Sequence
from typing import Any

from pathsum.base.errors import InputError
from pathsum.explorer import bundle

MAX_BYTES = 300_000
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
    # Whole words of four bytes; the browser is told how many of them are data.
    packed = b85encode(data + bytes(-len(data) % 4)).decode("ascii").replace("<", ",")
    label = html.escape(f"{report['title']}: {', '.join(report['views'])} (pathsum)")
    made = (
        f'<div role="group" aria-label="{label}" style="height: {HEIGHT}px"></div>'
        f"<script>{_LOADER % (_LETTERS, len(data), packed)}</script>\n"
    ).encode()
    if len(made) > MAX_BYTES:
        raise InputError(
            f"the fragment has {len(made) / 1e3:.0f} kB, and at most {MAX_BYTES / 1e3:.0f} kB fit "
            "into another page; give fewer or shorter texts, or explain one prediction "
            "(position)"
        )
    return made
