"""`train_seeds`: train a recipe from several seeds, and compare their mechanisms of induction."""

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
"""Called before each seed with a title."""


@dataclass(frozen=True)
class SeedRun(Record, kind="seed-run"):
    """The result of one seed.

    `mechanism` is the mechanism of the best induction head, as in `induction`: "K-composition",
    "Q-composition" or "none", for which `head` and `partner` are empty. `stripe` is the score of
    the best head, even if it does not pass. `drop` is the loss on the first copy of random tokens
    minus the loss on the second, in nats.
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
    """The mechanisms of several seeds of a recipe."""

    name: str
    runs: tuple[SeedRun, ...]

    def count(self, mechanism: Mechanism) -> int:
        """The number of seeds with a mechanism."""
        return sum(run.mechanism == mechanism for run in self.runs)

    @property
    def table_title(self) -> str:
        """The title of the table."""
        return f"seeds of {self.name}"

    @property
    def table_note(self) -> str:
        """The number of seeds per mechanism, and the reasons of seeds without one."""
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

    Seeds count up from the recipe's seed. Each trains in `out/seed-<seed>` (`out` is by default
    `runs/<name>-seeds`). A second call with the same recipe keeps finished seeds and resumes an
    interrupted one. `out/seeds.json` is the summary.
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
        seed = first.seed + number
        begin(f"seed {seed} ({number + 1} of {seeds})")
        run = _train_seed(replace(first, seed=seed), folder / f"seed-{seed}", watch, progress)
        runs.append(_test_induction(seed, run))
    summary = SeedRuns(first.name, tuple(runs))
    write_text(folder / SEEDS, summary.dumps() + "\n")
    return summary


def _train_seed(recipe: Recipe, folder: Path, watch: Watch, progress: Progress) -> TrainingRun:
    """Train or resume a seed, unless it is finished."""
    is_started, result = (folder / RUN).exists(), read_result(folder)
    if is_started and result is not None:
        # Only the corpus, which is not open, defines the start token.
        start = read_recipe(folder).config.start_token
        check_same_recipe(folder, replace(recipe, config=recipe.config.replace(start_token=start)))
        return result
    return train(recipe, out=folder, resume=is_started, watch=watch, progress=progress)


def _test_induction(seed: int, run: TrainingRun) -> SeedRun:
    result: Induction = induction(run.model)
    best = max(result.heads, key=lambda head: head.stripe.value, default=None)
    return SeedRun(
        seed=seed,
        folder=run.folder,
        held_out_loss=run.held_out_loss,
        previous_token=run.previous_token,
        mechanism="none" if best is None else best.mechanism,
        head="" if best is None else str(best.head),
        partner="" if best is None or best.partner is None else str(best.partner),
        stripe=result.best_stripe,
        share_lost=float("nan") if best is None or not best.edges else best.edges[0].share_lost,
        drop=result.first_copy.value - result.second_copy.value,
        why_none=result.why_none,
    )
