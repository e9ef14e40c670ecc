import json

import pytest

from pathsum.cli.main import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_a_prediction_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "paths", "hand-built-virtual-head", "a b c a", "--k", "2")
    assert code == 0
    assert "logit of c at position 4, minus the vocabulary's mean" in out
    assert "embed→L0H0→L1H0" in out
    assert "reconstruction error" in " ".join(out.split())
    assert "proven" in out


def test_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(
        *(capsys, "paths", "hand-built-induction", "a b c a", "--token", "b"),
        *("--versus", "none", "--position", "-1", "--json"),
    )
    printed = json.loads(out)
    assert code == 0
    assert printed["format"] == "pathsum-paths"
    assert printed["toward"]["versus"] is None
    assert printed["toward"]["remainder"] < 1e-4
    assert printed["top"]["paths"][0]["path"] == "embed→L1H0"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--position", "9"), "position 9 is out of range"),
        (("--token", "zebra"), "'zebra' is not a word of this tokenizer"),
        (("--k", "0"), "--k 0 paths were requested; choose 1 or more"),
    ],
)
def test_bad_input(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    code, _, err = run(capsys, "paths", "hand-built-induction", "a b c a", *arguments)
    assert code == 2
    assert message in err


def test_scores_of_a_cell_and_of_all(capsys: pytest.CaptureFixture[str]) -> None:
    common = ("scores", "hand-built-induction", "a b c a", "--head", "L1H0")
    code, out, _ = run(capsys, *common, "--cell", "-1,2", "--json")
    printed = json.loads(out)
    assert code == 0
    assert printed["terms"][0]["key"] == "embed→L0H0"
    assert printed["k"] == pytest.approx(printed["score"], rel=1e-3)
    code, out, _ = run(capsys, *common)
    assert code == 0
    assert "spread" in out
    assert "reconstruction error" in " ".join(out.split())
    code, _, err = run(capsys, *common, "--cell", "4")
    assert code == 2
    assert "give a destination and a source position" in err


def test_paths_through_mlps_and_the_lens(capsys: pytest.CaptureFixture[str]) -> None:
    text = ("hand-built-induction", "a b c a")
    code, out, _ = run(capsys, "paths", *text, "--mlps", "linear")
    assert code == 0 and "strongest paths" in out
    code, out, _ = run(capsys, "lens", *text)
    assert code == 0 and "lens at position 4" in out
    code, out, _ = run(capsys, "lens", *text, "--layer", "1", "--token", "b")
    assert code == 0 and "stream before layer 1" in out
    code, _, err = run(capsys, "lens", *text, "--layer", "7")
    assert code == 2 and "there is no stream before layer 7" in err
