"""The examples run: scripts print something, and notebooks print what they show."""

import runpy
from pathlib import Path

import pytest
from scripts.docs_outputs import WIDTH, difference
from scripts.notebooks import NOTEBOOKS, read_notebook, run_notebook, shown_text

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_example(example: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(example), run_name="__main__")
    assert len(capsys.readouterr().out.splitlines()) > 3


# Those that measure every snapshot of a training run take minutes.
SLOW = ("the-paper-in-ten-figures", "watch-induction-form")


@pytest.mark.parametrize(
    "file",
    [
        pytest.param(file, marks=pytest.mark.slow if file.stem in SLOW else (), id=file.stem)
        for file in NOTEBOOKS
    ],
)
def test_notebook(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    for cell, outputs in run_notebook(read_notebook(file)):
        found = difference(shown_text(cell["outputs"]), shown_text(outputs))
        assert found is None, f"{file.name}: {found}; python -m scripts.notebooks"
        assert len(cell["outputs"]) == len(outputs)


def test_notebooks_are_small_and_show_their_outputs() -> None:
    assert len(NOTEBOOKS) == 4
    for file in NOTEBOOKS:
        assert file.stat().st_size < 300_000, file.name
        figures = [
            each
            for cell in read_notebook(file)["cells"]
            for each in cell.get("outputs", [])
            if "image/svg+xml" in each.get("data", {})
        ]
        assert figures, file.name


def test_there_are_examples_and_each_says_what_it_shows() -> None:
    assert len(EXAMPLES) > 5
    for example in EXAMPLES:
        assert example.read_text(encoding="utf-8").startswith('"""'), example.name
