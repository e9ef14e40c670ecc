import inspect
import json
import re
from pathlib import Path

import pytest

from pathsum.base.errors import InputError
from pathsum.cli.main import GROUPS, main
from pathsum.cli.options import command, in_terms_of_options
from pathsum.cli.start import DEFAULT, NEXT


def test_models_lists_what_load_knows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    names = [model["name"] for model in found["models"]]
    assert "hand-built-induction" in names
    assert main(["models"]) == 0
    assert "hand-built-induction" in capsys.readouterr().out


@pytest.mark.slow  # a whole report
def test_demo_runs_unattended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert main(["demo", "--report", str(page)]) == 0
    shown = capsys.readouterr().out
    assert page.name in shown.replace("\n", "")
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert "So it works by K-composition with L0H" in shown
    assert "all paths add up to the model's own number" in shown


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Path]]:
    """The reports that a demo would write."""
    written: list[tuple[str, Path]] = []
    monkeypatch.setattr("pathsum.cli.start._write_report", lambda *found: written.append(found))
    return written


def test_the_demo_explains_a_trained_model(
    written: list[tuple[str, Path]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--report", "page.html"]) == 0
    shown = capsys.readouterr().out
    assert "So it works by K-composition with L0H" in shown
    assert "all paths add up to the model's own number" in shown
    assert written == [(DEFAULT, Path("page.html"))]


def test_the_demo_of_another_model(
    written: list[tuple[str, Path]], capsys: pytest.CaptureFixture[str]
) -> None:
    page = Path("page.html")
    assert main(["demo", "--model", "hand-built-induction", "--report", str(page)]) == 0
    shown = capsys.readouterr().out
    assert "hand-built induction: 2 layers of 2 heads, attention only.\n" in shown
    assert "So it works by K-composition with L0H0" in shown
    assert "which followed 'b' earlier" in shown
    assert "pathsum atlas hand-built-induction" in shown
    assert written == [("hand-built-induction", page)]


@pytest.mark.slow
def test_the_demo_goes_on_with_commands_that_work(capsys: pytest.CaptureFixture[str]) -> None:
    for line, _ in NEXT:
        words = line.format(model=DEFAULT).split()[1:]
        # Training takes minutes; --show resolves the recipe and stops there.
        # A server serves until it is interrupted.
        extra = {"train": ["--show"], "explore": ["--help"]}.get(words[0], [])
        assert main([*words, *extra]) == 0, line
        assert capsys.readouterr().out


def test_an_unknown_command_is_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nonsense"]) == 2
    assert "nonsense" in capsys.readouterr().err


def test_the_list_of_commands_cuts_no_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["--help"]) == 0
    listed = capsys.readouterr().out.partition("Start:")[2].splitlines()
    titles = [line for line in listed if line.endswith(":")]
    assert [title.strip(":") for title in titles] == list(GROUPS)[1:]
    commands = [line for line in listed if line not in titles and line.strip()]
    assert len(commands) == sum(map(len, GROUPS.values())) > 20
    for line in commands:
        assert line.endswith((".", "?")), line
        assert "..." not in line


def test_the_guide_lists_every_command_and_no_other() -> None:
    text = (Path(__file__).parents[2] / "docs" / "commands.md").read_text(encoding="utf-8")
    table = text.partition("| | command | question |")[2].partition("\n\n")[0]
    cells = [line.split("|")[2] for line in table.splitlines() if line.startswith("| ")]
    listed = [name.split()[-1] for cell in cells for name in re.findall(r"`([\w ]+)`", cell)]
    commands = [function.__name__ for group in GROUPS.values() for function in group]
    assert sorted(listed) == sorted(commands)


def test_help_comes_from_docstrings() -> None:
    """Every argument and option of every command has a description."""
    for function in (function for group in GROUPS.values() for function in group):
        for name, parameter in inspect.signature(function).parameters.items():
            (described,) = parameter.annotation.__metadata__
            assert len(described.help) > 8, (function.__name__, name)


def test_options_that_would_be_ignored_are_rejected() -> None:
    @command(exclusive=["text prompts"], needs={"draws": "check"})
    def example(
        text: str | None = None,
        *,
        prompts: str | None = None,
        check: bool = False,
        draws: int | None = None,
    ) -> None:
        """Do it."""

    example(text="a", prompts=None, check=True, draws=3)
    with pytest.raises(InputError, match="TEXT and --prompts were both given; give one of them"):
        example(text="a", prompts="b", check=False, draws=None)
    with pytest.raises(InputError, match="--draws belongs to --check; give --check with it, or"):
        example(text=None, prompts="b", check=False, draws=0)


def test_errors_are_about_the_command_line() -> None:
    message = "draws=3 random heads are too few (n_ctx=4); use from_position=2"
    said = in_terms_of_options(message, "induction")
    assert said == "--draws 3 random heads are too few (n_ctx=4); use from_position=2"
    assert "use --from-position 2" in in_terms_of_options(message, "replace")
    assert in_terms_of_options("rank is 'x'; choose", "trigrams") == "--rank is 'x'; choose"
    wrong = "skip_trigrams: k is 'x'; give an integer"
    assert in_terms_of_options(wrong, "trigrams") == "--k is 'x'; give an integer"
    assert in_terms_of_options("k is 'x'", "nonsense") == "k is 'x'"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    from pathsum import __version__

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"pathsum {__version__}\n"
