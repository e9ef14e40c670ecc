"""How soon an induction head forms: seconds of training until one head's stripe is 0.5.

The `quick` recipe against the schedule it was derived from: a constant rate that decays over the
last 40 % of the steps; all else is equal. Both train in turn, fifty steps at a time, so that load
on the machine affects both; measuring is not timed. One line per seed.
"""

import tempfile
import time
from pathlib import Path

import torch

from benchmarks.measurement import Measurement
from pathsum.model.processes import World
from pathsum.text import Corpus
from pathsum.training import Recipe, recipe
from pathsum.training.loop import TrainingLoop
from pathsum.training.metrics import ignore

SEEDS = (0, 1)
STEPS = 50
STRIPE = 0.5


class Race:
    """One recipe on its way to the stripe."""

    def __init__(self, chosen: Recipe, corpus: Corpus, folder: Path) -> None:
        world = World(0, 1, torch.device("cpu"))
        self.loop = TrainingLoop(chosen, corpus, folder, world, ignore)
        self.seconds = 0.0
        self.arrived = False

    def go_on(self) -> None:
        """Some steps, then a measurement."""
        begin = time.perf_counter()
        for _ in range(STEPS):
            self.loop.learn()
        self.seconds += time.perf_counter() - begin
        found = self.loop.probe.measure(self.loop.model())
        self.arrived = found.induction >= STRIPE
        if not self.arrived and self.loop.step >= self.loop.recipe.steps:
            raise RuntimeError(f"no stripe of {STRIPE} in {self.loop.step} steps")


def race(seed: int) -> Measurement:
    """Both recipes, in turn, until both are there."""
    ours = recipe("two-layer", "quick", seed=seed)
    others = recipe("two-layer", "quick", seed=seed, schedule__decay=0.4)
    corpus = Corpus.open(ours.data.corpus, vocabulary=ours.data.vocabulary)
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        races = Race(ours, corpus, Path(one)), Race(others, corpus, Path(other))
        while not all(each.arrived for each in races):
            for each in races:
                if not each.arrived:
                    each.go_on()
    steps = [each.loop.step for each in races]
    return Measurement(
        f"two layers, seed {seed}, to a stripe of {STRIPE} ({steps[0]:,} steps)",
        races[0].seconds,
        "s",
        f"constant rate, falling over the last 40 % ({steps[1]:,} steps)",
        races[1].seconds,
    )


def main() -> list[Measurement]:
    """One race per seed."""
    return [race(seed) for seed in SEEDS]
