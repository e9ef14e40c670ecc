"""Slow answers on disk: found again after a restart, never for another model or another version."""

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.explorer.variants import ALL

from pathsum.explorer import kept
from pathsum.explorer.explorer import Explorer
from pathsum.explorer.kept import KeptAnswers
from pathsum.explorer.open_models import OpenModel, open_model
from pathsum.model import Model
from pathsum.model.store import MemoryStore
from pathsum.model.weights import Weights


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATHSUM_CACHE", str(tmp_path))
    monkeypatch.setattr("pathsum.explorer.explorer.MIN_SECONDS", -1.0)
    return tmp_path / "answers"


def opened(model: Model, name: str = "m") -> OpenModel:
    return OpenModel(name, name, model)


def test_a_second_start_finds_what_the_first_computed(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ALL["two layers"]()
    first = Explorer([model], keep=True, bundled=())
    answer = first.ask("composition")
    assert len(list(cache.iterdir())) == 1
    first.ask("run", {"ids": "1,2"})  # somebody's text
    assert len(list(cache.iterdir())) == 1

    def computed(*_: Any) -> Any:
        raise AssertionError("computed again")

    monkeypatch.setattr("pathsum.explorer.explorer.encode", computed)
    assert Explorer([model], keep=True, bundled=()).ask("composition") == answer
    with pytest.raises(AssertionError, match="computed again"):
        Explorer([model], bundled=()).ask("composition")


def test_the_key_is_everything_that_an_answer_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ALL["two layers"]()
    KeptAnswers((opened(model),)).put("a", b"answer")
    assert KeptAnswers((opened(model),)).get("a") == b"answer"
    changed = {name: model.weights.read(name).clone() for name in model.weights.names}
    changed["W_E"][0, 0] = torch.nextafter(changed["W_E"][0, 0], torch.tensor(9.0))
    other = Model(Weights(model.config, MemoryStore(changed)))
    for models, key in (
        ((opened(other),), "a"),
        ((opened(model, "renamed"),), "a"),
        ((opened(model), opened(other)), "a"),
        ((opened(model),), "b"),
    ):
        assert KeptAnswers(models).get(key) is None
    monkeypatch.setattr(kept, "__version__", "another")
    assert KeptAnswers((opened(model),)).get("a") is None


def test_a_damaged_file_is_none(cache: Path) -> None:
    answers = KeptAnswers((opened(ALL["two layers"]()),))
    answers.put("a", b"answer" * 100)
    (file,) = cache.iterdir()
    whole = file.read_bytes()
    for damaged in (b"", whole[:-1], whole[:40] + b"?" + whole[41:], b"x" * len(whole)):
        file.write_bytes(damaged)
        assert answers.get("a") is None
    answers.put("a", b"answer")
    assert answers.get("a") == b"answer"


def test_the_oldest_go_first(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "KEPT_BYTES", 3000)
    answers = KeptAnswers((opened(ALL["two layers"]()),))
    for number in range(5):
        answers.put(str(number), bytes(900))
        for place, file in enumerate(sorted(cache.iterdir(), key=lambda one: one.stat().st_mtime)):
            os.utime(file, (place, place))
    assert len(list(cache.iterdir())) == 3
    assert answers.get("0") is None and answers.get("4") == bytes(900)


def test_what_killed_processes_left_half_written_goes(cache: Path) -> None:
    answers = KeptAnswers((opened(ALL["two layers"]()),))
    answers.put("a", b"answer")
    for name, age in (("old.7-8.part", kept.LEFT_SECONDS + 60), ("new.7-8.part", 60)):
        (cache / name).write_bytes(b"half")
        os.utime(cache / name, (time.time() - age,) * 2)
    answers.put("b", b"another")
    assert [file.name for file in cache.glob("*.part")] == ["new.7-8.part"]
    assert (answers.get("a"), answers.get("b")) == (b"answer", b"another")


def test_without_a_place_to_write_nothing_is_kept(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    answers = KeptAnswers((opened(ALL["two layers"]()),), tmp_path / "file" / "answers")
    answers.put("a", b"answer")
    assert answers.get("a") is None


def test_the_files_of_a_model_stand_for_its_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    ALL["two layers"]().save(folder)
    monkeypatch.setattr(kept, "_weights_fingerprint", lambda _: pytest.fail("weights were read"))
    KeptAnswers((open_model(folder),)).put("a", b"answer")
    assert KeptAnswers((open_model(folder),)).get("a") == b"answer"
    (folder / "card.md").write_text("changed")
    assert KeptAnswers((open_model(folder),)).get("a") is None


def test_weights_are_read_without_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ALL["two layers"]()
    one = opened(model)
    hashed: list[int] = []

    class Digest:
        def __init__(self, _: bytes) -> None: ...

        def update(self, data: Any) -> None:
            if isinstance(data, memoryview):
                hashed.append(np.frombuffer(data, dtype=np.uint8).ctypes.data)

        def hexdigest(self) -> str:
            return ""

    monkeypatch.setattr(kept.hashlib, "blake2b", Digest)
    kept._weights_fingerprint(one.model)
    store = model.weights.store
    assert hashed == [store.get(name).data_ptr() for name in store.shapes]


def test_edits_that_a_run_makes_are_not_mistaken_for_the_plain_model() -> None:
    plain = ALL["two layers"]()
    KeptAnswers((opened(plain),)).put("a", b"answer")
    edited = plain.edited({"L1H0.pattern": "L1H1"})
    assert [edit.in_weights for edit in edited.edits] == [False]
    assert KeptAnswers((opened(edited),)).get("a") is None
