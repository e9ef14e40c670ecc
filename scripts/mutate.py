"""Mutation testing on a sample: plant one fault at a time, and see whether the tests notice.

    python scripts/mutate.py --sample 40 --seed 0
    python scripts/mutate.py --only algebra/spectrum.py --sample 10

Works in a copy of the repository. A fault is a small change of the syntax tree: another operator or
comparison, a number plus one, a negated condition, a returned None. The tests of a file's room and
the identities are run with hypothesis's shrinking switched off; a fault is killed if one fails.
What survives is printed with its line: either a test is missing, or the change means the same.
"""

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("algebra", "names", "model/run.py", "model/transformer.py", "paths/sweep.py")
SOURCES += ("paths/frozen.py",)
IDENTITIES = "tests/identities"
TESTS = {
    "algebra": ["tests/algebra", f"{IDENTITIES}/test_algebra_*.py"],
    "names": [f"{IDENTITIES}/test_names.py", "tests/paths/test_path_sum.py"],
    "model": [
        "tests/model",
        f"{IDENTITIES}/test_model.py",
        f"{IDENTITIES}/test_interventions_*.py",
    ],
    "paths": ["tests/paths", f"{IDENTITIES}/test_paths_*.py"],
}
_SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
# Fast, and the same on every run: a failing example need not be small here.
_PROFILE = """
from hypothesis import Phase as _Phase, settings as _settings
_settings.register_profile(
    "mutation", _settings.get_profile("repeatable"), phases=[_Phase.generate], database=None
)
_settings.load_profile("mutation")
"""


@dataclass(frozen=True)
class Fault:
    """A change of one node of a file, by its number in the order of `ast.walk`."""

    file: Path
    node: int
    line: int
    what: str


def faults(file: Path) -> Iterator[Fault]:
    """Every fault that can be planted in a file."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    for number, node in enumerate(ast.walk(tree)):
        changed = _change(node)
        if changed:
            yield Fault(file, number, getattr(node, "lineno", 0), changed)


def _change(node: ast.AST) -> str:
    """Change a node in place, if it is of a kind that is changed; what was done."""
    if isinstance(node, ast.BinOp | ast.AugAssign | ast.BoolOp) and type(node.op) in _SWAPS:
        before = type(node.op).__name__
        node.op = _SWAPS[type(node.op)]()  # pyright: ignore[reportAttributeAccessIssue]
        return f"{before} becomes {type(node.op).__name__}"
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _SWAPS:
        before = type(node.ops[0]).__name__
        node.ops[0] = _SWAPS[type(node.ops[0])]()  # pyright: ignore[reportArgumentType]
        return f"{before} becomes {type(node.ops[0]).__name__}"
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        node.value += 1  # pyright: ignore[reportOperatorIssue]
        return f"{node.value - 1} becomes {node.value}"  # pyright: ignore[reportOperatorIssue]
    if isinstance(node, ast.If | ast.IfExp):
        node.test = ast.UnaryOp(ast.Not(), node.test)
        return "a condition is negated"
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node.op = ast.UAdd()
        return "a minus is dropped"
    if isinstance(node, ast.Return) and node.value is not None:
        node.value = ast.Constant(None)
        return "None is returned"
    return ""


def plant(fault: Fault, copy: Path) -> None:
    """Write the file with the fault into the copy."""
    tree = ast.parse((ROOT / fault.file).read_text(encoding="utf-8"))
    _change(list(ast.walk(tree))[fault.node])
    text = ast.unparse(ast.fix_missing_locations(tree))
    (copy / fault.file).write_text(text, encoding="utf-8")


def killed(fault: Fault, copy: Path, limit: float) -> bool:
    """Whether a test fails (or never ends) with the fault planted."""
    patterns = TESTS[fault.file.parts[2].removesuffix(".py")]
    chosen = [str(found.relative_to(copy)) for one in patterns for found in copy.glob(one)]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider"]
    plant(fault, copy)
    try:
        environment = {**os.environ, "PYTHONPATH": str(copy / "src")}
        done = subprocess.run(
            [*command, *chosen],
            cwd=copy,
            env=environment,
            capture_output=True,
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return True
    finally:
        shutil.copy(ROOT / fault.file, copy / fault.file)
    return done.returncode != 0


def main() -> None:
    """Draw a sample of faults and report what share the tests kill."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sample", type=int, default=20, help="how many faults")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="part of a file's path")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds per fault")
    asked = parser.parse_args()
    files = [
        file.relative_to(ROOT)
        for source in SOURCES
        for file in sorted(
            (ROOT / "src/pathsum").glob(f"{source}/*.py" if "." not in source else source)
        )
        if asked.only in str(file)
    ]
    every = [fault for file in files for fault in faults(file)]
    sample = random.Random(asked.seed).sample(every, min(asked.sample, len(every)))
    print(f"{len(every)} faults in {len(files)} files; {len(sample)} are planted")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "pathsum"
        skipped = shutil.ignore_patterns(".git", ".venv*", "node_modules", "web", "__pycache__")
        shutil.copytree(ROOT, copy, ignore=skipped)
        with (copy / "tests/conftest.py").open("a", encoding="utf-8") as conftest:
            conftest.write(_PROFILE)
        survived = 0
        for fault in sample:
            alive = not killed(fault, copy, asked.limit)
            survived += alive
            verdict = "SURVIVED" if alive else "killed"
            print(f"{verdict:<9} {fault.file}:{fault.line} {fault.what}", flush=True)
    print(f"killed: {len(sample) - survived} of {len(sample)}")


if __name__ == "__main__":
    main()
