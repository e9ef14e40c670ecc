"""What a run finds when it is resumed: damaged, odd or missing files are repaired or named."""

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.training.test_loop import StopAt, same_weights
from tests.training.tiny import tiny_recipe, write_text

from pathsum.base.errors import FailedError, FileError, InputError
from pathsum.text import Corpus
from pathsum.text.documents import Files
from pathsum.text.shards import survey
from pathsum.training import Metrics, read_snapshots, train
from pathsum.training.checkpoint import CHECKPOINT, PREVIOUS, read_checkpoint
from pathsum.training.metrics import read_metrics


@pytest.fixture(scope="module")
def whole(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    train(tiny_recipe(text), out=folder)
    return folder


@pytest.fixture(scope="module")
def stopped_at_25(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "stopped"
    with pytest.raises(KeyboardInterrupt):
        train(tiny_recipe(text), out=folder, watch=StopAt(25))
    return folder


@pytest.fixture
def stopped(stopped_at_25: Path, tmp_path: Path) -> Path:
    """A run that was stopped at step 25, with checkpoints of steps 20 and 25."""
    return shutil.copytree(stopped_at_25, tmp_path / "run")


def damage(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(bytes(data))


def edit(file: Path, **changes: Any) -> None:
    values = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({k: v for k, v in values.items() if v is not None}))


class TestCheckpoints:
    def test_a_damaged_one_is_replaced_by_the_one_before(self, stopped: Path, whole: Path) -> None:
        damage(stopped / CHECKPOINT)
        kept = read_checkpoint(stopped)
        assert kept is not None and kept.step == 20 and "do not match its checksum" in kept.damage
        with pytest.warns(UserWarning, match="continues from the checkpoint before the last, step"):
            train(stopped, resume=True)
        assert same_weights(whole, stopped)

    def test_one_that_a_kill_left_out_is_too(self, stopped: Path, whole: Path) -> None:
        (stopped / CHECKPOINT).unlink()
        with pytest.warns(UserWarning, match="step 20, because there is no file"):
            train(stopped, resume=True)
        assert same_weights(whole, stopped)

    def test_two_damaged_ones_are_an_error(self, stopped: Path) -> None:
        damage(stopped / CHECKPOINT)
        damage(stopped / PREVIOUS)
        with pytest.raises(FileError, match="is damaged: its contents do not match its checksum"):
            train(stopped, resume=True)

    def test_one_of_another_run(self, stopped: Path, text: Path, tmp_path: Path) -> None:
        other = tiny_recipe(text, steps=10, model__d_head=4)
        train(other, out=tmp_path / "other")
        (stopped / CHECKPOINT).write_bytes((tmp_path / "other" / CHECKPOINT).read_bytes())
        with pytest.raises(FileError, match="is not of this run .its .* does not fit"):
            train(stopped, resume=True)


class TestRunJson:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"recipe": None}, "lacks the recipe or the corpus"),
            ({"recipe": [1]}, "lacks the recipe or the corpus"),
            ({"corpus": {"folder": "x"}}, "does not state the corpus's fingerprint"),
            ({"version": 7}, "is not a run that this version of pathsum reads"),
        ],
    )
    def test_that_lacks_something(
        self, stopped: Path, changes: dict[str, Any], message: str
    ) -> None:
        edit(stopped / "run.json", **changes)
        with pytest.raises(FileError, match=message):
            train(stopped, resume=True)

    def test_that_is_no_object(self, stopped: Path) -> None:
        (stopped / "run.json").write_text("[]")
        with pytest.raises(FileError, match="is not a JSON object"):
            train(stopped, resume=True)

    def test_of_another_number_of_threads(self, stopped: Path) -> None:
        edit(stopped / "run.json", machine={"threads": 61})
        with pytest.warns(UserWarning, match="began with 61 threads and continues with 1"):
            train(stopped, resume=True)


def test_a_bad_line_of_metrics_is_left_out(stopped: Path, whole: Path) -> None:
    file = stopped / "metrics.jsonl"
    file.write_bytes(b'nonsense\n\xff\n{"loss": 1.0}\n' + file.read_bytes())
    with pytest.warns(UserWarning, match="3 of 9 lines of .* are not metrics"):
        train(stopped, resume=True)
    assert [line["step"] for line in read_metrics(stopped)] == [1, 5, 10, 15, 20, 25, 30]


def test_lost_metrics_are_named(text: Path, tmp_path: Path) -> None:
    train(tiny_recipe(text, steps=2), out=tmp_path)
    (tmp_path / "metrics.jsonl").unlink()
    with pytest.raises(FileError, match="has no probe of the finished run"):
        train(tmp_path, resume=True)


def test_a_relative_corpus_is_found_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_text(tmp_path / "words.jsonl", seed=4)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        train(tiny_recipe("words.jsonl"), out=tmp_path / "run", watch=StopAt(10))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    train(tmp_path / "run", resume=True)


