"""Mutation testing on a sample: plant one fault at a time, and see whether the tests notice.

    python scripts/mutate.py --sample 30 --seed 0
    python scripts/mutate.py --only algebra/spectrum.py --sample 10

Works in a copy of the repository. A fault is a small change of the syntax tree: another operator or
comparison, a number plus one, a negated condition, a returned None. The tests of a room are run
once without a fault, under coverage, and must pass: a test that fails anyway kills everything. That
run says which tests execute which lines and how long they take. For each fault, the tests that
execute its line are run, the quick ones first, without run-time type checks, with few examples of
each property and without shrinking; a fault is killed if one fails. Survivors are printed with
their line: either a test is missing, or the change is equivalent.

A fault gets ten times the processor time that its tests need without one, so that other work on the
machine ends none; one that uses it up "loops", and one that waits forever "hangs". Both are counted
separately from those that tests kill.

Every run of the tests is a process of its own, forked from one that has imported torch.
"""

import argparse
import ast
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import coverage
import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = {
    "algebra": ["*"],
    "base": ["site", "path"],
    # The forward pass and what it is made of.
    "model": ["forward", "transformer", "rotary", "recording", "editor", "node_edges"],
    "paths": ["sweep", "frozen"],
}
IDENTITIES = "tests/identities"
TESTS = {
    "algebra": ["tests/algebra/test_*.py", f"{IDENTITIES}/test_algebra_*.py"],
    "base": [
        f"{IDENTITIES}/test_names.py",
        "tests/paths/test_path_sum.py",
        "tests/paths/test_virtual_head.py",
    ],
    "model": [
        f"{IDENTITIES}/test_model*.py",
        f"{IDENTITIES}/test_sweeps.py",
        f"{IDENTITIES}/test_soft_caps.py",
        f"{IDENTITIES}/test_kept.py",
        f"{IDENTITIES}/test_edited_models.py",
        f"{IDENTITIES}/test_interventions_*.py",
        f"{IDENTITIES}/test_node_edges.py",
        "tests/model/test_*.py",
        "tests/sources/test_gemma.py",  # windows
    ],
    "paths": [
        f"{IDENTITIES}/test_sweeps.py",
        f"{IDENTITIES}/test_paths_*.py",
        "tests/paths/test_*.py",
    ],
}
# Processor seconds of a run: so many times those of its tests without a fault, after importing.
SLOWDOWN, IMPORTING = 10, 60
# Times the processor seconds, by the clock: another load on the machine does not use them up.
PATIENCE = 20
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


@dataclass(frozen=True)
class Fault:
    """A change of one node of a file, by its number in the order of `ast.walk`.

    `lines` are those of the statement that contains it, without the statements in its body.
    """

    file: Path
    node: int
    lines: range
    what: str

    @property
    def room(self) -> str:
        """The room of the file, which says what tests are run."""
        return self.file.parts[2]


def faults(file: Path) -> Iterator[Fault]:
    """Every fault that can be planted in a file."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    lines: dict[ast.AST, range] = {}
    for number, node in enumerate(ast.walk(tree)):
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            end = body[0].lineno if body else (node.end_lineno or node.lineno) + 1
            lines[node] = range(node.lineno, max(end, node.lineno + 1))
        for child in ast.iter_child_nodes(node):
            lines[child] = lines.get(node, range(0))
        changed = _change(node)
        if changed:
            yield Fault(file, number, lines[node], changed)


def _change(node: ast.AST) -> str:
    """Change a node in place, if there is a change for its kind; returns a description of it."""
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


# --- one run of tests, in a process of its own ----------------------------------------------------


class Chosen:
    """A plugin of pytest: runs the tests named, in that order, and does not shrink examples."""

    def __init__(self, names: list[str]) -> None:
        self.place = {name: number for number, name in enumerate(names)}

    def pytest_sessionstart(self) -> None:
        """After tests/conftest.py has loaded its profile, before tests are decorated."""
        # pytest rewrites assertions in hypothesis, so it must not be imported before.
        from hypothesis import Phase, settings

        profile = settings.get_profile("repeatable")
        settings.register_profile("mutation", profile, phases=[Phase.generate], database=None)
        settings.load_profile("mutation")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Nothing named means all."""
        if self.place:
            items[:] = [item for item in items if item.nodeid in self.place]
            items.sort(key=lambda item: self.place[item.nodeid])


