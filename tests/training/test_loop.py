"""A run: it learns, it resumes bit for bit, and what stops it is said."""

import dataclasses
import json
import os
import shutil
import signal
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from tests.training.tiny import tiny_recipe, write_text

import pathsum as ps
from pathsum.base.errors import FailedError, InputError
from pathsum.base.files import locked
from pathsum.model.processes import World
from pathsum.model.store import FileStore
from pathsum.text import Corpus
from pathsum.training import Metrics, Recipe, read_snapshots, train
from pathsum.training import checkpoint as checkpoints
from pathsum.training.checkpoint import CHECKPOINT, read_checkpoint
from pathsum.training.loop import TrainingLoop
from pathsum.training.metrics import ignore, read_metrics
from pathsum.training.network import Network
from pathsum.training.train import disk_bytes


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(folder / "model.safetensors")


def same_weights(one: Path, other: Path) -> bool:
    left, right = weights_of(one), weights_of(other)
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


@pytest.fixture(scope="module")
def whole(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never stopped."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    train(tiny_recipe(text, watching__snapshots=5), out=folder)
    return folder


class StopAt:
    """Sends this process a Ctrl-C when a run reports a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def __call__(self, metrics: Metrics) -> None:
        if metrics.step == self.step:
            os.kill(os.getpid(), signal.SIGINT)


class TestARun:
    def test_learns(self, whole: Path) -> None:
        losses = [line["loss"] for line in read_metrics(whole)]
        assert losses[-1] < losses[0] - 0.5

    def test_leaves_a_model_that_load_reads(self, whole: Path) -> None:
        model = ps.load(whole)
        assert model.tokenizer is not None
        assert model.token_counts is not None
        assert model.config.start_token == 0
        assert int(model.token_counts.sum()) > 0
        assert model.trace("the cat sat").logits.shape[1] > 1

    def test_leaves_what_it_came_to(self, whole: Path) -> None:
        result = json.loads((whole / "result.json").read_text())
        assert result["format"] == "pathsum-training-run"
        assert 0 < result["held_out_loss"] < 6
        assert result["induction_head"].startswith("L")
        assert 0 < result["gemm_share"] < 1

    def test_keeps_snapshots_from_the_first_weights_to_the_last(self, whole: Path) -> None:
        kept = read_snapshots(whole)
        assert [one.step for one in kept] == [0, 1, 3, 10, 30]
        tokens = torch.tensor([[0, 1, 2]])
        torch.testing.assert_close(kept[-1].model(tokens), ps.load(whole)(tokens))
        last, final = kept[-1].model.weights, ps.load(whole).weights
        assert all(torch.equal(tensor, dict(final.items())[name]) for name, tensor in last.items())
        assert not torch.equal(kept[0].model(tokens), kept[-1].model(tokens))

    def test_is_the_same_again(self, text: Path, whole: Path, tmp_path: Path) -> None:
        train(tiny_recipe(text, watching__snapshots=5), out=tmp_path / "again")
        assert same_weights(whole, tmp_path / "again")

    def test_counts_its_own_time_only(self, whole: Path) -> None:
        seconds = [line["seconds"] for line in read_metrics(whole)]
        assert seconds == sorted(seconds)


class TestResume:
    def test_continues_bit_for_bit(self, text: Path, whole: Path, tmp_path: Path) -> None:
        recipe = tiny_recipe(text, watching__snapshots=5)
        with pytest.raises(KeyboardInterrupt, match=r"stopped at step 15 of 30 .*--resume"):
            train(recipe, out=tmp_path / "run", watch=StopAt(15))
        assert not same_weights(whole, tmp_path / "run")
        run = train(tmp_path / "run", resume=True)
        assert same_weights(whole, tmp_path / "run")
        assert run.steps == 30
        same = ("step", "loss", "held_out_loss", "induction")
        for one, other in zip(read_metrics(whole), read_metrics(tmp_path / "run"), strict=True):
            assert [one.get(key) for key in same] == [other.get(key) for key in same]

    def test_starts_over_without_a_checkpoint(
        self, text: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        recipe = tiny_recipe(text, watching__snapshots=5)

        def gone(*_: Any) -> None:
            raise RuntimeError("gone")

        with monkeypatch.context() as patch:
            patch.setattr(TrainingLoop, "learn", gone)
            with pytest.raises(RuntimeError, match="gone"):
                train(recipe, out=tmp_path / "run")
        assert read_checkpoint(tmp_path / "run") is None
        train(recipe, out=tmp_path / "run", resume=True)
        assert same_weights(whole, tmp_path / "run")

    def test_of_a_finished_run_changes_nothing(self, whole: Path) -> None:
        before = (whole / CHECKPOINT).read_bytes()
        assert train(whole, resume=True).tokens == 30 * 4 * 16
        assert (whole / CHECKPOINT).read_bytes() == before

    def test_names_settings_that_differ(self, text: Path, whole: Path) -> None:
        other = tiny_recipe(text, watching__snapshots=5, batch=8, optimizer__clip=1.0)
        with pytest.raises(InputError, match="batch is 4 there and 8 here") as caught:
            train(other, out=whole, resume=True)
        assert "optimizer.clip is 0.0 there and 1.0 here" in str(caught.value)

    def test_reads_runs_with_the_british_spelling(
        self, text: Path, whole: Path, tmp_path: Path
    ) -> None:
        """Version 1 of run.json and of the checkpoint also occur with `optimiser`."""
        recipe, folder = tiny_recipe(text, watching__snapshots=5), tmp_path / "run"
        with pytest.raises(KeyboardInterrupt):
            train(recipe, out=folder, watch=StopAt(15))
        run = json.loads((folder / "run.json").read_text())
        run["recipe"]["optimiser"] = run["recipe"].pop("optimizer")
        (folder / "run.json").write_text(json.dumps(run))
        kept = FileStore(folder / CHECKPOINT)
        tensors = {
            name.replace("optimizer/", "optimiser/"): kept.get(name).clone() for name in kept.shapes
        }
        # Such files have no checksum either.
        about = {name: text for name, text in kept.metadata.items() if name != "checksum"}
        safetensors.torch.save_file(tensors, folder / CHECKPOINT, about)
        train(folder, resume=True)
        assert same_weights(whole, folder)

    def test_notices_that_the_text_has_changed(self, tmp_path: Path) -> None:
        file = write_text(tmp_path / "words.jsonl", seed=1)
        train(tiny_recipe(file, steps=2), out=tmp_path / "run")
        write_text(file, seed=2)
        with pytest.raises(InputError, match="its files have changed"):
            train(tmp_path / "run", resume=True)

    def test_needs_a_run(self, text: Path, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"holds no run to resume \(it has no run.json\)"):
            train(tiny_recipe(text), out=tmp_path / "none", resume=True)

    def test_by_folder_takes_no_other_settings(self, whole: Path) -> None:
        with pytest.raises(InputError, match="keeps its recipe and its folder"):
            train(whole, resume=True, steps=3)

    def test_drops_metrics_that_came_after_the_checkpoint(self, text: Path, tmp_path: Path) -> None:
        folder = tmp_path / "run"
        with pytest.raises(KeyboardInterrupt):
            train(tiny_recipe(text), out=folder, watch=StopAt(10))
        with (folder / "metrics.jsonl").open("a") as opened:
            opened.write('{"step": 15, "loss": 1.0}\n{"step": 20, "lo')
        train(folder, resume=True)
        steps = [line["step"] for line in read_metrics(folder)]
        assert steps == [1, 5, 10, 15, 20, 25, 30]


class TestWhatStopsARun:
    def test_a_folder_that_holds_one(self, text: Path, whole: Path) -> None:
        with pytest.raises(InputError, match="already contains a run, at step 30; add --resume"):
            train(tiny_recipe(text), out=whole)

    def test_another_process_in_the_folder(self, text: Path, tmp_path: Path) -> None:
        with (
            locked(tmp_path / "run" / ".lock", wait=False, taken=""),
            pytest.raises(FailedError, match="another process is training in"),
        ):
            train(tiny_recipe(text), out=tmp_path / "run")

    def test_a_loss_that_is_not_a_number(
        self, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        learn = TrainingLoop.learn

        def spoiled(loop: TrainingLoop) -> None:
            if loop.step == 13:
                with torch.no_grad():
                    loop.network.W_E.fill_(float("nan"))
            learn(loop)

        monkeypatch.setattr(TrainingLoop, "learn", spoiled)
        message = r"NaN or infinite at step 14 of 30.*last good checkpoint, step 10, is in"
        with pytest.raises(FailedError, match=message):
            train(tiny_recipe(text), out=tmp_path / "run")
        kept = read_checkpoint(tmp_path / "run")
        assert kept is not None
        assert kept.step == 10
        assert all(bool(torch.isfinite(tensor).all()) for tensor in kept.tensors.values())

    def test_a_full_disk_keeps_the_checkpoint_before(
        self, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        save = checkpoints.save_file
        saves: list[str] = []

        def full(tensors: Any, file: str, metadata: Any) -> None:
            saves.append(file)
            if len(saves) == 2:
                Path(file).write_bytes(b"half")
                raise OSError(28, "No space left on device")
            save(tensors, file, metadata)

        monkeypatch.setattr(checkpoints, "save_file", full)
        with pytest.raises(FailedError, match="No space left on device.*unchanged"):
            train(tiny_recipe(text), out=tmp_path / "run")
        kept = read_checkpoint(tmp_path / "run")
        assert kept is not None
        assert kept.step == 10
        assert not list((tmp_path / "run").glob(".*.part"))

    def test_too_little_disk(
        self, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        recipe = tiny_recipe(text, watching__snapshots=8)
        network = Network(recipe.config, recipe.start, 0)
        parameters = sum(parameter.numel() for parameter in network.parameters())
        needed = disk_bytes(parameters, 8)
        assert needed > disk_bytes(parameters, 0) + 6 * 4 * parameters
        usage = shutil.disk_usage(tmp_path)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=needed - 1))
        with pytest.raises(InputError, match=r"8 snapshots of [\d,]+ parameters.* are free there"):
            train(recipe, out=tmp_path / "run")
        assert not (tmp_path / "run" / "run.json").exists()

    def test_a_text_smaller_than_a_batch(self, text: Path, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="less than one batch needs"):
            train(tiny_recipe(text, batch=2000), out=tmp_path / "run")

    def test_a_tokenizer_of_another_size(self, text: Path, whole: Path, tmp_path: Path) -> None:
        recipe = tiny_recipe(text, data__tokenizer=str(whole / "tokenizer.json"))
        larger = tiny_recipe(
            text, data__tokenizer=str(whole / "tokenizer.json"), data__vocabulary=300
        )
        with pytest.raises(InputError, match="has 280 tokens, but vocabulary is 300"):
            train(larger, out=tmp_path / "larger")
        train(dataclasses.replace(recipe, steps=2), out=tmp_path / "same")


def variant(text: Path, **changes: Any) -> Recipe:
    return tiny_recipe(text, steps=6, watching__probe_every=6, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"model__n_layers": 0},
        {"model__n_layers": 1, "start__position_tables": "shared"},
        {"model__positions": "residual", "model__norm": "layer", "model__mlp": "gelu"},
        {"model__positions": "rotary", "model__norm": "rms", "model__mlp": "silu_gated"},
        {"model__positions": "none", "model__n_kv_heads": 1, "model__tied": True},
        {"optimizer__matrices": "adamw", "optimizer__matrix_lr": 0.004, "optimizer__clip": 1.0},
    ],
    ids=lambda changes: "-".join(map(str, changes.values())),
)
def test_every_kind_of_model_trains(text: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    run = train(variant(text, **changes), out=tmp_path / "run")
    first = read_metrics(tmp_path / "run")[0]["loss"]
    assert run.held_out_loss < first
    trained = run.model.config
    asked = {key.removeprefix("model__"): v for key, v in changes.items() if "model__" in key}
    assert {key: getattr(trained, key) for key in asked} == asked


def test_products_in_half_precision_learn_as_whole_ones_do(text: Path, tmp_path: Path) -> None:
    world = World(0, 1, torch.device("cpu"))
    losses: dict[str, list[float]] = {}
    for precision in ("float32", "bfloat16"):
        chosen = tiny_recipe(text, precision=precision)
        corpus = Corpus.open(str(text), vocabulary=280, held_out=0.1)
        loop = TrainingLoop(chosen, corpus, tmp_path, world, ignore)
        for _ in range(25):
            loop.learn()
        found = [float(loss) for loss in loop._losses]  # pyright: ignore[reportPrivateUsage]
        losses[precision] = found
        assert all(one.dtype == torch.float32 for one in loop.network.parameters())
    whole, half = losses["float32"], losses["bfloat16"]
    assert whole != half
    assert half[-1] < 0.9 * half[0]
    assert half == pytest.approx(whole, rel=0.02)


def test_metrics_go_to_tensorboard_where_it_is_installed(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[tuple[str, int]] = []

    class SummaryWriter:
        def __init__(self, folder: str, purge_step: int) -> None:
            assert folder.endswith("tensorboard")

        def add_scalar(self, name: str, value: float, step: int) -> None:
            written.append((name, step))

        def close(self) -> None:
            pass

    fake = types.ModuleType("torch.utils.tensorboard")
    fake.SummaryWriter = SummaryWriter  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", fake)
    train(tiny_recipe(text, steps=2), out=tmp_path / "run")
    assert ("loss", 2) in written
    assert ("induction", 2) in written
