"""Run the notebooks of examples/ and write their outputs, without Jupyter.

    python -m scripts.notebooks                              # all
    python -m scripts.notebooks examples/explain-one-prediction.ipynb

A cell shows what it prints, and the value of its last line: a figure as SVG, anything else as text.
`tests/test_examples.py` runs the quick notebooks and compares what they print with what they show.
"""

import ast
import io
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import chdir, redirect_stdout
from pathlib import Path
from typing import Any

from scripts.docs_outputs import ROOT, WIDTH, difference

NOTEBOOKS = tuple(sorted((ROOT / "examples").glob("*.ipynb")))


def read_notebook(file: Path) -> dict[str, Any]:
    """The notebook as JSON."""
    return json.loads(file.read_text(encoding="utf-8"))


def run_notebook(notebook: dict[str, Any]) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Run the code cells in order, in one namespace; each with its outputs."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            yield cell, _run(ast.parse("".join(cell["source"])), namespace)


def _run(tree: ast.Module, namespace: dict[str, Any]) -> list[dict[str, Any]]:
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with redirect_stdout(printed):
        exec(compile(tree, "cell", "exec"), namespace)  # noqa: S102
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), namespace)  # noqa: S307
    text = "\n".join(line.rstrip() for line in printed.getvalue().splitlines())
    outputs: list[dict[str, Any]] = []
    if text:
        outputs.append({"output_type": "stream", "name": "stdout", "text": _lines(text + "\n")})
    if value is not None:
        data = {"text/plain": _lines(repr(value))}
        if hasattr(value, "_repr_svg_"):
            data["image/svg+xml"] = _lines(value._repr_svg_())
        shown = {"output_type": "execute_result", "execution_count": None, "metadata": {}}
        outputs.append({**shown, "data": data})
    return outputs


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def shown_text(outputs: list[dict[str, Any]]) -> str:
    """What outputs show as text, one after another."""
    texts = [each.get("text") or each["data"]["text/plain"] for each in outputs]
    return "\n".join("".join(lines) for lines in texts)


def refresh(file: Path) -> bool:
    """Write the outputs of a notebook; whether any changed by more than rounding."""
    notebook = read_notebook(file)
    changed = False
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        for cell, outputs in run_notebook(notebook):
            drifted = difference(shown_text(cell["outputs"]), shown_text(outputs)) is not None
            if drifted or len(cell["outputs"]) != len(outputs):
                cell["outputs"], changed = outputs, True
    if changed:
        text = json.dumps(notebook, ensure_ascii=False, indent=1)
        file.write_text(text + "\n", encoding="utf-8")
    return changed


def main(arguments: list[str]) -> None:
    """Refresh the notebooks given, or all of them."""
    os.environ["COLUMNS"] = str(WIDTH)
    for file in [Path(name).resolve() for name in arguments] or NOTEBOOKS:
        print(file.name, "changed" if refresh(file) else "unchanged")


if __name__ == "__main__":
    main(sys.argv[1:])
