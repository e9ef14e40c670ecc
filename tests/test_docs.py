"""The guide runs: the Python of every page, in order, in one namespace per page."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# Pages that load SmolLM2 run with the tests marked `real`.
REAL = ("real-model",)
RUN = [
    pytest.param(page, marks=pytest.mark.real if page.stem in REAL else (), id=page.stem)
    for page in PAGES
]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", RUN)
def test_page(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = page.read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in BLOCK.finditer(text):
        # Blank lines before the code, so that a traceback names the page's own line.
        lines = text[: block.start(1)].count("\n")
        exec(compile("\n" * lines + block[1], str(page), "exec"), namespace)
    assert capsys.readouterr().err == ""


def test_every_page_is_in_the_table_of_contents() -> None:
    contents = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        if page.stem != "index":
            assert f"({page.name})" in contents, page.name


def test_every_file_named_in_the_architecture_page_exists() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w./-]+(?:/|\.(?:py|ts|svelte|toml)))`", page))
    missing = [
        name
        for name in sorted(named)
        if not any((base / name).exists() for base in (ROOT / "src" / "pathsum", ROOT))
    ]
    assert len(named) > 50
    assert missing == []


def test_the_architecture_page_names_every_package() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    package = ROOT / "src" / "pathsum"
    packages = [folder.name for folder in package.iterdir() if (folder / "__init__.py").exists()]
    assert [name for name in packages if f"| `{name}/` |" not in page] == []


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
