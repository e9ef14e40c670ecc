"""The examples run, and each prints something."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_example(example: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(example), run_name="__main__")
    assert len(capsys.readouterr().out.splitlines()) > 3


def test_there_are_examples_and_each_says_what_it_shows() -> None:
    assert len(EXAMPLES) > 5
    for example in EXAMPLES:
        assert example.read_text(encoding="utf-8").startswith('"""'), example.name
