"""Hooks of mkdocs (`make docs`): the README and the API as pages, formulas, live figures.

The API page is written from the public names of `src/pathsum/__init__.py` by reading the sources,
so that building the site needs neither torch nor pathsum. MathML needs no script and no font.
`scripts/docs_figures.py --live` writes the live figures, before mkdocs runs.
"""

import ast
import re
from pathlib import Path
from typing import Any

import griffe
import latex2mathml.converter
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "pathsum"
# Files of the repository that pages link to and that are not pages.
OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:[A-Z]+(?:\.md|\.cff)?|benchmarks/[^)]*|examples)\)")
DOCTEST = re.compile(r"^( *)>>> .*(?:\n *\S.*)*", re.MULTILINE)
LIVE_FIGURES = ROOT / "build" / "live"
LIVE = re.compile(r"^<!-- live: (\w+) -->$", re.MULTILINE)
FRAME = '<iframe class="live" src="live/{}.html" loading="lazy" title="live figure: {}"></iframe>'
MATH = re.compile(r"^\$\$(.+?)\$\$$", re.MULTILINE | re.DOTALL)


class Doctests(griffe.Extension):
    """Examples in docstrings as blocks of code; Markdown would read `>>>` as a quotation."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Fence the examples of one docstring."""
        if obj.docstring is not None:
            obj.docstring.value = DOCTEST.sub(
                lambda found: f"{found[1]}```pycon\n{found[0]}\n{found[1]}```", obj.docstring.value
            )


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that have no file in docs/."""
    files.append(File.generated(config, "readme.md", content=readme()))
    files.append(File.generated(config, "api.md", content=api()))
    for figure in sorted(LIVE_FIGURES.glob("*.html")):
        found = File.generated(config, f"live/{figure.name}", abs_src_path=str(figure))
        files.append(found)
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Formulas as MathML, live figures as frames, links to files outside docs/ as their names."""
    markdown = markdown.replace("](../README.md)", "](readme.md)")
    markdown = re.sub(r"\[([^\]]+)\]\(\.\./[^)]*\)", r"`\1`", markdown)
    markdown = LIVE.sub(lambda found: _live(found[1]), markdown)
    return MATH.sub(lambda found: _mathml(found[1].strip()), markdown)


def on_post_page(output: str, **_: Any) -> str:
    """Load the script that search needs in a page opened from disk from the site itself."""
    output = output.replace("https://unpkg.com/iframe-worker/shim", "site/iframe-worker.js")
    loaded = re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="(https?://[^"]*)"', output)
    if loaded:
        raise AssertionError(f"a page loads {loaded[0]}; vendor it, so that the site works offline")
    return output


def _live(name: str) -> str:
    if not (LIVE_FIGURES / f"{name}.html").exists():
        raise AssertionError(f"build/live/{name}.html is missing; `make docs` writes it")
    return FRAME.format(name, name)


def _mathml(formula: str) -> str:
    # A wide formula scrolls by itself on a phone.
    return f'<div class="formula">{latex2mathml.converter.convert(formula, display="block")}</div>'


def readme() -> str:
    """The README with links as they are from docs/."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"\]\(docs/", "](", text)
    return OUTSIDE.sub(r"`\1`", text)


def api() -> str:
    """A page with every public name, in the order and the groups of the package's docstring."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    names = _assigned(tree, "_NAMES")
    lines = ["# API", "", "```text", *_map_of_names(tree), "```", ""]
    for package, listed in names.items():
        lines.append(f"## pathsum.{package}\n")
        lines += [f"::: {definition(package, name)}\n" for name in listed.split()]
    for name, module in _assigned(tree, "_MODULES").items():
        lines.append(f"## {name}\n")
        members = sorted(_exported(module))
        listed = [f"      members: [{', '.join(members)}]"] if members else []
        lines += [f"::: {module}", "    options:", "      show_root_heading: false", *listed, ""]
    return "\n".join(lines)


def _map_of_names(tree: ast.Module) -> list[str]:
    text = ast.get_docstring(tree) or ""
    names = text.partition(">>>")[0]
    return [line[4:] for line in names.splitlines() if line.startswith("    ")]


def _assigned(tree: ast.Module, name: str) -> dict[str, str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return ast.literal_eval(node.value)
    raise AssertionError(f"pathsum/__init__.py does not assign {name}")


def _exported(module: str) -> list[str]:
    """The names of a module's `__all__`, if it has one."""
    file = PACKAGE.parent.joinpath(*module.split("."))
    source = file / "__init__.py" if file.is_dir() else file.with_suffix(".py")
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    return []


def definition(package: str, name: str) -> str:
    """Where a public name is defined: its package may only import it."""
    folder = PACKAGE.joinpath(*package.split("."))
    source = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and name in [each.name for each in node.names]:
            return f"{node.module}.{name}"
    return f"pathsum.{package}.{name}"
