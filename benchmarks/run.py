"""Run `benchmarks/bench_*.py`, one after another, and write the table of their results.

    python -m benchmarks.run                  all of them
    python -m benchmarks.run --only NAME      bench_NAME.py; may be repeated

A benchmark is a module with a `main()` that returns `Measurement`s. Each runs in a process of its
own, so that none inherits another's threads, caches or memory. What it finds is kept in
`benchmarks/results/NAME.json`; `benchmarks/results/README.md` is the table of all that is there.
One that fails keeps its older result, and the run ends with status 1.
"""

import argparse
import importlib
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.measurement import Measurement

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
FORMAT = {"format": "pathsum-benchmark", "version": 1}


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmarks named on the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", metavar="NAME", action="append", help="run bench_NAME.py alone")
    # The other end of run_apart: measures in this process and writes one file.
    parser.add_argument("--measure", nargs=2, metavar=("NAME", "FILE"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)

    if options.measure:
        name, file = options.measure
        measure(name, Path(file))
        return 0
    known = sorted(path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py"))
    unknown = sorted(set(options.only or []) - set(known))
    if unknown:
        there = ", ".join(known) or "none"
        parser.error(f"there is no benchmark {', '.join(unknown)}; there is: {there}")
    failed = [name for name in options.only or known if not run_apart(name)]
    write_table()
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def run_apart(name: str) -> bool:
    """Measure in a process of its own; whether it succeeded."""
    RESULTS.mkdir(exist_ok=True)
    aside = RESULTS / f"{name}.json.part"
    # Threads that spin while waiting take a core from what is being measured.
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
    command = [sys.executable, "-m", "benchmarks.run", "--measure", name, str(aside)]
    print(f"{name} ...", flush=True)
    start = time.monotonic()
    done = subprocess.run(
        command, cwd=HERE.parent, env=environment, stdin=subprocess.DEVNULL, check=False
    )
    print(f"{name}: {time.monotonic() - start:.1f} s", flush=True)
    if done.returncode != 0:
        aside.unlink(missing_ok=True)
        return False
    aside.replace(aside.with_suffix(""))
    return True


def measure(name: str, file: Path) -> None:
    """Run one benchmark here and write what it found."""
    module = importlib.import_module(f"benchmarks.bench_{name}")
    found = [measurement.to_dict() for measurement in module.main()]
    record = {**FORMAT, "name": name, "machine": machine(), "measurements": found}
    file.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n")


def machine() -> dict[str, Any]:
    """The machine, on which the numbers depend."""
    import torch

    return {
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def processor() -> str:
    """The name of the processor, if the system reports it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def write_table() -> None:
    """One Markdown table per benchmark, with every stored result."""
    parts = ["# Results\n\nCosts: less is better, below 1 is in our favor. By `make bench`.\n"]
    for file in sorted(RESULTS.glob("*.json")):
        record = json.loads(file.read_text())
        about = record["machine"]
        parts.append(
            f"\n## {record['name']}\n\n{about['processor']}, {about['threads']} threads,"
            f" Python {about['python']}, torch {about['torch']}\n\n"
            "| what | ours | against | theirs | ratio |\n|---|---:|---|---:|---:|\n"
        )
        parts += [line(Measurement(**found)) for found in record["measurements"]]
    if len(parts) == 1:
        print("there is no benchmark to run, and no result to show")
        return
    table = "".join(parts)
    (RESULTS / "README.md").write_text(table)
    print(table)


def line(found: Measurement) -> str:
    """A row of the table."""
    theirs = "" if found.theirs is None else f"{found.theirs:.3g} {found.unit}"
    ratio = "" if found.ratio is None else f"{found.ratio:.3g}"
    cells = [found.what, f"{found.ours:.3g} {found.unit}", found.other or "", theirs, ratio]
    return f"| {' | '.join(cells)} |\n"


if __name__ == "__main__":
    sys.exit(main())