class Touching(Chosen):
    """Also notes which test executes which line, and how long each takes."""

    def __init__(self, measured: coverage.Coverage) -> None:
        super().__init__([])
        self.measured = measured
        self.tests: dict[str, dict[str, Any]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Lines that a test executes carry its name."""
        self.measured.switch_context(item.nodeid)
        began = time.process_time()
        found = yield
        seconds = time.process_time() - began
        fixtures = getattr(item, "fixturenames", [])
        self.tests[item.nodeid] = {"seconds": seconds, "fixtures": fixtures}
        return found

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Iterator[None]:
        """Lines that a shared fixture executes carry the fixture's name: it is set up only once."""
        if fixturedef.scope == "function":
            return (yield)
        self.measured.switch_context(f"fixture {fixturedef.argname}")
        try:
            return (yield)
        finally:
            self.measured.switch_context(request.node.nodeid)


def run_tests(
    seconds: int, copy: str, files: list[str], names: list[str], examples: int, touched: str
) -> None:
    """Run tests of the copy and exit as pytest does. With `touched`, note there what they touch.

    The system ends the process after so many seconds of processor time.
    """
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.RLIM_INFINITY))
    os.chdir(copy)
    sys.path[:0] = [copy, f"{copy}/src"]
    os.environ |= {
        "PYTHONPATH": f"{copy}/src",
        "PATHSUM_EXAMPLES": str(examples),
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    sys.dont_write_bytecode = True
    output = os.open(f"{copy}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    arguments = ["-q", "-x", "-n", "0", "-p", "no:cacheprovider"]
    # As users run it: a fault should be noticed by its numbers, not by the type that it returns.
    arguments += ["-o", "addopts=--import-mode=importlib"]
    arguments += ["-m", "not slow and not peers and not real", *files]
    if not touched:
        sys.exit(pytest.main(arguments, plugins=[Chosen(names)]))
    measured = coverage.Coverage(
        data_file=f"{touched}.data", source=[f"{copy}/src/pathsum"], config_file=False
    )
    plugin = Touching(measured)
    with measured.collect():
        code = pytest.main(arguments, plugins=[plugin])
    data = measured.get_data()
    lines = {
        str(Path(file).relative_to(copy)): data.contexts_by_lineno(file)
        for file in data.measured_files()
    }
    Path(touched).write_text(json.dumps({"tests": plugin.tests, "lines": lines}))
    sys.exit(code)


def in_a_process(seconds: int, *arguments: Any) -> int | None:
    """The exit code of `run_tests`, or None if it waits far longer than it may compute."""
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=run_tests, args=(seconds, *arguments))
    process.start()
    process.join(PATIENCE * seconds)
    if process.is_alive():
        process.kill()
        process.join()
        return None
    return process.exitcode


# --- verdicts -------------------------------------------------------------------------------------


@dataclass
class Room:
    """The tests of a room, which lines each executes, and how long each takes."""

    files: list[str]
    tests: dict[str, dict[str, Any]]
    lines: dict[str, dict[str, list[str]]]

    def touching(self, fault: Fault) -> list[str]:
        """The tests that execute the line of a fault, the quick ones first."""
        by_line = self.lines.get(str(fault.file), {})
        contexts = {context for line in fault.lines for context in by_line.get(str(line), ())}
        shared = {context.removeprefix("fixture ") for context in contexts if " " in context}
        found = [
            name
            for name, test in self.tests.items()
            # Lines that are executed while a module is imported have no name.
            if name in contexts or "" in contexts or shared.intersection(test["fixtures"])
        ]
        return sorted(found, key=lambda name: self.tests[name]["seconds"])


def measure(name: str, copy: Path, examples: int) -> Room:
    """Run the tests of a room without a fault. Exit unless they pass."""
    chosen = [str(found.relative_to(copy)) for one in TESTS[name] for found in copy.glob(one)]
    touched = copy.parent / f"{name}.json"
    began = time.perf_counter()
    code = in_a_process(3600, str(copy), chosen, [], examples, str(touched))
    if code:
        print(Path(f"{copy}.log").read_text()[-2000:])
        raise SystemExit(f"the tests of {name} fail without a fault; no verdict is possible")
    found = json.loads(touched.read_text())
    seconds = time.perf_counter() - began
    print(f"{name}: {len(found['tests'])} tests pass in {seconds:.0f} s", flush=True)
    return Room(chosen, found["tests"], found["lines"])


def verdict(fault: Fault, room: Room, copy: Path, examples: int) -> str:
    """ "killed", "loops", "hangs", "SURVIVED" or "untouched": what tests say of a planted fault."""
    names = room.touching(fault)
    if not names:
        return "untouched"
    files = [file for file in room.files if any(name.startswith(f"{file}::") for name in names)]
    seconds = IMPORTING + SLOWDOWN * sum(room.tests[name]["seconds"] for name in names)
    plant(fault, copy)
    try:
        code = in_a_process(int(seconds), str(copy), files, names, examples, "")
    finally:
        shutil.copy(ROOT / fault.file, copy / fault.file)
    ends = {0: "SURVIVED", -signal.SIGXCPU: "loops", None: "hangs"}
    return ends.get(code, "killed")


def draw(sample: int, seed: int, only: str) -> tuple[list[Fault], dict[str, int]]:
    """A sample of the faults of each room, and how many there are in each."""
    every: dict[str, list[Fault]] = defaultdict(list)
    for room, stems in SOURCES.items():
        for stem in stems:
            for file in sorted((ROOT / "src/pathsum" / room).glob(f"{stem}.py")):
                if only in str(file):
                    every[room] += faults(file.relative_to(ROOT))
    drawn = random.Random(seed)
    chosen = [f for found in every.values() for f in drawn.sample(found, min(sample, len(found)))]
    return chosen, {room: len(found) for room, found in every.items()}


def main() -> None:
    """Draw a sample of faults and report what share the tests kill."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sample", type=int, default=10, help="how many faults in each room")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="part of a file's path")
    parser.add_argument("--examples", type=int, default=8, help="of each property")
    asked = parser.parse_args()
    multiprocessing.get_context("forkserver").set_forkserver_preload(["torch", "pytest"])
    sample, sizes = draw(asked.sample, asked.seed, asked.only)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "pathsum"
        skipped = shutil.ignore_patterns(".*", "node_modules", "web", "__pycache__")
        shutil.copytree(ROOT, copy, ignore=skipped)
        rooms: dict[str, Room] = {}
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        for fault in sample:
            if fault.room not in rooms:
                rooms[fault.room] = measure(fault.room, copy, asked.examples)
            found = verdict(fault, rooms[fault.room], copy, asked.examples)
            counts[fault.room][found] += 1
            print(f"{found:<9} {fault.file}:{fault.lines.start} {fault.what}", flush=True)
    for room, size in sizes.items():
        of = counts[room]
        print(f"{room}: killed {of['killed']} of {of.total()} (of {size} faults); {dict(of)}")


if __name__ == "__main__":
    main()
