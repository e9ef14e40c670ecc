"""The guide's table of claims over seeds, by the script that makes it."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from pathsum.claims.paper import STATEMENTS
from pathsum.cli.main import main

ROOT = Path(__file__).parents[2]
IDS = [one.id for _, one in STATEMENTS]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    file = ROOT / "scripts" / "measure_claims.py"
    spec = importlib.util.spec_from_file_location("measure_claims", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "measure_claims", module)
    spec.loader.exec_module(module)
    return module


def test_the_table_of_the_guide_is_what_was_measured(script: ModuleType) -> None:
    page = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
    assert script.page_table() in page
    assert all(f"| {name} |" in page for name in IDS)


def test_the_table_is_replaced_and_nothing_else(script: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "paper.md"
    page.write_text("before\n\n| claim | rule | old |\n| --- | --- | --- |\n\nafter\n")
    script.write_page(page)
    assert page.read_text() == f"before\n\n{script.page_table()}\nafter\n"


def test_the_command_prints_seeds_without_measuring(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["paper", "--seeds", "--json"]) == 0
    assert [row["claim"] for row in json.loads(capsys.readouterr().out)] == IDS
    assert main(["paper", "--seeds"]) == 0
    assert "two-mechanism" in capsys.readouterr().out


def test_the_command_measures_a_claim(capsys: pytest.CaptureFixture[str]) -> None:
    model = "hand-built-induction"
    assert main(["paper", model, "--claim", "two-random", "--rules"]) == 0
    shown = capsys.readouterr().out
    assert "two-random" in shown and "holds if the loss saved on the second copy" in shown
    assert main(["paper", model, "--claim", "two-random", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["format"] == "pathsum-paper" and found["claims"][0]["verdict"] == "holds"
    assert main(["paper", model, "--claim", "two-x"]) == 2
    assert "there is no claim 'two-x'" in capsys.readouterr().err


def test_a_run_that_has_not_finished_is_left_out(
    script: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    into = tmp_path / "seeds.json"
    monkeypatch.setattr(sys, "argv", ["measure_claims", str(tmp_path), "--into", str(into)])
    assert script.main() == 1
    assert "has not finished" in capsys.readouterr().err and not into.exists()
