"""Put a training run into the package: its model, held-out text, its card, chosen snapshots.

    python scripts/bundle_run.py RUN INTO [--name NAME] [--sequences N] [--steps 0,9,…] [--no-card]

RUN is the folder of a run of `pathsum train`, INTO the folder that gets INTO/NAME
(src/pathsum/sources/bundled, for a model that comes with pathsum). Weights are in half precision.
Held-out text comes along, so that nothing needs the corpus. Snapshots are kept at the steps named
(`--steps all` for every one), one file each with one config and tokenizer; `ps.dynamics(INTO/NAME)`
reads them. The card needs the run's corpus, as scripts/cards.py does.
"""

import argparse
import dataclasses
import json
import shutil
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch

from pathsum.model.storage import CONFIG
from pathsum.sources import load
from pathsum.training import Recipe, read_snapshots
from pathsum.training.checkpoint import (
    RUN,
    SNAPSHOTS,
    held_out_tokens,
    read_run,
    save_small_snapshot,
)
from pathsum.training.metrics import METRICS

SEQUENCES = 128


def bundle_run(
    run: Path, folder: Path, sequences: int = SEQUENCES, steps: Collection[int] | None = ()
) -> None:
    """Write a run into a folder, small, with snapshots at `steps` (None: all of them).

    Previous contents of the folder are removed.
    """
    snapshots = read_snapshots(run) if steps is None or steps else ()
    if steps is not None:
        absent = set(steps) - {snapshot.step for snapshot in snapshots}
        if absent:
            raise SystemExit(f"{run} has no snapshots at steps {sorted(absent)}")
        snapshots = tuple(snapshot for snapshot in snapshots if snapshot.step in steps)
    if folder.exists():
        shutil.rmtree(folder)
    model = load(run).to(torch.float16)
    dataclasses.replace(model, held_out=held_out_tokens(run, sequences)).save(folder)
    for snapshot in snapshots:
        save_small_snapshot(folder, snapshot.step, snapshot.model)
    if (run / METRICS).exists():
        shutil.copyfile(run / METRICS, folder / METRICS)
    stored: dict[str, Any] = read_run(run)
    # The path of the corpus is private and does not exist on other machines.
    stored["corpus"]["folder"] = ""
    stored["recipe"] = Recipe.from_dict(stored["recipe"]).to_dict()
    # The model has the name of its folder; its recipe keeps the name that repeats it.
    head = json.loads((folder / CONFIG).read_text(encoding="utf-8")) | {"name": folder.name}
    (folder / CONFIG).write_text(json.dumps(head, indent=2) + "\n", encoding="utf-8")
    (folder / RUN).write_text(json.dumps(stored, indent=2) + "\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> None:
    """Bundle the run and print the size of the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument("into", type=Path, metavar="INTO")
    parser.add_argument("--name", help="by default that of the run's folder")
    parser.add_argument("--sequences", type=int, default=SEQUENCES)
    parser.add_argument("--steps", default="", help="steps of the snapshots to keep, or all")
    parser.add_argument("--no-card", action="store_true")
    options = parser.parse_args(arguments)
    folder = options.into / (options.name or options.run.resolve().name)
    steps = (
        None if options.steps == "all" else [int(one) for one in options.steps.split(",") if one]
    )
    bundle_run(options.run, folder, options.sequences, steps)
    if not options.no_card:
        sys.path.insert(0, str(Path(__file__).resolve().parent))
        from cards import write_card

        write_card(folder)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    count = len(list((folder / SNAPSHOTS).glob("step-*")))
    print(f"{folder}: {count} snapshots, {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
