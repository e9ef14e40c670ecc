"""Parts of a report that other processes answer."""

from pathlib import Path

import pytest

import pathsum as ps
from pathsum.base.errors import FailedError
from pathsum.explorer.explorer import Explorer
from pathsum.explorer.params import ModelParams
from pathsum.explorer.report import read_report
from pathsum.explorer.report_answers import Job, longest_first, make_job
from pathsum.explorer.report_contents import (
    Contents,
    Parts,
    ReportView,
    explained_texts,
    report_parts,
)

VIEWS = ["text", "atlas"]
TEXTS = ["a b c a b", "c a c a"]
ANSWERS = "pathsum.explorer.report_answers"


def test_two_processes_write_what_one_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[dict[str, bytes]] = []
    for processes in (1, 2):
        monkeypatch.setattr(f"{ANSWERS}.MAX_PROCESSES", processes)
        path = tmp_path / f"{processes}.html"
        said: list[str] = []
        ps.report(
            *("hand-built-induction", path),
            texts=TEXTS,
            views=VIEWS,
            progress=lambda done, total, what, said=said: said.append(what),
        )
        assert "answering atlas" in said
        if processes == 1:
            assert any(what.startswith("answering heads on random tokens, 0 of ") for what in said)
        found.append(read_report(path))
    alone, together = found
    assert list(alone) == list(together)
    assert [len(wire) for wire in alone.values()] == [len(wire) for wire in together.values()]
    assert alone["atlas:{}"] == together["atlas:{}"]


def test_the_longest_parts_come_first() -> None:
    explorer = Explorer(["two-layer"], bundled=())
    parts = report_parts(explorer, Contents())
    found = longest_first(explorer, parts)
    assert set(found) == set(parts) and len(found) == len(parts)
    assert found[0].kind is Parts.HEADS
    examples = explorer.workbench.examples(ModelParams())
    texts = [int(part.of) for part in found if part.kind is Parts.TEXT]
    # Those that are explained completely, then the others, which take as long as each other.
    complete = explained_texts(explorer)
    first = sorted(complete, key=lambda number: -len(examples[number].ids))
    assert texts == [*first, *(number for number in range(len(examples)) if number not in complete)]


def test_a_process_that_ends_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{ANSWERS}.MAX_PROCESSES", 2)
    monkeypatch.setattr(f"{ANSWERS}.REPORT_HELPER", "raise SystemExit(3)")
    with pytest.raises(FailedError, match="a process that answers a part of the report ended"):
        ps.report("hand-built-induction", tmp_path / "r.html", texts=TEXTS, views=VIEWS)
    assert not (tmp_path / "r.html").exists()


def test_what_goes_wrong_in_a_process_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{ANSWERS}.MAX_PROCESSES", 2)
    # The other process is told to open a model that does not exist.
    monkeypatch.setattr(Job, "to_json", lambda job: {"models": ["gone"], **EMPTY})
    with pytest.raises(FailedError, match="gone"):
        ps.report("hand-built-induction", tmp_path / "r.html", texts=TEXTS, views=VIEWS)


EMPTY = {"texts": [], "contents": {"views": ["text"], "position": None, "slim": False}}


def test_a_job_is_the_same_on_the_other_side() -> None:
    contents = Contents((ReportView.ATLAS, ReportView.TEXT), 3, slim=True)
    job = make_job(["two-layer", Path("folder")], ["a text", [1, 2]], contents)
    assert job is not None
    assert Job.from_json(job.to_json()) == job


def test_a_model_in_memory_is_answered_by_this_process() -> None:
    assert make_job([ps.load("hand-built-induction")], (), Contents()) is None
