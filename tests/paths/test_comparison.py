"""`compare_predictions`, and `pathsum why` with several models."""

import json

import pytest

import pathsum as ps
from pathsum.base.errors import InputError
from pathsum.cli.main import main
from pathsum.paths.comparison import compare_predictions

TEXT = "Mr. and Mrs. Dursley of number four were proud to say they were normal. Mr. Durs"


def test_one_layer_and_two_layers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", "one-layer", "two-layer", TEXT, "--no-cut", "--json"]) == 0
    one, two = json.loads(capsys.readouterr().out)["predictions"]
    assert (one["model"], two["model"]) == ("one-layer", "two-layer")
    assert two["token"] == "le" and two["probability"] == two["expected"] > 0.9
    # The probability that the model itself gives to this token.
    model = ps.load("one-layer")
    logits = model(TEXT)[-1]
    assert one["expected"] == pytest.approx(float(logits.softmax(-1)[model.token_id("le")]))
    assert one["expected"] < 0.1
    assert main(["why", "one-layer", "two-layer", TEXT, "--no-cut"]) == 0
    shown = capsys.readouterr().out
    assert "P(le)" in shown and "one-layer: L0H0 adds" in shown


def test_other_tokenizers_have_no_common_token() -> None:
    circuits = [
        ps.load("two-layer").trace("a b").circuit(effects=False),
        ps.construct.induction().trace("a b a").circuit(effects=False),
    ]
    first, last = compare_predictions(circuits).predictions
    assert first.expected is None and last.expected == pytest.approx(last.probability)


def test_errors(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match="no circuits to compare"):
        compare_predictions([])
    assert main(["why", "one-layer", "two-layer", TEXT, "--diff", "zero-layer"]) == 2
    assert "several models were given (one-layer, two-layer)" in capsys.readouterr().err
    with pytest.raises(InputError, match=r"did you mean openai-community/gpt2\?"):
        ps.load("gpt2")
