"""`report`: the explorer as one HTML file with its answers inside; no server, no network."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pathsum.base import Progress, Record, Table, prose_column, silent, text_column
from pathsum.base.arguments import checked
from pathsum.base.errors import InputError, NotExactError
from pathsum.base.files import check_output, write_output
from pathsum.base.options import parse_option
from pathsum.explorer.answers.model import Vocabulary
from pathsum.explorer.explorer import Explorer
from pathsum.explorer.params import ModelParams, answer_key
from pathsum.explorer.report_contents import (
    COMPUTED,
    ESSENTIAL,
    Contents,
    Recorded,
    ReportView,
    position_from_end,
    recorded,
    runs_in_page,
)
from pathsum.explorer.report_file import FORMAT, VERSION, Packed, assemble, assemble_fragment
from pathsum.explorer.wire import encode
from pathsum.model import Model


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
        """Its file, size and contents, and the questions without an answer."""
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
    paper's claims, and the training if the model has snapshots. A small attention-only model runs
    in the page: type any text, explain any prediction, switch heads off. Of other models, the
    answers about the example texts are recorded. `others` are models to compare with. `texts` (or
    lists of token ids) take the place of the example texts, and every prediction of them is
    explained, or with `position` the one there. `views` are those of `ReportView`; by default all
    that the model has something to show in. With `fragment`, the file is one view without a page
    around it, of at most 2.5 MB, to be pasted into an HTML page. Numbers that are recorded are
    rounded to six digits (four in a fragment), attention to half precision.
    """
    target = check_output(path)
    wanted = None if views is None else _parse_views(views)
    if fragment and (wanted is None or len(wanted) != 1):
        raise InputError("a fragment shows one view; name it, for example views=['why']")
    contents = Contents(wanted or tuple(ReportView), position, slim=fragment)
    # A report offers only the models that it holds answers about.
    explorer = Explorer([model, *others], bundled=(), texts=texts, digits=contents.digits)
    if runs_in_page(explorer, contents):
        explorer.answer("run", {"example": 0})  # raises if the model cannot run at all
    packed, left_out = _answers(explorer, contents, progress)
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
    if "weights" in answered:
        answered.update(COMPUTED)
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
    explorer: Explorer, contents: Contents, progress: Progress
) -> tuple[Packed, list[str]]:
    """The answers of a report, and the questions without one, with reasons."""
    packed = Packed()
    left_out: dict[str, None] = {}

    def count(what: str) -> None:  # the total is known only at the end
        progress(len(packed.places), len(packed.places) + 1, f"answering {what}")

    def step(done: int, total: int, what: str) -> None:
        count(f"{what}, {done} of {total}")

    for one in recorded(explorer, contents):
        count(one.name)
        try:
            wire = _answer(explorer, one, contents, step)
        except (InputError, NotExactError) as error:
            left_out[f"{one.name}: {error}"] = None
        else:
            packed.add(answer_key(one.name, one.params), wire)
    progress(len(packed.places), len(packed.places), "writing")
    return packed, list(left_out)


def _answer(explorer: Explorer, one: Recorded, contents: Contents, progress: Progress) -> bytes:
    is_live = not contents.slim or runs_in_page(explorer, contents)
    if is_live or one.name != "vocabulary":
        return explorer.ask(one.name, one.params, progress)
    record = explorer.answer(one.name, one.params)
    assert isinstance(record, Vocabulary)
    # Nothing is drawn from it in a fragment that does not run its model.
    return encode(replace(record, counts=None, drawable=record.drawable[:0]), contents.digits)


def _start(explorer: Explorer, view: str, position: int | None, fragment: bool) -> str:
    """Where the page opens: its first view, at the prediction that is explained."""
    if position is None:
        # With a text named, no cell of a pattern is open, whose scores a fragment does not hold.
        return f"#/{view}?example=0" if fragment else f"#/{view}"
    length = len(explorer.session.examples(ModelParams())[0].ids)
    return f"#/{view}?example=0&position={position_from_end(length, position)}"


def _head(title: str, views: Sequence[str], packed: Packed) -> dict[str, Any]:
    """The head of the file: its views, and the position of each answer in the blocks."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "title": title,
        "views": list(views),
        "answers": packed.places,
    }
