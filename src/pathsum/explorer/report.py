"""`report`: the explorer as one HTML file with its answers inside; no server, no network.

The file holds the explorer's own bundle. Its content security policy allows that script and style
by their hashes and nothing else: the page cannot load or send anything, and no text of a token can
run as code. A fragment is one view of it, to be pasted into a page of one's own (see `fragment`).
"""

import base64
import hashlib
import html
import json
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pathsum.base import Progress, Record, Table, prose_column, silent, text_column
from pathsum.base.arguments import checked
from pathsum.base.errors import FailedError, FileError, InputError
from pathsum.base.files import check_output, read_text, write_output
from pathsum.base.options import parse_option
from pathsum.explorer import bundle
from pathsum.explorer.explorer import Explorer
from pathsum.explorer.fragment import assemble_fragment
from pathsum.explorer.packing import Packed, deflate, inflate
from pathsum.explorer.params import ModelParams
from pathsum.explorer.report_answers import Job, answers, make_job
from pathsum.explorer.report_contents import ESSENTIAL, Contents, ReportView, position_of
from pathsum.model import Model

FORMAT, VERSION = "pathsum-report", 2
ELEMENT = '<script type="application/json" id="pathsum-report">'
POLICY = "Content-Security-Policy"
# Threads that compress blocks, which takes no Python.
THREADS = min(4, os.cpu_count() or 1)


@dataclass(frozen=True)
class Report(Record, kind="report-file"):
    """A report that was written; `left_out` lists questions without an answer, and why."""

    model: str
    path: str
    bytes: int
    views: tuple[str, ...]
    answers: int
    left_out: tuple[str, ...]

    def to_table(self) -> Table:
        """Its file, size, and what it leaves out."""
        rows = (
            ("file", self.path),
            ("size", f"{self.bytes / 1e6:.2f} MB"),
            ("views", ", ".join(self.views)),
            ("answers", f"{self.answers:,}"),
            *(("left out", reason) for reason in self.left_out),
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

        ps.report("two-layer", "two-layer.html")
        ps.report("two-layer", "mine.html", texts=["Ada met Bob. Ada met"], views=["text", "why"])
        ps.report("two-layer", "post.html", texts=[text], views=["why"], fragment=True)

    It opens from disk in any browser and holds the example texts, every head, the circuit, the
    paper's claims, and the training if the model has snapshots. `others` are models to compare
    with. `texts` (or lists of token ids) take the place of the example texts, and every prediction
    of them is explained, or with `position` the one there. `views` are those of `ReportView`; by
    default all that the model has something to show in. With `fragment`, the file is one view
    without a page around it, of at most 300 kB, to be pasted into an HTML page. For anything else,
    use `pathsum explore`. Numbers are rounded to six digits (four in a
    fragment), attention to half precision.
    """
    target = check_output(path)
    wanted = None if views is None else _parse_views(views)
    if fragment and (wanted is None or len(wanted) != 1):
        raise InputError("a fragment shows one view; name it, for example views=['why']")
    contents = Contents(wanted or tuple(ReportView), position, slim=fragment)
    # A report offers only the models that it holds answers about.
    explorer = Explorer(
        [model, *others], bundled=(), texts=texts, trim=False, digits=contents.digits
    )
    job = make_job([model, *others], texts, contents)
    packed, left_out = _answers(explorer, contents, job, progress)
    shown = _held(contents, packed)
    if wanted is not None:
        _check_held(explorer, wanted, shown, left_out)
    head = _head(explorer.name, shown, packed)
    head["start"] = _start(explorer, shown[0], position, fragment)
    make = assemble_fragment if fragment else assemble
    page = make(head, packed.blocks)
    write_output(target, page)
    return Report(explorer.name, str(target), len(page), shown, len(packed.places), tuple(left_out))


def _parse_views(views: Sequence[ReportView | str]) -> tuple[ReportView, ...]:
    if isinstance(views, str):
        raise InputError(f"views is {views!r}; give a list, as in ['text', 'why']")
    chosen = {parse_option(ReportView, view, "views") for view in views}
    if not chosen:
        raise InputError("views is empty; name at least one, or leave it out for all of them")
    return tuple(view for view in ReportView if view in chosen)


def _held(contents: Contents, packed: Packed) -> tuple[str, ...]:
    """The views that have something to show, and the pages of heads if they are in it."""
    answered = {key.partition(":")[0] for key in packed.places}
    found = [str(view) for view in contents.views if ESSENTIAL[view] in answered]
    return (*found, "head") if "head" in answered and "atlas" in found else tuple(found)


def _check_held(
    explorer: Explorer, wanted: Sequence[ReportView], shown: Sequence[str], left_out: list[str]
) -> None:
    for view in wanted:
        if view not in shown:
            reasons = [one for one in left_out if one.startswith(f"{ESSENTIAL[view]}: ")]
            reason = reasons[0].partition(": ")[2] if reasons else _NOTHING[view]
            raise InputError(
                f"there is nothing for the view {str(view)!r} to show of {explorer.name}: {reason}"
            )


_NOTHING = dict.fromkeys(ReportView, "leave it out") | {
    ReportView.TRAINING: "it has no snapshots of its training",
    ReportView.COMPARE: "name other models to compare with",
    ReportView.COMPOSITION: "heads of one layer do not compose",
}


def _answers(
    explorer: Explorer, contents: Contents, job: Job | None, progress: Progress
) -> tuple[Packed, list[str]]:
    found = Packed()
    left_out: dict[str, None] = {}
    for one in answers(explorer, contents, job, progress):
        if one.wire is None:
            left_out[f"{one.name}: {one.problem}"] = None
        elif one.key not in found.places:
            found.add(one.key, one.wire)
    progress(len(found.places), len(found.places), "writing")
    return found, list(left_out)


def _start(explorer: Explorer, view: str, position: int | None, fragment: bool) -> str:
    """Where the page opens: its first view, at the prediction that is explained."""
    if position is None:
        # With a text named, no cell of a pattern is open, whose scores a fragment does not hold.
        return f"#/{view}?e=0" if fragment else f"#/{view}"
    length = len(explorer.workbench.examples(ModelParams())[0].ids)
    return f"#/{view}?e=0&t={position_of(length, position)}"


def _head(title: str, views: Sequence[str], packed: Packed) -> dict[str, Any]:
    """What the browser reads first: where in the blocks each answer is."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "title": title,
        "views": list(views),
        "answers": packed.places,
    }


def assemble(head: dict[str, Any], blocks: Sequence[bytes]) -> bytes:
    """The bundle's page with script, style and answers inlined."""
    script = _escape_script(bundle.read(bundle.SCRIPT).decode("utf-8"))
    style = bundle.read(bundle.STYLE).decode("utf-8")
    if "</style" in style.lower():
        raise FailedError(
            "the bundle's style sheet contains </style, which would end its own element; rebuild it"
        )
    with ThreadPoolExecutor(THREADS) as pool:
        data = {**head, "blocks": list(pool.map(deflate, blocks))}
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
