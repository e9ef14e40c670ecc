"""`report`: the explorer as one HTML file with its answers inside; no server, no network.

The file holds the explorer's own bundle. Its content security policy allows that script and style
by their hashes and nothing else: the page cannot load or send anything, and no text of a token can
run as code.
"""

import base64
import hashlib
import html
import json
import os
import re
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from pathsum import bundle
from pathsum.errors import FailedError, FileError, InputError, NotExactError
from pathsum.explorer.explorer import Explorer
from pathsum.explorer.params import answer_key
from pathsum.explorer.report_contents import Recorded, recorded
from pathsum.files import check_output, read_text, write_output
from pathsum.model import Model
from pathsum.result import Progress, Record, Table, prose_column, silent, text_column

FORMAT, VERSION = "pathsum-report", 1
ELEMENT = '<script type="application/json" id="pathsum-report">'
POLICY = "Content-Security-Policy"
# Higher levels take three times as long and save 1 %.
COMPRESSION = 6
# Threads that compute answers, and how many answers may wait to be written.
THREADS, MAX_PENDING = min(4, os.cpu_count() or 1), 64


@dataclass(frozen=True)
class Report(Record, kind="report-file"):
    """A report that was written; `left_out` lists questions without an answer, and why."""

    model: str
    path: str
    bytes: int
    answers: int
    left_out: tuple[str, ...]

    def to_table(self) -> Table:
        """Its file, size, and what it leaves out."""
        rows = (
            ("file", self.path),
            ("size", f"{self.bytes / 1e6:.1f} MB"),
            ("answers", f"{self.answers:,}"),
            *(("left out", reason) for reason in self.left_out),
        )
        columns = (text_column(""), prose_column("report"))
        return Table(columns, rows, title=f"report of {self.model}")


def report(
    model: str | Path | Model,
    path: str | Path,
    *,
    others: Sequence[str | Path | Model] = (),
    progress: Progress = silent,
) -> Report:
    """Write the explorer of a model, with its answers, to one HTML file.

        ps.report("two-layer", "two-layer.html")

    It opens from disk in any browser and holds the example texts, every head, the circuit, the
    paper's claims, and the training if the model is the folder of a run with snapshots. `others`
    are models to compare with. For anything else, such as your own texts, use `pathsum explore`.
    """
    target = check_output(path)
    # A report offers only the models that it holds answers about.
    explorer = Explorer([model, *others], bundled=())
    answers, left_out = _answers(explorer, progress)
    page = assemble(explorer.name, answers)
    write_output(target, page)
    return Report(explorer.name, str(target), len(page), len(answers), tuple(left_out))


def _answers(explorer: Explorer, progress: Progress) -> tuple[dict[str, str], list[str]]:
    found: dict[str, str] = {}
    left_out: dict[str, None] = {}
    with ThreadPoolExecutor(THREADS) as pool:
        try:
            for number, (question, packed) in enumerate(_in_order(explorer, pool)):
                # The total is known only at the end, so the bar grows as it goes.
                progress(number, number + 1, f"answering {question.name}")
                try:
                    found[answer_key(question.name, question.params)] = packed.result()
                except (InputError, NotExactError) as error:
                    left_out[f"{question.name}: {error}"] = None
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    progress(len(found), len(found), "writing")
    return found, list(left_out)


def _in_order(
    explorer: Explorer, pool: ThreadPoolExecutor
) -> Iterator[tuple[Recorded, "Future[str]"]]:
    """Every question with its pending answer, in the report's order."""
    pending: deque[tuple[Recorded, Future[str]]] = deque()
    for question in recorded(explorer):
        pending.append((question, pool.submit(_packed, explorer, question)))
        if len(pending) >= MAX_PENDING:
            yield pending.popleft()
    yield from pending


def _packed(explorer: Explorer, question: Recorded) -> str:
    return pack(explorer.ask(question.name, question.params))


def pack(wire: bytes) -> str:
    """An answer as text: raw deflate, base64."""
    compressor = zlib.compressobj(COMPRESSION, zlib.DEFLATED, -zlib.MAX_WBITS)
    return base64.b64encode(compressor.compress(wire) + compressor.flush()).decode("ascii")


def unpack(packed: str) -> bytes:
    """The inverse of `pack`."""
    return zlib.decompress(base64.b64decode(packed), -zlib.MAX_WBITS)


def assemble(title: str, answers: dict[str, str]) -> bytes:
    """The bundle's page with script, style and answers inlined."""
    script = _escape_script(bundle.read(bundle.SCRIPT).decode("utf-8"))
    style = bundle.read(bundle.STYLE).decode("utf-8")
    if "</style" in style.lower():
        raise FailedError(
            "the bundle's style sheet contains </style, which would end its own element; rebuild it"
        )
    data = {"format": FORMAT, "version": VERSION, "title": title, "answers": answers}
    # Inside an element that does not run, with every < escaped so that nothing ends the element.
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    page = bundle.read(bundle.PAGE).decode("utf-8")
    page = _once(page, r"<title>[^<]*</title>", f"<title>{html.escape(title)} · pathsum</title>")
    page = _once(
        page,
        r"<head>",
        f'<head>\n    <meta http-equiv="{POLICY}" content="{_policy(script, style)}" />',
    )
    page = _once(page, r'<link rel="stylesheet"[^>]*>', f"<style>{style}</style>")
    page = _once(page, r"<script\b[^>]*></script>", f'<script type="module">{script}</script>')
    page = _once(page, r"</body>", f"  {ELEMENT}{text}</script>\n  </body>")
    return page.encode("utf-8")


def read_report(path: str | Path) -> dict[str, str]:
    """The packed answers of a report, by key."""
    page = read_text(Path(path))
    found = re.search(rf"{re.escape(ELEMENT)}(.*?)</script>", page, re.DOTALL)
    data = json.loads(found[1]) if found else {}
    if data.get("format") != FORMAT or data.get("version") != VERSION:
        raise FileError(f"{path} is not a report of this version of pathsum")
    return dict(data["answers"])


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
