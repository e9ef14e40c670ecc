"""What a page of the explorer waits for: seconds on 2 threads, against a budget.

Questions are asked as the page asks them, of an explorer that has just been opened: a text of 128
tokens that was never run, the paths and the circuit of a prediction, the page of a head the first
time and again (then it is cached), a head switched off, the atlas with its first report of
progress. On SmolLM2, if it is in the cache, on a model of 12 layers × 12 heads, d_model 768, with
random weights, and on the bundled two-layer model, whose Training, Compare and Paper views are
measured cold.
"""

import torch

from benchmarks.measurement import Measurement, within_budget
from pathsum.explorer.cache import CanceledError
from pathsum.explorer.explorer import Explorer
from pathsum.model import Config, Model, random_model
from pathsum.sources import load
from pathsum.sources.named import FETCHED

THREADS, TOKENS, POSITION = 2, 128, 100
LARGE = Config(12, 12, 768, 64, 50_257, 1024, positions="residual", norm="layer", start_token=0)


def main() -> list[Measurement]:
    """Measure, print and return."""
    torch.set_num_threads(THREADS)
    found = [*two_layer(), *large("12 × 12, d 768", random_model(LARGE, gains=True))]
    if FETCHED["smollm2"].file.is_file():
        found += large("SmolLM2", load("smollm2"))
    else:
        print("SmolLM2 is not in the cache; pathsum.load('smollm2') fetches it")
    return found


def large(name: str, model: Model) -> list[Measurement]:
    """The views of a large model."""
    explorer = Explorer([model], bundled=())
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(5, model.config.d_vocab, (TOKENS,), generator=generator).tolist()
    ids = ",".join(map(str, drawn))
    explorer.ask("run", {"ids": ids[:20]})  # weights are read when they are first used
    head = str(model.heads[len(model.heads) // 2].id)
    there = {"ids": ids, "position": POSITION}
    return [
        asked(f"{name}: new text", explorer, "run", {"ids": ids}, 1.5),
        asked(f"{name}: paths", explorer, "paths", there, 3.0),
        asked(f"{name}: why", explorer, "why", there, 4.0),
        asked(f"{name}: a head switched off", explorer, "without", {**there, "off": head}, 2.0),
        asked(f"{name}: head page, first time", explorer, "head", {"head": head}, 3.0),
        asked(f"{name}: head page, again", explorer, "head", {"head": head}, 0.3),
        first_report(f"{name}: atlas, first progress", explorer, "atlas", 1.0),
        asked(f"{name}: atlas", explorer, "atlas", {}, 60.0),
        asked(f"{name}: composition", explorer, "composition", {}, 60.0),
    ]


def two_layer() -> list[Measurement]:
    """The views of the bundled two-layer model that take longest."""
    explorer = Explorer(["two-layer"])
    one = explorer.session.models[0]
    first = {"other": one.name, "other_step": min(one.snapshots)}
    return [
        asked("two-layer: Training", explorer, "training", {}, 5.0),
        asked("two-layer: Compare", explorer, "compare", first, 5.0),
        asked("two-layer: Paper", explorer, "paper", {}, 3.0),
    ]


def asked(
    what: str, explorer: Explorer, name: str, params: dict[str, object], seconds: float
) -> Measurement:
    """The time of an answer against its budget."""
    return within_budget(what, lambda: explorer.ask(name, params), seconds)


def first_report(what: str, explorer: Explorer, name: str, seconds: float) -> Measurement:
    """The time until a page can show progress; the computation is withdrawn there."""

    def report(*_: object) -> None:
        raise CanceledError

    def ask() -> None:
        try:
            explorer.ask(name, {}, report)
        except CanceledError:
            return
        raise RuntimeError(f"{name} was computed without a report of its progress")

    return within_budget(what, ask, seconds)


if __name__ == "__main__":
    main()
