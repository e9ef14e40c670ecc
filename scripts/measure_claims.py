"""The paper's claims on models trained from several seeds: src/pathsum/claims/seeds.json.

    python scripts/measure_claims.py RUN ...

measures each claim on the runs of `pathsum train` that have the depth it is about, and replaces
what was measured on runs of these names before. Nothing is measured on bundled models. The bigram
table of a zero-layer run is that of its corpus, which is opened again; runs of one corpus share it.
A run that has not finished is skipped, and the exit code says so. The table of docs/paper.md is
made from the same file; without runs, only the table is written.
"""

import argparse
import json
import re
import sys
import time
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import torch
from cards import SEQUENCES, bigram_losses, open_corpus
from torch import Tensor

from pathsum.base.estimate import Estimate, ratio
from pathsum.claims import paper
from pathsum.claims.claim import Claim
from pathsum.claims.paper import SECTIONS, seeds_table
from pathsum.claims.verdict import SEEDS, SeedValue, write_seeds
from pathsum.model import Model
from pathsum.model.losses import run_losses
from pathsum.model.storage import CONFIG
from pathsum.sources import load
from pathsum.training import Recipe
from pathsum.training.checkpoint import read_run
from pathsum.training.recipe import Data

PAGE = Path(__file__).parents[1] / "docs" / "paper.md"


@cache
def bigram_table(data: Data, length: int) -> tuple[Tensor, Tensor]:
    """Held-out sequences of a corpus, and the bigram table's losses on them."""
    corpus = open_corpus(data)
    tokens = corpus.held_out_batch(SEQUENCES, length)
    return tokens, bigram_losses(corpus, tokens)[0]


def over_bigram(model: Model, data: Data) -> Estimate:
    """The loss of a model over that of the bigram table, paired by sequence."""
    tokens, table = bigram_table(data, model.config.n_ctx)
    # A window begins in the middle of a text, which a table of neighbors cannot know.
    each = (run_losses(model, tokens)[:, 1:] - table[:, 1:]).mean(1)
    return ratio(each, torch.ones_like(each))


def measured(run: Path) -> dict[str, SeedValue]:
    """The value and verdict of every claim about models of this run's depth."""
    recipe = Recipe.from_dict(read_run(run)["recipe"])
    model = load(run)
    layers = model.config.n_layers
    names = [one.id for section in SECTIONS if section.fits(layers) for one in section.statements]
    table = over_bigram(model, recipe.data) if "zero-bigram" in names else None
    found = paper(run, claims=names, over_bigram=table)
    return {one.outline.id: _value(one, run, recipe, layers) for one in found.claims}


def _value(one: Claim, run: Path, recipe: Recipe, layers: int) -> SeedValue:
    value = one.value
    return SeedValue(
        run=run.name,
        seed=recipe.seed,
        layers=layers,
        tokens=recipe.tokens,
        value=None if value is None else value.value,
        low=None if value is None else value.low,
        high=None if value is None else value.high,
        verdict=one.verdict,
        note=one.note if value is None else one.measured,
    )


def page_table() -> str:
    """The table of the guide: every claim with its rule and its values over seeds."""
    table = seeds_table()
    rows = [[column.name for column in table.columns], ["---"] * len(table.columns)]
    rows += [["–" if cell is None else _short(str(cell)) for cell in row] for row in table.rows]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _short(cell: str) -> str:
    """A rule in signs: "the loss is at most 1, partly if …" as "the loss ≤ 1 (partly ≤ 2)"."""
    cell = (
        cell.removeprefix("holds if ")
        .replace(" is at most ", " ≤ ")
        .replace(" is at least ", " ≥ ")
    )
    return re.sub(r", partly if it (. \S+)$", r" (partly \1)", cell)


def write_page(page: Path = PAGE) -> None:
    """Replace the table of the guide."""
    text = page.read_text(encoding="utf-8")
    begin = text.index("| claim | rule |")
    end = text.index("\n\n", begin) + 1
    page.write_text(text[:begin] + page_table() + text[end:], encoding="utf-8")


def main() -> int:
    """Measure the runs named on the command line; returns 1 if some have not finished."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN")
    parser.add_argument("--into", type=Path, default=SEEDS, metavar="FILE")
    asked = parser.parse_args()
    torch.set_num_threads(1)  # small models: threads that synchronize make it slower
    finished = [run for run in asked.runs if (run / CONFIG).is_file()]
    for run in asked.runs:
        if run not in finished:
            print(f"{run} has not finished, so it is left out", file=sys.stderr)
    stored: dict[str, list[dict[str, Any]]] = {}
    if asked.into.exists():
        stored = json.loads(asked.into.read_text(encoding="utf-8"))["claims"]
    for run in finished:
        began = time.monotonic()
        for claim, value in measured(run).items():
            others = [one for one in stored.get(claim, ()) if one["run"] != run.name]
            stored[claim] = sorted([*others, asdict(value)], key=lambda one: str(one["run"]))
            shown = "–" if value.value is None else f"{value.value:.4g}"
            print(f"{run.name:20} {claim:18} {shown:>10}  {value.verdict}")
        print(f"{run.name}: {time.monotonic() - began:.0f} s", file=sys.stderr)
        write_seeds(stored, asked.into)
    if asked.into == SEEDS:
        write_page()
    return 0 if len(finished) == len(asked.runs) else 1


if __name__ == "__main__":
    sys.exit(main())
