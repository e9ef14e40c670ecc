"""A run with snapshots: every step can be looked at, compared and scrubbed through."""

from pathlib import Path

import pytest
from tests.explorer.test_questions import check_types
from tests.training.planted import plant

import pathsum as ps
from pathsum.base.errors import InputError
from pathsum.explorer.explorer import Explorer, find_question
from pathsum.explorer.params import answer_key, decode
from pathsum.explorer.report import read_report

SHARES = {0: 0.0, 4: 0.1, 16: 0.3, 64: 0.6, 256: 0.9, 1024: 1.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pathsum.base.files._flush_to_disk", lambda file: None)
        return plant(tmp_path_factory.mktemp("run"), SHARES)


@pytest.fixture(scope="module")
def explorer(folder: Path) -> Explorer:
    return Explorer([folder])


def test_steps_are_those_of_the_run(explorer: Explorer) -> None:
    assert decode(explorer.ask("model"))["steps"] == list(SHARES)


def test_a_run_that_has_not_ended_shows_its_last_snapshot(explorer: Explorer) -> None:
    last = decode(explorer.ask("run", {"ids": "1,2,3", "step": 1024}))
    assert decode(explorer.ask("run", {"ids": "1,2,3"}))["loss"].tolist()[0] == last["loss"][0]
    first = decode(explorer.ask("run", {"ids": "1,2,3", "step": 0}))
    assert first["loss"][0] != last["loss"][0]


def test_a_step_that_was_not_kept(explorer: Explorer) -> None:
    with pytest.raises(InputError, match="no snapshot at step 60; the nearest is 64"):
        explorer.ask("run", {"ids": "1,2", "step": 60})


def test_curves_and_the_phase_change(explorer: Explorer) -> None:
    got = decode(explorer.ask("training"))
    check_types(got, find_question("training").answer, "training")
    assert got["steps"] == list(SHARES)
    assert got["induction"].shape == (len(SHARES), len(got["heads"]))
    assert got["pca"].shape == (len(SHARES), 2)
    assert {curve["title"] for curve in got["curves"]} >= {"prefix matching"}
    assert got["phase_change"] is not None or got["why_none"]


def test_two_steps_are_compared(explorer: Explorer) -> None:
    got = decode(explorer.ask("compare", {"other": explorer.name, "step": 256, "other_step": 1024}))
    assert got["left"].endswith("at step 256") and got["right"].endswith("at step 1024")
    assert [pair["left"] for pair in got["matches"]] == [pair["right"] for pair in got["matches"]]


@pytest.mark.slow
def test_a_report_of_a_run_has_its_training(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pathsum.claims.claim.bundled_names", lambda: ())
    monkeypatch.setattr("pathsum.explorer.report_contents.PREDICTIONS", 1)
    monkeypatch.setattr("pathsum.explorer.report_contents.MAX_HEADS", 1)
    ps.report(folder, tmp_path / "run.html")
    answers = read_report(tmp_path / "run.html")
    assert decode(answers[answer_key("training", {})])["steps"] == list(SHARES)
    assert answer_key("attention", {"example": 0, "step": 64}) in answers


def test_a_model_without_snapshots_says_so() -> None:
    with pytest.raises(InputError, match="has no snapshots of its training"):
        Explorer(["hand-built-induction"]).ask("training")


def test_the_bundled_run_opens_with_its_snapshots() -> None:
    info = decode(Explorer(["two-layer"]).ask("model"))
    assert len(info["steps"]) > 5