def test_an_old_run_with_a_relative_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tokens are in the cache; without them the error says where the text was."""
    write_text(tmp_path / "words.jsonl", seed=5)
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(tiny_recipe("words.jsonl"), out=folder, watch=StopAt(10))
    values = json.loads((folder / "run.json").read_text())
    values["recipe"]["data"]["corpus"] = "words.jsonl"
    (folder / "run.json").write_text(json.dumps(values))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(KeyboardInterrupt):
        train(folder, resume=True, watch=StopAt(20))
    values["corpus"]["folder"] = str(tmp_path / "gone")
    (folder / "run.json").write_text(json.dumps(values))
    with pytest.raises(InputError, match="a relative path that does not exist here"):
        train(folder, resume=True)


def test_leftovers_of_a_kill_are_removed(text: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(tiny_recipe(text, watching__snapshots=4), out=folder, watch=StopAt(10))
    empty = folder / "snapshots" / "step-0000030"
    empty.mkdir()
    (empty / ".config.json.1.part").write_text("{")
    (folder / ".model.safetensors.1.part").write_bytes(b"half")
    (folder / "snapshots" / ".step-0000002.safetensors.1.part").write_bytes(b"half")
    # Other programs name unfinished downloads so.
    theirs = [folder / ".film.mkv.1.part", folder / "Downloads" / ".config.json.1.part"]
    theirs += [folder / "snapshots" / ".step-stone.9.part"]
    for file in theirs:
        file.parent.mkdir(exist_ok=True)
        file.write_text("half")
    assert [snapshot.step for snapshot in read_snapshots(folder)] == [0, 1, 5]
    train(folder, resume=True)
    assert sorted(folder.rglob("*.part")) == sorted(theirs)
    assert [snapshot.step for snapshot in read_snapshots(folder)] == [0, 1, 5, 30]


def test_a_hangup_saves_like_ctrl_c(text: Path, tmp_path: Path) -> None:
    def hang_up(metrics: Metrics) -> None:
        if metrics.step == 15:
            os.kill(os.getpid(), signal.SIGHUP)

    # The tests themselves may run under nohup.
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        with pytest.raises(KeyboardInterrupt, match="stopped at step 15 of 30 and saved"):
            train(tiny_recipe(text), out=tmp_path, watch=hang_up)
    finally:
        signal.signal(signal.SIGHUP, before)
    kept = read_checkpoint(tmp_path)
    assert kept is not None and kept.step == 15


def test_under_nohup_a_hangup_is_ignored(text: Path, tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        train(
            tiny_recipe(text, steps=4, watching__log_every=2),
            out=tmp_path,
            watch=lambda metrics: os.kill(os.getpid(), signal.SIGHUP),
        )
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_first_line_of_metrics_has_a_possible_speed(whole: Path) -> None:
    first, *_, last = read_metrics(whole)
    # The measured time of a step is not nothing: far below the 10^9 of a division by zero.
    assert 0 < first["tokens_per_second"] < 1e8
    assert first["seconds"] > 0 and last["tokens_per_second"] < 1e8


class TestCorpora:
    def test_a_text_that_changes_while_it_is_read(self, tmp_path: Path) -> None:
        file = write_text(tmp_path / "words.jsonl", seed=6)
        found = survey(Files(file), 0.1)
        write_text(file, seed=7)
        with pytest.raises(FailedError, match="changed while it was being read"):
            list(found.read(Files(file)))

    @pytest.mark.parametrize("broken", ["corpus.json", "train-00000.npy", "tokenizer.json"])
    @pytest.mark.parametrize("how", ["cut", "gone"])
    def test_a_damaged_cache_is_rebuilt(self, tmp_path: Path, broken: str, how: str) -> None:
        file = write_text(tmp_path / "words.jsonl", seed=8)
        built = Corpus.open(file, vocabulary=280, held_out=0.1)
        wanted = built.train.windows([0], 16)
        if how == "cut":
            (built.folder / broken).write_bytes((built.folder / broken).read_bytes()[:-60])
        else:
            (built.folder / broken).unlink()
        if (how, broken) == ("gone", "corpus.json"):
            again = Corpus.open(file, vocabulary=280, held_out=0.1)
        else:
            with pytest.warns(UserWarning, match="in the cache is damaged and is rebuilt"):
                again = Corpus.open(file, vocabulary=280, held_out=0.1)
        assert torch.equal(again.train.windows([0], 16), wanted)

    def test_ids_beyond_the_vocabulary(self, tmp_path: Path) -> None:
        file = write_text(tmp_path / "words.jsonl", seed=8)
        built = Corpus.open(file, vocabulary=280, held_out=0.1)
        shard = built.folder / "train-00000.npy"
        tokens = np.load(shard)
        tokens[5] = 280
        np.save(shard, tokens)
        with pytest.raises(FileError, match="with ids up to 280 and .* but corpus.json lists"):
            Corpus.at(built.folder)

    def test_a_damaged_journal_starts_over(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = write_text(tmp_path / "words.jsonl", seed=9)
        monkeypatch.setattr("pathsum.text.shards._totals", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            Corpus.open(file, vocabulary=280, held_out=0.1)
        monkeypatch.undo()
        (building,) = Path(os.environ["PATHSUM_CACHE"]).rglob("words.jsonl-*.building")
        (building / "journal.json").write_text("{")
        (building / "tokenizer.json").write_text("{")
        Corpus.open(file, vocabulary=280, held_out=0.1)


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt
