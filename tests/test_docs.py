"""The guide runs: the code of every page, in order, and what it prints is what the page shows."""

import re
from pathlib import Path

import pytest
from scripts.docs_figures import FIGURES, PICTURES, QUICK
from scripts.docs_outputs import (
    PAGES,
    REAL,
    ROOT,
    WIDTH,
    difference,
    refresh,
    run_command,
    run_page,
)

import pathsum as ps

SLOW = ("bigrams", "decompile", "dynamics", "explorer", "heads", "one-layer-induction", "paper")
SLOW += ("patching", "prompts", "skip-trigrams", "tour", "training", "why")
MARKS = dict.fromkeys(SLOW, pytest.mark.slow) | dict.fromkeys(REAL, pytest.mark.real)
RUN = [
    pytest.param(page, marks=MARKS.get(page.stem, ()), id=page.stem)
    for page in (*PAGES, ROOT / "llms.txt")
]


@pytest.mark.parametrize("page", RUN)
def test_page(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    for block, printed in run_page(page):
        if block.output is not None:
            where = f"{page.name}, line {block.line}"
            assert difference(block.output, printed) is None, f"{where}: make docs-outputs"
    assert capsys.readouterr().err == ""


def test_outputs_are_written_and_compared(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(1 / 3)\n```\n\n```text\n```\n", encoding="utf-8")
    assert refresh(page) and not refresh(page)
    text = page.read_text(encoding="utf-8")
    assert text.endswith("```text\n0.3333333333333333\n```\n")
    page.write_text(text.replace("0.33", "0.43"), encoding="utf-8")
    assert refresh(page)


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("a  0.50 b", "a 0.51 b", True),
        ("a 0.50 b", "a 0.53 b", False),
        ("a 0.50 b", "a 0.50 c", False),
        ("p 1.2e-05", "p 1.3e-05", True),
        ("p 1.2e-05", "p 2.2e-05", False),
        ("error 3.4e-07", "error 1.1e-06", True),
        ("error 3.4e-07", "error 1.1e-04", False),
        ("L1H0 adds", "L1H2 adds", False),
        ("12,000 steps", "12,100 steps", True),
        ("one", "one\ntwo", False),
    ],
)
def test_numbers_have_a_tolerance_and_words_have_none(shown: str, printed: str, same: bool) -> None:
    assert (difference(shown, printed) is None) is same


@pytest.mark.parametrize("name", QUICK)
def test_figures_of_the_guide_are_up_to_date(name: str) -> None:
    shown = (PICTURES / f"{name}.svg").read_text(encoding="utf-8")
    drawn = FIGURES[name](ps.load("two-layer")).to_svg()
    labels = [re.findall(r"<text[^>]*>([^<]*)</text>", each) for each in (shown, drawn)]
    assert difference("\n".join(labels[0]), "\n".join(labels[1])) is None, "make docs-outputs"


def every_page() -> set[str]:
    """Pages as the guide links to them."""
    docs = ROOT / "docs"
    return {page.relative_to(docs).as_posix() for page in docs.rglob("*.md")}


def test_every_page_is_in_the_table_of_contents() -> None:
    contents = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    for page in every_page():
        if page != "index.md":
            assert f"({page})" in contents, page


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r"- (?:[\w ]+: )?([\w/-]+\.md)\n", text)
    assert every_page() | {"readme.md", "api.md"} == set(listed)
    assert len(listed) == len(set(listed))


def concept_commands() -> list[str]:
    """The commands of the page of concepts that need no other model and no browser."""
    text = (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8")
    found = re.findall(r"`(pathsum [^`]+)`", text)
    return sorted({each for each in found if "smollm2" not in each and " demo" not in each})


@pytest.mark.slow
@pytest.mark.parametrize("command", concept_commands())
def test_commands_of_the_concepts_run(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_command(command.replace("TEXT", "'Mr. and Mrs. Dursley were proud. Mr. Durs'"))


def test_every_file_named_in_the_architecture_page_exists() -> None:
    page = (ROOT / "docs" / "contributing" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w./-]+(?:/|\.(?:py|ts|svelte|toml)))`", page))
    missing = [
        name
        for name in sorted(named)
        if not any((base / name).exists() for base in (ROOT / "src" / "pathsum", ROOT))
    ]
    assert len(named) > 50
    assert missing == []


def test_the_architecture_page_names_every_package() -> None:
    page = (ROOT / "docs" / "contributing" / "architecture.md").read_text(encoding="utf-8")
    package = ROOT / "src" / "pathsum"
    packages = [folder.name for folder in package.iterdir() if (folder / "__init__.py").exists()]
    assert [name for name in packages if f"| `{name}/` |" not in page] == []


def test_links_between_pages_lead_somewhere() -> None:
    for page in (*PAGES, ROOT / "llms.txt"):
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
