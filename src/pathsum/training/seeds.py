"""`train_seeds`: the same recipe from several seeds, and the mechanism that each one finds."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeAlias, get_args

from pathsum.base import Column, Progress, Record, silent, text_column
from pathsum.base.errors import InputError
from pathsum.base.files import user_path, write_text
from pathsum.base.options import parse_count
from pathsum.heads import Induction, induction
from pathsum.heads.induction import Mechanism
from pathsum.training.checkpoint import RUN, check_same_recipe, read_recipe
from pathsum.training.metrics import Watch, ignore
from pathsum.training.recipe import Recipe, find_recipe
from pathsum.training.train import TrainingRun, read_result, train

SEEDS = "seeds.json"
Begin: TypeAlias = Callable[[str], None]
"""Called before each seed with a line that names it."""


@dataclass(frozen=True)
class SeedRun(Record, kind="seed-run"):
    """The result of one seed.

    `mechanism` is the mechanism of its best induction head, as in `induction`: "K-composition",
    "Q-composition" or "none". `head` and `partner` are empty where there is none. `stripe` is the
    score of the best head, whether or not it passes. `drop` is the loss on the first copy of random
    tokens minus the loss on the second, in nats.
    """

    seed: Annotated[int, Column("seed")]
    folder: str
    held_out_loss: Annotated[float, Column("held-out loss", ".3f", "nats")]
    mechanism: Annotated[Mechanism, text_column("mechanism")]
    head: Annotated[str, text_column("head")]
    partner: Annotated[str, text_column("partner")]
    stripe: Annotated[float, Column("stripe", ".2f")]
    share_lost: Annotated[float, Column("lost without partner", ".0%")]
    previous_token: Annotated[float, Column("previous token", ".2f")]
    drop: Annotated[float, Column("drop", ".2f", "nats")]
    why_none: str


@dataclass(frozen=True)
class SeedRuns(Record, kind="seed-runs"):
    """The mechanism that each seed of a recipe found."""

    name: str
    runs: tuple[SeedRun, ...]

    def count(self, mechanism: Mechanism) -> int:
        """The number of seeds that found a mechanism."""
        return sum(run.mechanism == mechanism for run in self.runs)

    @property
    def table_title(self) -> str:
        """The title of the table."""
        return f"seeds of {self.name}"

    @property
    def table_note(self) -> str:
        """The number of seeds per mechanism, and why seeds have none."""
        kinds = [kind for kind in get_args(Mechanism) if self.count(kind)]
        counts = ", ".join(f"{self.count(kind)} {kind}" for kind in kinds)
        why = [f"seed {run.seed}: {run.why_none}" for run in self.runs if run.why_none]
        return "\n".join([f"{len(self.runs)} seeds: {counts}", *why])


def train_seeds(
    what: Recipe | str | Path,
    preset: str = "quick",
    *,
    seeds: int,
    out: str | Path | None = None,
    begin: Begin = ignore,
    watch: Watch = ignore,
    progress: Progress = silent,
    **changes: Any,
) -> SeedRuns:
    """Train a recipe from several seeds, one after another, and test each for induction.

        found = train_seeds("two-layer", "quick", seeds=3, out="runs/three")
        [(run.seed, run.mechanism, run.head, run.partner) for run in found.runs]

    Seeds count up from the recipe's own. Each trains in `out/seed-<seed>` (`out` is by default
    `runs/<name>-seeds`). Called again with the same recipe, it keeps finished seeds and continues a
    stopped one from its checkpoint. `out/seeds.json` holds the summary.
    """
    first = find_recipe(what, preset, changes)
    parse_count(seeds, "runs", "seeds")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise InputError(
            "several seeds are trained one after another in one process; under torchrun, start "
            "each with its own --seed and --out"
        )
    if first.config.n_layers == 0:
        raise InputError(
            "a model without layers has no heads, so its seeds have no mechanism to compare; use "
            "at least one layer"
        )
    folder = user_path(out) if out is not None else Path("runs") / f"{first.name}-seeds"
    runs: list[SeedRun] = []
    for number in range(seeds):
        chosen = replace(first, seed=first.seed + number)
        begin(f"seed {chosen.seed} ({number + 1} of {seeds})")
        done = _train_one(chosen, folder / f"seed-{chosen.seed}", watch, progress)
        runs.append(_test_induction(chosen.seed, done))
    found = SeedRuns(first.name, tuple(runs))
    write_text(folder / SEEDS, found.dumps() + "\n")
    return found


def _train_one(chosen: Recipe, folder: Path, watch: Watch, progress: Progress) -> TrainingRun:
    """Train one seed, or continue it, unless it is finished."""
    started = (folder / RUN).exists()
    finished = read_result(folder)
    if started and finished is not None:
        # The start token is the corpus's, known only once that is open.
        start = read_recipe(folder).config.start_token
        check_same_recipe(folder, replace(chosen, config=chosen.config.replace(start_token=start)))
        return finished
    return train(chosen, out=folder, resume=started, watch=watch, progress=progress)


def _test_induction(seed: int, run: TrainingRun) -> SeedRun:
    found: Induction = induction(run.model)
    best = max(found.heads, key=lambda head: head.stripe.value, default=None)
    return SeedRun(
        seed=seed,
        folder=run.folder,
        held_out_loss=run.held_out_loss,
        previous_token=run.previous_token,
        mechanism="none" if best is None else best.mechanism,
        head="" if best is None else str(best.head),
        partner="" if best is None or best.partner is None else str(best.partner),
        stripe=found.best_stripe,
        share_lost=float("nan") if best is None or not best.edges else best.edges[0].share_lost,
        drop=found.first_copy.value - found.second_copy.value,
        why_none=found.why_none,
    )
