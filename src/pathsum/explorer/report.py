"""`report`: the explorer as one file, with its answers inside. No server, no network.

The file is the same bundle as the explorer's. Script and style are in it, allowed by their hashes
and nothing else is: the page can load nothing, send nothing, and run nothing that a token's text
might spell.
"""

import base64
import hashlib
import html
import json
import os
import re
import tempfile
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from pathsum import bundle
from pathsum.errors import FailedError, FileError, InputError, NotExactError
from pathsum.explorer.answer_key import key
from pathsum.explorer.explorer import Explorer
from pathsum.explorer.report_contents import Recorded, recorded
from pathsum.model import Model
from pathsum.result import Progress, Record, Table, prose_column, silent, text_column

FORMAT, VERSION = "pathsum-report", 1
ELEMENT = '<script type="application/json" id="pathsum-report">'
POLICY = "Content-Security-Policy"
# A higher level takes three times as long for a hundredth of the size.
LEVEL = 6
# Answers computed at a time, and asked for ahead of the one that is written down.
AT_ONCE, AHEAD = min(4, os.cpu_count() or 1), 64


@dataclass(frozen=True)
class Report(Record, kind="report-file"):
    """A report that was written; `left_out` says what this model has no answer to, and why."""

    model: str
    path: str
    bytes: int
    answers: int
    left_out: tuple[str, ...]

    def to_table(self) -> Table:
        """Where it is, how large, and what it leaves out."""
        rows = (
            ("file", self.path),
            ("size", f"{self.bytes / 1e6:.1f} MB"),
            ("answers", f"{self.answers:,}"),
            *(("left out", said) for said in self.left_out),
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
    """Write the explorer of a model, answers and all, to one HTML file.

        ps.report("two-layer", "two-layer.html")

    It opens from disk in any browser, and holds the example texts, every head, the circuit, the
    paper's claims, and the training where the model is the folder of a run with snapshots. `others`
    are models to compare with. A question that it does not hold is answered by `pathsum explore`.
    """
    target = _target(path)
    # A report offers the models that it holds answers about.
    explorer = Explorer([model, *others], beside=())
    answers, left_out = _answers(explorer, progress)
    page = assemble(explorer.name, answers)
    _write_aside(target, page)
    return Report(explorer.name, str(target), len(page), len(answers), tuple(left_out))


def _answers(explorer: Explorer, progress: Progress) -> tuple[dict[str, str], list[str]]:
    found: dict[str, str] = {}
    left_out: dict[str, None] = {}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            for number, (question, packed) in enumerate(_in_order(explorer, pool)):
                # How many there are is known when the last has been found; the bar grows with them.
                progress(number, number + 1, f"answering {question.name}")
                try:
                    found[key(question.name, question.parameters)] = packed.result()
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
    """Every question with its answer to come, in the order in which a report holds them."""
    ahead: deque[tuple[Recorded, Future[str]]] = deque()
    for question in recorded(explorer):
        ahead.append((question, pool.submit(_packed, explorer, question)))
        if len(ahead) >= AHEAD:
            yield ahead.popleft()
    yield from ahead


def _packed(explorer: Explorer, question: Recorded) -> str:
    return pack(explorer.ask(question.name, question.parameters))


def pack(wire: bytes) -> str:
    """An answer as text: raw deflate, base64."""
    press = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    return base64.b64encode(press.compress(wire) + press.flush()).decode("ascii")


def unpack(packed: str) -> bytes:
    """The answer that `pack` made text of."""
    return zlib.decompress(base64.b64decode(packed), -zlib.MAX_WBITS)


def assemble(title: str, answers: dict[str, str]) -> bytes:
    """The page: the bundle's own, with script, style and answers inside."""
    script = _harmless_script(bundle.read(bundle.SCRIPT).decode("utf-8"))
    style = bundle.read(bundle.STYLE).decode("utf-8")
    if "</style" in style.lower():
        raise FailedError("the bundle's style sheet would end its own element; build it anew")
    data = {"format": FORMAT, "version": VERSION, "title": title, "answers": answers}
    # In an element that scripts cannot run in, and with nothing in it that could end the element.
    told = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    page = bundle.read(bundle.PAGE).decode("utf-8")
    page = _once(page, r"<title>[^<]*</title>", f"<title>{html.escape(title)} · pathsum</title>")
    page = _once(
        page,
        r"<head>",
        f'<head>\n    <meta http-equiv="{POLICY}" content="{_policy(script, style)}" />',
    )
    page = _once(page, r'<link rel="stylesheet"[^>]*>', f"<style>{style}</style>")
    page = _once(page, r"<script\b[^>]*></script>", f'<script type="module">{script}</script>')
    page = _once(page, r"</body>", f"  {ELEMENT}{told}</script>\n  </body>")
    return page.encode("utf-8")


def read_report(path: str | Path) -> dict[str, str]:
    """The packed answers of a report, by key."""
    page = Path(path).read_text(encoding="utf-8")
    found = re.search(rf"{re.escape(ELEMENT)}(.*?)</script>", page, re.DOTALL)
    data = json.loads(found[1]) if found else {}
    if data.get("format") != FORMAT or data.get("version") != VERSION:
        raise FileError(f"{path} is not a report of this pathsum")
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


def _harmless_script(script: str) -> str:
    """The script with nothing in it that HTML would read; such text occurs in strings only."""
    return re.sub(r"<(?=/script|!--)", r"\\x3c", script, flags=re.IGNORECASE)


def _once(page: str, pattern: str, new: str) -> str:
    found, count = re.subn(pattern, lambda _: new, page, count=1)
    if count != 1:
        raise FailedError(f"the bundle's page has no {pattern!r}, so no report can be made of it")
    return found


def _target(path: str | Path) -> Path:
    target = Path(path).expanduser()
    if target.is_dir():
        raise FileError(f"{target} is a folder; name a file in it, as in {target / 'report.html'}")
    if not target.parent.is_dir():
        raise FileError(f"there is no folder {target.parent} to write {target.name} in")
    return target


def _write_aside(target: Path, page: bytes) -> None:
    """Written beside its place and then renamed: a file with this name is always whole."""
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    aside = Path(name)
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(page)
            out.flush()
            os.fsync(out.fileno())
        aside.chmod(0o644)
        aside.replace(target)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise FileError(f"{target} cannot be written: {error.strerror}") from error
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
