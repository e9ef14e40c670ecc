"""`--figure` and `pathsum attention`."""

from pathlib import Path

import pytest

from pathsum.cli.main import main

TEXT = "Mr. and Mrs. Tiller kept. Mr. Til"


def test_a_command_draws_what_it_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.svg"
    command = ["attention", "two-layer", TEXT, "--head", "L1H0", "--figure", str(file)]
    assert main(command) == 0
    assert "attention of L1H0" in capsys.readouterr().out
    assert file.read_text(encoding="utf-8").startswith("<svg")


@pytest.mark.parametrize(
    ("arguments", "printed", "drawn"),
    [
        (["head", "hand-built-induction"], "copying", "heads by their OV eigenvalues"),
        (["head", "hand-built-induction", "L1H0"], "copying", "eigenvalues of L1H0"),
        (["composition", "hand-built-induction", "--pairs"], "L0H0→L1H0.k", ">writer<"),
    ],
)
def test_one_head_or_all_and_edges_or_pairs(
    arguments: list[str],
    printed: str,
    drawn: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "a.svg"
    assert main([*arguments, "--figure", str(file)]) == 0
    assert printed in capsys.readouterr().out
    assert drawn in file.read_text(encoding="utf-8")


def test_a_figure_that_cannot_be_written_fails_before_the_computation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["why", "two-layer", TEXT, "--figure", str(tmp_path / "a.jpg")]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and "must end in .svg, .png or .pdf" in shown.err
    assert main(["paths", "two-layer", TEXT, "--figure", str(tmp_path / "no" / "a.svg")]) == 2
    assert capsys.readouterr().out == ""


def test_options_that_have_no_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "a.svg")
    assert main(["head", "two-layer", "L1H0", "--token", "a", "--figure", file]) == 2
    assert "--token and --figure were both given" in capsys.readouterr().err
    assert main(
        ["patch", "two-layer", TEXT, "--reference", "zero", "--node", "L1H0", "--figure", file]
    )
    assert "--figure belongs to --sweep" in capsys.readouterr().err
    assert main(["composition", "two-layer", "--pairs"]) == 2
    assert "--pairs belongs to --figure" in capsys.readouterr().err
    assert main(["head", "two-layer", "--token", "a"]) == 2
    assert "--token belongs to HEAD" in capsys.readouterr().err
    assert main(["bigram", "two-layer", "--figure", file]) == 2
    assert "No such option: --figure" in capsys.readouterr().err
    assert not Path(file).exists()
