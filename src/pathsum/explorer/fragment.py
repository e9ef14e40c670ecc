"""A fragment: one view of a report as a piece of HTML, to be pasted into a page of one's own.

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
from base64 import b64encode
from collections.abc import Sequence
from typing import Any

from pathsum import bundle
from pathsum.errors import InputError

MAX_BYTES = 300_000
HEIGHT = 720

# No "<" in it, so nothing in it can end its element.
_LOADER = """(async (place, packed) => {
const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
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
})(document.currentScript.previousElementSibling, "%s");"""


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
    packed = b64encode(compressor.compress(whole) + compressor.flush()).decode("ascii")
    label = html.escape(f"{report['title']}: {', '.join(report['views'])} (pathsum)")
    made = (
        f'<div role="group" aria-label="{label}" style="height: {HEIGHT}px"></div>'
        f"<script>{_LOADER % packed}</script>\n"
    ).encode()
    if len(made) > MAX_BYTES:
        raise InputError(
            f"the fragment has {len(made) / 1e3:.0f} kB, and at most {MAX_BYTES / 1e3:.0f} kB fit "
            "into a page of somebody else; give fewer or shorter texts, or explain one prediction "
            "(position)"
        )
    return made
