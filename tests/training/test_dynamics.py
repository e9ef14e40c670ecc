"""`dynamics` on snapshots made by hand, whose phase change is where it was planted."""

import dataclasses
import json
import re
from pathlib import Path

import pytest
import torch
from tests.training.planted import STEPS, gradual, mixture, plant, text
from tests.training.tiny import tiny_recipe

import pathsum as ps
from pathsum.base import schema
from pathsum.base.errors import FileError, InputError
from pathsum.cli.main import main
from pathsum.heads import in_context_learning
from pathsum.model.losses import run_losses
from pathsum.model.storage import HELD_OUT
from pathsum.training import Curve, Dynamics, train
from pathsum.training.checkpoint import held_out_tokens, save_snapshot

MIDDLE = 90.0


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Dynamics:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pathsum.base.files._flush_to_disk", lambda file: None)
        folder = plant(tmp_path_factory.mktemp("planted"), gradual(MIDDLE))
    return ps.dynamics(folder, tokens=text())


def test_the_phase_change_is_where_it_was_planted(found: Dynamics) -> None:
    change = found.phase_change
    assert change is not None
    assert change.low <= MIDDLE <= change.high
    assert change.high / change.low < 2
    assert change.step == pytest.approx(MIDDLE, rel=0.15)
    assert change.head == "L1H0"
    assert change.after - change.before > 0.8
    assert found.why_none == ""
    assert "Phase change of this run at step" in found.remarks()[0]


def test_curves_follow_the_heads_that_matter(found: Dynamics) -> None:
    assert (found.writer, found.reader) == ("L0H0", "L1H0")
    assert found.heads == ("L0H0", "L0H1", "L1H0", "L1H1")
    assert found.steps == STEPS
    assert found.tokens == ()  # nobody knows how large a batch was
    for name in ("previous_token", "prefix_matching", "induction"):
        curve = found.curve(name)
        assert curve.head == ("L0H0" if name == "previous_token" else "L1H0")
        column = getattr(found, name)[:, found.heads.index(curve.head)]
        torch.testing.assert_close(curve.values, column.double())
        assert curve.values[0] < 0.2 and curve.values[-1] > 0.95
    assert found.curve("k_composition").values[-1] > 0.05
    assert found.curve("k_composition_z").values[-1] > 10
    largest = found.curve("k_composition_largest").values
    assert bool((largest >= found.curve("k_composition").values).all())
    with pytest.raises(InputError, match="no curve 'los'; did you mean 'loss'"):
        found.curve("los")


def test_numbers_are_those_of_the_functions_they_come_from(found: Dynamics) -> None:
    last = mixture(gradual(MIDDLE)[STEPS[-1]])
    tokens = text()
    losses = run_losses(last, tokens)
    torch.testing.assert_close(found.token_losses[-1], losses)
    torch.testing.assert_close(found.loss_by_index[-1], losses.mean(0))
    assert found.curve("loss").values[-1] == pytest.approx(float(losses.mean()), rel=1e-5)
    score = in_context_learning(last, tokens, early=3, late=38, window=3)
    assert found.curve("in_context").values[-1] == pytest.approx(score.value, rel=1e-5)
    excess = ps.composition(last).k.excess
    assert found.curve("k_composition").values[-1] == pytest.approx(float(excess[0, 2]))
    scores = ps.atlas(last, draws=99)["L1H0"].scores
    assert found.curve("prefix_matching").values[-1] == pytest.approx(
        scores["prefix_matching"].value, abs=1e-5
    )


def test_learning_from_context_comes_with_the_change(found: Dynamics) -> None:
    assert found.in_context_share is not None and 0.3 < found.in_context_share <= 1.05
    assert found.curve("repeat_drop").values[-1] > 3
    assert found.pca.shape == (len(STEPS), 2)
    assert sum(found.pca_explained) > 0.5
    assert found.slope.shape == (len(STEPS), len(found.slope_index))


def test_a_run_that_stays_the_same_has_none(tmp_path: Path) -> None:
    for share, why in ((1.0, "prefix matching stays between"), (0.0, "no head's prefix matching")):
        folder = plant(tmp_path / str(share), dict.fromkeys(STEPS, share))
        found = ps.dynamics(folder, tokens=text(2), probe_sequences=3)
        assert found.phase_change is None
        assert why in found.why_none
        assert found.remarks()[0].startswith("No phase change: ")
        assert found.in_context_share is None


@pytest.mark.parametrize("layers", [0, 1])
def test_one_layer_has_no_phase_change_and_says_why(tmp_path: Path, layers: int) -> None:
    config = ps.Config(layers, 2, 16, 8, 40, 30, start_token=0)
    for step in STEPS:
        save_snapshot(tmp_path, step, ps.random_model(config, seed=step))
    found = ps.dynamics(tmp_path, tokens=torch.randint(40, (3, 30)), probe_sequences=3)
    assert found.phase_change is None
    assert ("one layer of heads cannot do it" in found.why_none) == (layers == 1)
    assert ("no layers" in found.why_none) == (layers == 0)
    assert found.writer == ""
    assert "k_composition" not in [curve.name for curve in found.curves]
    assert len(found.to_table().rows) == len(STEPS)


