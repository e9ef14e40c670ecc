"""The commands bigram, head and trigrams."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pathsum.cli.main import main
from pathsum.model import Config, construct, random_model


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_bigram(capsys: pytest.CaptureFixture[str]):
    code, out, _ = run(capsys, "bigram", "hand-built-bugs")
    assert code == 0
    assert "most certain rows" in out
    code, out, _ = run(capsys, "bigram", "hand-built-bugs", "--token", "keep", "-k", "3", "--json")
    assert json.loads(out)["format"] == "pathsum-continuations"
    assert len(json.loads(out)["likely"]) == 3


def test_head(capsys: pytest.CaptureFixture[str]):
    code, out, _ = run(capsys, "head", "hand-built-skip-trigrams", "L0H0", "--token", "keep")
    assert code == 0
    assert "attended by" in out
    assert "raises" in out
    code, out, _ = run(capsys, "head", "hand-built-skip-trigrams", "L0H0")
    assert "Σλ/Σ|λ|" in out
    assert "token clusters" in out
    code, out, _ = run(capsys, "head", "hand-built-skip-trigrams", "L0H0", "--json")
    assert json.loads(out)["copying"]["heads"][0]["head"] == "L0H0"


def test_a_virtual_head(capsys: pytest.CaptureFixture[str]):
    for name in ("L0H0,L1H0", "L0H0→L1H0"):
        arguments = ("head", "hand-built-virtual-head", name, "--token", "a", "-k", "2", "--json")
        code, out, _ = run(capsys, *arguments)
        assert code == 0
        assert json.loads(out)["effect"]["raises"][0]["token"]["text"] == "b"


def test_trigrams(capsys: pytest.CaptureFixture[str]):
    code, out, _ = run(capsys, "trigrams", "hand-built-skip-trigrams")
    assert code == 0
    assert "score = QK (attention) · OV (effect) · p(source)^0.1" in " ".join(out.split())
    code, out, _ = run(capsys, "trigrams", "hand-built-skip-trigrams", "-k", "2", "--json")
    assert [t["out"]["text"] for t in json.loads(out)["triples"]] == ["mind", "bay"]
    code, out, _ = run(capsys, "trigrams", "hand-built-skip-trigrams", "--source", "keep")
    assert "keep … in mind" in out


def test_rotary_models_take_an_offset(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    random_model(Config(1, 1, 8, 4, 10, 8, positions="rotary")).save(str(tmp_path))
    arguments = ("head", str(tmp_path), "L0H0", "--token", "3", "--offset", "2", "--json")
    code, out, _ = run(capsys, *arguments)
    assert code == 0
    assert json.loads(out)["attention"]["note"] == "rotary: at offset 2"
    code, _, err = run(capsys, "head", str(tmp_path), "L0H0", "--offset", "2")
    assert code == 2
    assert "give --token with it" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("head", "hand-built-bugs", "L0H9"), "L0H0 is the nearest"),
        (("head", "hand-built-bugs", "first"), "'first' does not name a head"),
        (("head", "hand-built-bugs", "L0H0", "--token", "keap"), "did you mean 'keep'"),
        (("head", "hand-built-bugs", "L0H0", "--places"), "comes with no held-out text"),
        (
            ("head", "hand-built-bugs", "L0H0", "--places", "--token", "keep"),
            "--token and --places were both given; give one of them",
        ),
        (("trigrams", "hand-built-bugs", "-k", "0"), "--k 0 pairs"),
        (("trigrams", "hand-built-bugs", "-k", "1000"), "there are 121"),
        (("trigrams", "hand-built-bugs", "--source", "keep in"), "is 2 tokens"),
        (("bigram", "hand-built-bugs", "-k", "99"), "--k 99 rows"),
        (("bigram", "hand-built-bugs", "--corpus", "no-such"), "there is no corpus 'no-such'"),
    ],
)
def test_bad_input_leaves_with_2_and_one_sentence(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
):
    code, out, err = run(capsys, *arguments)
    assert code == 2
    assert message in err
    assert out == ""
    assert "Traceback" not in err


def test_places_of_a_head(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    model = random_model(Config(n_layers=1, n_heads=2, d_model=8, d_head=4, d_vocab=9, n_ctx=12))
    replace(model, held_out=torch.arange(48).reshape(4, 12) % 9).save(tmp_path)
    code, out, _ = run(capsys, "head", str(tmp_path), "L0H1", "--places", "-k", "3", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["head"] == "L0H1" and found["sequences"] == 4
    assert len(found["by_attention"]) == 3 == len(found["by_effect"])
    code, out, _ = run(capsys, "head", str(tmp_path), "L0H1", "--places")
    assert code == 0 and "L0H1: top contexts" in out


def test_a_model_with_no_layers(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    construct.bigram(torch.full((3, 3), 1 / 3), ["a", "b", "c"]).save(str(tmp_path))
    code, _, err = run(capsys, "trigrams", str(tmp_path))
    assert code == 2
    assert "has no layers, so it has no heads" in err
    code, out, _ = run(capsys, "bigram", str(tmp_path), "--token", "a", "-k", "1")
    assert code == 0
    assert "0.3333" in out
