"""`pathsum report` and `pathsum explore` from the command line."""

import json
import re
import threading
from pathlib import Path

import pytest

from pathsum.cli.main import main
from pathsum.explorer.params import decode
from pathsum.explorer.report import read_report
from pathsum.explorer.server import ExplorerServer

MODEL = "hand-built-skip-trigrams"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pathsum.claims.claim.bundled_names", lambda: ())
    monkeypatch.setattr("pathsum.explorer.report_contents.PREDICTIONS", 2)


def test_report_writes_a_file_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "a.html"
    assert main(["report", MODEL, "-o", str(target), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["format"] == "pathsum-report-file" and found["path"] == str(target)
    assert target.stat().st_size == found["bytes"]


@pytest.mark.parametrize("content", ["a b a\n\nb a b\n", '["a b a", [1, 2, 1]]'])
def test_report_of_texts_in_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    texts, target = tmp_path / "texts", tmp_path / "a.html"
    texts.write_text(content)
    words = ["--texts", str(texts), "--views", "text, why", "-o", str(target), "--json"]
    assert main(["report", "hand-built-induction", *words]) == 0
    assert json.loads(capsys.readouterr().out)["views"] == ["text", "why"]
    assert len(decode(read_report(target)["model:{}"])["examples"]) == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("\n \n", "contains no text; write one text per line"),
        ("[]", "contains no text"),
        ('["a", 3]', "entry 2 of .* is '3'; write one text per line"),
        ('["a", [true]]', "entry 2 of"),
        ('["a"', "is not JSON"),
    ],
)
def test_files_that_hold_no_texts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, message: str
) -> None:
    texts = tmp_path / "texts"
    texts.write_text(content)
    out = str(tmp_path / "a.html")
    assert main(["report", "hand-built-induction", "--texts", str(texts), "-o", out]) == 2
    assert re.search(message, " ".join(capsys.readouterr().err.split()))


def test_report_as_a_fragment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts, target = tmp_path / "texts", tmp_path / "a.html"
    texts.write_text("a b a\n")
    words = ["--texts", str(texts), "--views", "why", "--position", "-1", "--fragment"]
    assert main(["report", "hand-built-induction", *words, "-o", str(target)]) == 0
    assert target.read_text().startswith("<div ") and "why" in capsys.readouterr().out


def test_report_into_a_folder_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", MODEL, "-o", str(tmp_path)]) == 2
    assert "is a folder" in capsys.readouterr().err


def test_explore_serves_until_it_is_interrupted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []
    before = {*threading.enumerate()}

    def open_browser(address: str) -> None:
        # Other users of the machine can read the browser's command line, and not the file.
        assert "token" not in address
        file = Path(address.removeprefix("file://"))
        assert file.parent.stat().st_mode & 0o077 == 0
        opened.append(re.findall(r"url=([^\"]+)", file.read_text())[0])

    monkeypatch.setattr("webbrowser.open", open_browser)
    monkeypatch.setattr(ExplorerServer, "run", lambda self: self.start().close())
    assert main(["explore", MODEL, "hand-built-induction", "--port", "0"]) == 0
    out = capsys.readouterr().out
    assert f"{MODEL} is at http://127.0.0.1:" in out and "closed" in out
    assert opened and opened[0] in out
    assert main(["explore", MODEL, "--port", "0", "--no-open"]) == 0
    assert len(opened) == 1
    assert {*threading.enumerate()} <= before


def test_another_host_has_to_be_asked_for_and_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ExplorerServer, "run", lambda self: self.close())
    assert main(["explore", MODEL, "--host", "0.0.0.0", "--port", "0", "--no-open"]) == 0
    out = capsys.readouterr().out
    assert "Other machines can reach it under these names" in out and "?token=" in out


def test_a_token_is_switched_off_on_the_network_only_with_the_flag_that_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ExplorerServer, "run", lambda self: self.close())
    open_to_all = ["explore", MODEL, "--host", "0.0.0.0", "--port", "0", "--no-open", "--token", ""]
    assert main(open_to_all) == 2
    assert "everyone who can reach 0.0.0.0" in capsys.readouterr().err
    assert main([*open_to_all, "--allow-anyone-on-the-network"]) == 0
    out = capsys.readouterr().out
    assert "There is no token" in out and "?token=" not in out
    assert main(["explore", MODEL, "--port", "0", "--no-open", "--token", ""]) == 0
    assert main(["explore", MODEL, "--host", "", "--no-open"]) == 2
    assert "the host is empty" in capsys.readouterr().err


def test_a_model_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explore", "no-such-model", "--no-open"]) == 2
    assert "there is no model 'no-such-model'" in capsys.readouterr().err