def test_records_have_schemas_and_views(found: Dynamics) -> None:
    loaded = json.loads(found.dumps())
    assert set(schema(Dynamics)["properties"]) == set(loaded)
    assert set(schema(Curve)["properties"]) == set(found.curves[0].to_dict())
    page = found._repr_html_().replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert page.count("<svg") == 1 and page.count("<table") == 1
    assert not re.search(r"https?://|src=|<script|@import|url\(", page)
    shown = found.to_table().to_text(80)
    assert max(map(len, shown.splitlines())) <= 80
    assert "…" not in shown


def test_what_a_page_shows_is_escaped(found: Dynamics) -> None:
    curve = dataclasses.replace(found.curves[0], title="<b>", about='"<i>&', head="<u>")
    page = dataclasses.replace(
        found, run="<script>", curves=(curve, *found.curves[1:])
    )._repr_html_()
    assert not re.search(r"<script|<b>|<i>|<u>", page)


def test_the_terminal_shows_each_curve_on_one_line(found: Dynamics) -> None:
    lines = str(found).splitlines()
    loss = next(line for line in lines if line.startswith("held-out loss"))
    bars = re.findall("[▁▂▃▄▅▆▇█]+", loss)
    assert [len(bar) for bar in bars] == [sum(step > 0 for step in found.steps)]
    assert loss.endswith(f" to {float(found.curve('loss').values[1:].max()):.3f}")
    short = dataclasses.replace(found, steps=(0,) * (len(found.steps) - 1) + (1,))
    assert "held-out loss: fewer than two snapshots" in str(short)


def test_a_run_keeps_its_held_out_text(text: Path, tmp_path: Path) -> None:
    recipe = tiny_recipe(text, watching__snapshots=8)
    run = train(recipe, out=tmp_path / "run")
    folder = tmp_path / "run"
    kept = held_out_tokens(folder, 4)
    found = ps.dynamics(run, sequences=4, probe_sequences=2)
    assert found.phase_change is None
    assert found.tokens[-1] == recipe.tokens
    assert (found.logged_steps[-1], found.logged_loss[-1]) == (recipe.steps, run.loss)
    assert kept.shape == (4, recipe.config.n_ctx)
    # Without what was kept, the same text comes from the corpus.
    every = held_out_tokens(folder, 1000)
    (folder / HELD_OUT).unlink()
    again = held_out_tokens(folder, 1000)
    assert torch.equal(every, again[: len(every)]) or set(map(tuple, every.tolist())) <= set(
        map(tuple, again.tolist())
    )


def test_a_run_whose_text_is_gone_is_refused(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "words.jsonl"
    own.write_text(text.read_text())
    monkeypatch.setenv("PATHSUM_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "run"
    train(tiny_recipe(own, watching__snapshots=4, steps=4), out=folder)
    (folder / HELD_OUT).unlink()
    monkeypatch.setenv("PATHSUM_CACHE", str(tmp_path / "other"))
    (tmp_path / "cache").rename(tmp_path / "away")
    assert held_out_tokens(folder, 3).shape == (3, 16)  # built again
    own.write_text(text.read_text() + json.dumps({"text": "the red dog " * 80}) + "\n")
    with pytest.raises(InputError, match="is another one here .*give token ids"):
        held_out_tokens(folder, 3)


def test_what_is_not_a_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="comes without snapshots of its training"):
        ps.dynamics("two-layer-seed-1")
    with pytest.raises(FileError, match="there is no run 'nowhere'"):
        ps.dynamics("nowhere")
    with pytest.raises(InputError, match="has no snapshots, so its training cannot be followed"):
        ps.dynamics(tmp_path)
    (tmp_path / "snapshots").mkdir()
    with pytest.raises(InputError, match="has no snapshots, so its training cannot be followed"):
        ps.dynamics(tmp_path)
    plant(tmp_path, {0: 0.0, 1: 1.0})
    with pytest.raises(InputError, match="neither held_out.safetensors nor run.json"):
        ps.dynamics(tmp_path)
    with pytest.raises(InputError, match="too short to compare late with early"):
        ps.dynamics(tmp_path, tokens=torch.zeros(2, 3, dtype=torch.long))
    with pytest.raises(InputError, match="probe_sequences=1 .* choose 2 or more"):
        ps.dynamics(tmp_path, tokens=text(), probe_sequences=1)
    few = ps.dynamics(tmp_path, tokens=text(2), probe_sequences=2)
    assert "too few to locate a change" in few.why_none
    (tmp_path / "snapshots" / "step-last").mkdir()
    with pytest.raises(FileError, match="is not a snapshot; names like step-0000010"):
        ps.dynamics(tmp_path, tokens=text())


def test_the_command(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(tmp_path / "run")
    train(tiny_recipe(text, watching__snapshots=8), out=run)
    arguments = ["dynamics", run, "--sequences", "3", "--probe-sequences", "2"]
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert "prefix matching" in shown and "No phase change" in shown
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["format"] == "pathsum-dynamics"
    assert main(["dynamics", "nowhere"]) == 2
    assert "there is no run 'nowhere'" in capsys.readouterr().err
