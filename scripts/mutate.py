"""Mutation testing on a sample: plant one fault at a time, and see whether the tests notice.

    python scripts/mutate.py --sample 40 --seed 0
    python scripts/mutate.py --only algebra/spectrum.py --sample 10

Works in a copy of the repository. A fault is a small change of the syntax tree: another operator or
comparison, a number plus one, a negated condition, a returned None. The tests of a file's room and
the identities are run, without run-time type checks and with hypothesis's shrinking switched off; a
fault is killed if one fails. A few examples of each property come first, since they kill most.
They are run without a fault first, and must pass: a test that fails anyway kills everything. Faults
that a time limit ends are counted apart. What survives is printed with its line: either a test is
missing, or the change means the same.
"""

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("algebra", "names", "model/forward.py", "model/transformer.py", "paths/sweep.py")
SOURCES += ("paths/frozen.py",)
IDENTITIES = "tests/identities"
TESTS = {
    "algebra": ["tests/algebra", f"{IDENTITIES}/test_algebra_*.py"],
    "names": [f"{IDENTITIES}/test_names.py", "tests/paths/test_path_sum.py"],
    "model": [
        f"{IDENTITIES}/test_model.py",
        f"{IDENTITIES}/test_soft_caps.py",
        f"{IDENTITIES}/test_kept.py",
        f"{IDENTITIES}/test_edited_models.py",
        f"{IDENTITIES}/test_interventions_*.py",
        "tests/model",
    ],
    "paths": [f"{IDENTITIES}/test_sweeps.py", f"{IDENTITIES}/test_paths_*.py", "tests/paths"],
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


def room(file: Path) -> str:
    """The room of a source file, which says what tests are run."""
    return file.parts[2].removesuffix(".py")


def run_tests(name: str, copy: Path, limit: float, examples: int = 0) -> str:
    """ "passed", "failed" or "timed out": the tests of a room in the copy.

    With `examples`, every property draws at most that many.
    """
    chosen = [str(found.relative_to(copy)) for one in TESTS[name] for found in copy.glob(one)]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider"]
    # As users run it: a fault should be noticed by its numbers, not by the type that it returns.
    command += ["-o", "addopts=--import-mode=importlib", "-m", "not slow and not peers"]
    try:
        done = subprocess.run(
            [*command, *chosen],
            cwd=copy,
            env={
                **os.environ,
                "PYTHONPATH": str(copy / "src"),
                "PATHSUM_EXAMPLES": str(examples),
                "OMP_NUM_THREADS": "1",
            },
            capture_output=True,
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "timed out"
    return "failed" if done.returncode else "passed"


def verdict(fault: Fault, copy: Path, limit: float) -> str:
    """ "killed", "timed out" or "SURVIVED": what the tests say of a planted fault."""
    plant(fault, copy)
    try:
        found = run_tests(room(fault.file), copy, limit, examples=4)
        if found == "passed":
            found = run_tests(room(fault.file), copy, limit)
    finally:
        shutil.copy(ROOT / fault.file, copy / fault.file)
    return {"failed": "killed", "passed": "SURVIVED"}.get(found, found)


def check_unchanged(rooms: Iterable[str], copy: Path, limit: float) -> None:
    """Exit unless the tests pass without a fault, within the limit."""
    for name in sorted(set(rooms)):
        found = run_tests(name, copy, limit)
        if found != "passed":
            raise SystemExit(f"the tests of {name} {found} without a fault; no verdict is possible")


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
        check_unchanged((room(fault.file) for fault in sample), copy, asked.limit)
        counts = Counter[str]()
        for fault in sample:
            found = verdict(fault, copy, asked.limit)
            counts[found] += 1
            print(f"{found:<9} {fault.file}:{fault.line} {fault.what}", flush=True)
    print(f"killed: {counts['killed']} of {len(sample)}; timed out: {counts['timed out']}")


if __name__ == "__main__":
    main()
