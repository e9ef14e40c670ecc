"""Compare training runs: loss and induction against tokens, as a table in Markdown.

    python scripts/study.py RUN ... [--at 1,2,4]

A RUN is the folder of a run of `pathsum train`; a folder of runs stands for all runs in it. Numbers
are those that the runs measured while they trained: held-out loss, the induction stripe of the best
head on repeated random tokens after millions of tokens (`--at`; linear between probes), the tokens
after which it first passed one half, and the losses of the first and second copy of repeated
random tokens.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from pathsum.training.metrics import read_metrics

HALF = 0.5


def probed(run: Path) -> list[dict[str, Any]]:
    """The reports of a run at which its model was probed."""
    return [line for line in read_metrics(run) if line.get("held_out_loss") is not None]


def row(name: str, lines: list[dict[str, Any]], at: list[float]) -> list[str]:
    """The cells of one run."""
    tokens = np.array([line["tokens"] for line in lines]) / 1e6
    stripe = np.array([line["induction"] or 0.0 for line in lines])
    last = lines[-1]
    passed = np.flatnonzero(stripe >= HALF)
    curve = [
        f"{np.interp(one, tokens, stripe):.2f}" if tokens[0] <= one <= tokens[-1] else "–"
        for one in at
    ]
    return [
        name,
        f"{last['tokens'] / 1e6:.1f}",
        f"{last['held_out_loss']:.2f}",
        *curve,
        f"{stripe[-1]:.2f}",
        f"{tokens[passed[0]]:.1f}" if len(passed) else "–",
        f"{last['repeat_first']:.1f} → {last['repeat_second']:.1f}",
    ]


def table(runs: list[Path], at: list[float]) -> str:
    """All runs, in Markdown."""
    heads = [
        "run",
        "M tokens",
        "held-out loss",
        *(f"stripe at {one:g} M" for one in at),
        "at the end",
        "M tokens to a stripe of ½",
        "random repeats, first → second",
    ]
    rows = [row(run.name, lines, at) for run in runs if (lines := probed(run))]
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def main() -> None:
    """Print the table of the runs named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--at", default="1,2,4", help="millions of tokens")
    options = parser.parse_args()
    runs = [
        folder
        for given in options.runs
        for folder in ([given] if (given / "run.json").exists() else sorted(given.iterdir()))
        if (folder / "run.json").exists()
    ]
    print(table(runs, [float(one) for one in options.at.split(",")]))


if __name__ == "__main__":
    main()
