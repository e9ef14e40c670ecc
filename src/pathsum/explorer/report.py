"""`report`: the explorer as one HTML file with its answers inside; no server, no network."""

import base64
import hashlib
import html
import json
import re
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from pathsum.base import Progress, Record, Table, prose_column, silent, text_column
from pathsum.base.errors import FailedError, FileError, InputError, NotExactError
from pathsum.base.files import check_output, read_text, write_output
from pathsum.base.options import checked, parse_option
from pathsum.explorer import bundle
from pathsum.explorer.answers.model import vocabulary
from pathsum.explorer.explorer import Explorer
from pathsum.explorer.params import ModelParams, answer_key, encode
from pathsum.explorer.report_contents import (
    COMPUTED,
    ESSENTIAL,
    Contents,
    ReportView,
    position_from_end,
    report_questions,
    runs_in_page,
)
from pathsum.model import Model

FORMAT, VERSION = "pathsum-report", 2
ELEMENT = '<script type="application/json" id="pathsum-report">'
# Higher levels take three times as long and save 1%.
COMPRESSION = 6
# Maximum size of a block: to read one answer, the browser unpacks its whole block.
BLOCK_BYTES = 2**19


class AnswerBlocks:
    """Blocks of answers; `index` maps the key of an answer to its block, offset and length."""

    def __init__(self) -> None:
        self.blocks: list[bytearray] = []
        self.index: dict[str, tuple[int, int, int]] = {}
        self._open: dict[str, int] = {}

    def add(self, key: str, wire: bytes) -> None:
        """Add an answer to the block of its question."""
        name = key.partition(":")[0]
        number = self._open.get(name)
        if number is None or len(self.blocks[number]) + len(wire) > BLOCK_BYTES:
            number = self._open[name] = len(self.blocks)
            self.blocks.append(bytearray())
        self.index[key] = (number, len(self.blocks[number]), len(wire))
        self.blocks[number] += wire


def deflate(data: bytes | bytearray) -> str:
    """Bytes as text, by raw deflate and base64."""
    compressor = zlib.compressobj(COMPRESSION, zlib.DEFLATED, -zlib.MAX_WBITS)
    return base64.b64encode(compressor.compress(data) + compressor.flush()).decode("ascii")


def inflate(packed: str) -> bytes:
    """The inverse of `deflate`.

    >>> inflate(deflate(b"abc"))
    b'abc'
    """
    return zlib.decompress(base64.b64decode(packed), -zlib.MAX_WBITS)


def assemble(head: dict[str, Any], blocks: Sequence[bytes | bytearray]) -> bytes:
    """The bundle's page with script, style and answers inlined."""
    script = _escape_script(bundle.read(bundle.SCRIPT).decode("utf-8"))
    style = bundle.read(bundle.STYLE).decode("utf-8")
    if "</style" in style.lower():
        raise FailedError(
            "the bundle's style sheet contains </style, which would end its own element; rebuild it"
        )
    data = {**head, "blocks": list(map(deflate, blocks))}
    # In an inert element, with every < escaped so that nothing ends the element.
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    title = html.escape(head["title"])
    page = bundle.read(bundle.PAGE).decode("utf-8")
    page = _replace_once(page, r"<title>[^<]*</title>", f"<title>{title} · pathsum</title>")
    policy = f'<meta http-equiv="Content-Security-Policy" content="{_policy(script, style)}" />'
    page = _replace_once(page, r"<head>", f"<head>\n    {policy}")
    page = _replace_once(page, r'<link rel="stylesheet"[^>]*>', f"<style>{style}</style>")
    page = _replace_once(
        page, r"<script\b[^>]*></script>", f'<script type="module">{script}</script>'
    )
    page = _replace_once(page, r"</body>", f"  {ELEMENT}{text}</script>\n  </body>")
    return page.encode("utf-8")


def read_report(path: str | Path) -> dict[str, bytes]:
    """The answers of a report, by key, each in the wire format."""
    page = read_text(Path(path))
    match = re.search(rf"{re.escape(ELEMENT)}(.*?)</script>", page, re.DOTALL)
    data = json.loads(match[1]) if match else {}
    if data.get("format") != FORMAT or data.get("version") != VERSION:
        raise FileError(f"{path} is not a report of this version of pathsum")
    blocks = [inflate(block) for block in data["blocks"]]
    return {
        key: blocks[block][start : start + length]
        for key, (block, start, length) in data["answers"].items()
    }


def _policy(script: str, style: str) -> str:
    return (
        f"default-src 'none'; script-src 'sha256-{_digest(script)}'; "
        f"style-src 'sha256-{_digest(style)}'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


def _escape_script(script: str) -> str:
    """The script with `</script` and `<!--` escaped; they occur in string literals only."""
    return re.sub(r"<(?=/script|!--)", r"\\x3c", script, flags=re.IGNORECASE)


def _replace_once(page: str, pattern: str, new: str) -> str:
    replaced, count = re.subn(pattern, lambda _: new, page, count=1)
    if count != 1:
        raise FailedError(
            f"the bundle's page has no {pattern!r}, so no report can be made from it; rebuild it"
        )
    return replaced


MAX_BYTES = 2_500_000
HEIGHT = 720

# Base 85, which is 6% shorter than base 64. The comma replaces "<", so that nothing in it begins or
# ends an element.
_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;,=>?@^_`{|}~"


def assemble_fragment(report: dict[str, Any], blocks: Sequence[bytes | bytearray]) -> bytes:
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
    # The best compression, because the size of a fragment is limited.
    compressor = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS, 9)
    data = compressor.compress(whole) + compressor.flush()
    # Padded to words of four bytes; the loader gets the number of bytes that are data.
    packed = base64.b85encode(data + bytes(-len(data) % 4)).decode("ascii").replace("<", ",")
    loader = Path(__file__).with_name("loader.js").read_text(encoding="utf-8").strip()
    label = html.escape(f"{report['title']}: {', '.join(report['views'])} (pathsum)")
    fragment = (
        f'<div role="group" aria-label="{label}" style="height: {HEIGHT}px"></div>'
        f"<script>{loader % (_LETTERS, len(data), packed)}</script>\n"
    ).encode()
    if len(fragment) > MAX_BYTES:
        raise InputError(
            f"the fragment has {len(fragment) / 1e6:.2f} MB, and at most {MAX_BYTES / 1e6:.1f} MB "
            "fit into another page; give fewer or shorter texts, or explain one prediction "
            "(position)"
        )
    return fragment


@dataclass(frozen=True)
class Report(Record, kind="report-file"):
    """A report on disk; `left_out` lists the questions without an answer, with reasons."""

    model: str
    path: str
    bytes: int
    views: tuple[str, ...]
    answers: int
    left_out: tuple[str, ...]

    def to_table(self) -> Table:
        """Its file, size and contents, and the questions without an answer."""
        rows = (
            ("file", self.path),
            ("size", f"{self.bytes / 1e6:.2f} MB"),
            ("views", ", ".join(self.views)),
            ("answers", f"{self.answers:,}"),
            *(("omitted", reason) for reason in self.left_out),
        )
        columns = (text_column(""), prose_column("report"))
        return Table(columns, rows, title=f"report of {self.model}")


@checked
def report(
    model: str | Path | Model,
    path: str | Path,
    *,
    others: Sequence[str | Path | Model] = (),
    texts: Sequence[str | Sequence[int]] = (),
    views: Sequence[ReportView | str] | None = None,
    position: int | None = None,
    fragment: bool = False,
    progress: Progress = silent,
) -> Report:
    """Write the explorer of a model, with its answers, to one HTML file.

    Args:
        model: A model, its name or its folder.
        path: The file to write.
        others: Models to compare with.
        texts: Texts, or lists of token ids, that replace the example texts.
        views: The views to include (`ReportView`); by default every view with content.
        position: Explain only the prediction at this position of each text.
        fragment: Write a single view of at most 2.5 MB, to embed in another HTML page.
        progress: Called before each answer.

    Returns:
        The file, its size, and what it contains.

    Example:
        ```python
        ps.report("two-layer", "two-layer.html")
        ps.report("two-layer", "mine.html", texts=["Ada met Bob. Ada met"], views=["text", "why"])
        ps.report("two-layer", "post.html", texts=[text], views=["why"], fragment=True)
        ```

    It opens from disk in any browser. It contains the example texts, every head, the circuit, the
    paper's claims and, if the model has snapshots, its training. A small attention-only model runs
    in the page: type any text, explain any prediction, switch heads off. For other models, the
    answers for the example texts are precomputed, with numbers of six digits (four in a fragment)
    and attention in half precision.
    """
    target = check_output(path)
    requested = None if views is None else _parse_views(views)
    if fragment and (requested is None or len(requested) != 1):
        raise InputError("a fragment shows one view; name it, for example views=['why']")
    contents = Contents(requested or tuple(ReportView), position, slim=fragment)
    # A report offers only models whose answers it contains.
    explorer = Explorer([model, *others], bundled=(), texts=texts, digits=contents.digits)
    if runs_in_page(explorer, contents):
        explorer.answer("run", {"example": 0})  # raises an error if the model cannot run
    packed, left_out = _answers(explorer, contents, progress)
    included = _views_with_content(contents, packed)
    for view in requested or ():
        if view not in included:
            _refuse_empty(view, explorer.name, left_out)
    page = _page(explorer, contents, packed, included)
    write_output(target, page)
    return Report(
        explorer.name, str(target), len(page), included, len(packed.index), tuple(left_out)
    )


def _page(
    explorer: Explorer, contents: Contents, packed: AnswerBlocks, views: tuple[str, ...]
) -> bytes:
    head = {
        "format": FORMAT,
        "version": VERSION,
        "title": explorer.name,
        "views": list(views),
        "answers": packed.index,
        "start": _start(explorer, contents, views[0]),
    }
    return (assemble_fragment if contents.slim else assemble)(head, packed.blocks)


def _refuse_empty(view: ReportView, name: str, left_out: Sequence[str]) -> NoReturn:
    reasons = [each for each in left_out if each.startswith(f"{ESSENTIAL[view]}: ")]
    reason = reasons[0].partition(": ")[2] if reasons else _EMPTY[view]
    raise InputError(f"there is nothing for the view {str(view)!r} to show of {name}: {reason}")


def _parse_views(views: Sequence[ReportView | str]) -> tuple[ReportView, ...]:
    if isinstance(views, str):
        raise InputError(f"views is {views!r}; give a list, as in ['text', 'why']")
    parsed = {parse_option(ReportView, view, "views") for view in views}
    if not parsed:
        raise InputError("views is empty; give at least one view, or leave it out for all of them")
    return tuple(view for view in ReportView if view in parsed)


def _views_with_content(contents: Contents, packed: AnswerBlocks) -> tuple[str, ...]:
    """The views with content, and the pages of heads if there are any."""
    answered = {key.partition(":")[0] for key in packed.index}
    if "weights" in answered:
        answered.update(COMPUTED)
    included = [str(view) for view in contents.views if ESSENTIAL[view] in answered]
    return (*included, "head") if "head" in answered and "atlas" in included else tuple(included)


_EMPTY = dict.fromkeys(ReportView, "leave it out") | {
    ReportView.TRAINING: "it has no snapshots of its training",
    ReportView.COMPARE: "name other models to compare with",
    ReportView.COMPOSITION: "heads of one layer do not compose",
}


def _answers(
    explorer: Explorer, contents: Contents, progress: Progress
) -> tuple[AnswerBlocks, list[str]]:
    """The answers of a report, and the questions without one, with reasons."""
    packed = AnswerBlocks()
    left_out: dict[str, None] = {}

    def count(what: str) -> None:  # the total is known only at the end
        progress(len(packed.index), len(packed.index) + 1, f"answering {what}")

    def step(done: int, total: int, what: str) -> None:
        count(f"{what}, {done} of {total}")

    is_live = not contents.slim or runs_in_page(explorer, contents)
    for question in report_questions(explorer, contents):
        count(question.name)
        try:
            wire = explorer.ask(question.name, question.params, step)
        except (InputError, NotExactError) as error:
            left_out[f"{question.name}: {error}"] = None
            continue
        if question.name == "vocabulary" and not is_live:
            # A fragment that does not run its model draws no random texts.
            words = vocabulary(explorer.session, ModelParams())
            wire = encode(replace(words, counts=None, drawable=words.drawable[:0]), contents.digits)
        packed.add(answer_key(question.name, question.params), wire)
    progress(len(packed.index), len(packed.index), "writing")
    return packed, list(left_out)


def _start(explorer: Explorer, contents: Contents, view: str) -> str:
    """The state in which the page opens: its first view, at the explained prediction."""
    if contents.position is None:
        # With a text in the link, the page opens no attention cell: a fragment has no scores.
        return f"#/{view}?example=0" if contents.slim else f"#/{view}"
    length = len(explorer.examples[0].ids)
    return f"#/{view}?example=0&position={position_from_end(length, contents.position)}"
