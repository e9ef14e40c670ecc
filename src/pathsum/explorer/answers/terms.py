"""`terms`: what paths of each order, and each head's, do for the loss."""

from dataclasses import dataclass

from pathsum.explorer.numbers import finite
from pathsum.explorer.parameters import AboutModel
from pathsum.explorer.probe_sequences import Sequences, texts
from pathsum.explorer.workbench import Workbench
from pathsum.model import Model
from pathsum.paths import TermImportance, by_head, by_layer, term_importance
from pathsum.result import Record


@dataclass(frozen=True)
class TermGain:
    """What a set of paths gains alone, and what it gains when all others are there."""

    name: str
    alone: float
    given_others: float


@dataclass(frozen=True, eq=False)
class TermsAnswer(Record, kind="page-terms"):
    """`loss[n]` of paths through at most n heads, `gain[n]` what order n adds, in nats."""

    uniform: float
    loss: tuple[float, ...]
    gain: tuple[float, ...]
    low: tuple[float | None, ...]
    high: tuple[float | None, ...]
    by_layer: tuple[TermGain, ...]
    heads: tuple[TermGain, ...]
    about: str


# Each head costs two runs of its own: beyond this many a page would wait for minutes.
MOST_HEADS = 48
NO_SINGLE_HEADS = f"\nsingle heads are left out of models with more than {MOST_HEADS}"


def terms(bench: Workbench, asked: AboutModel) -> TermsAnswer:
    """Term importance on the example texts, by order, by layer and by head."""
    return answer_of(importance(bench, asked), texts(bench, asked))


def importance(bench: Workbench, asked: AboutModel) -> TermImportance:
    """The library's term importance on the example texts, computed once."""
    on = texts(bench, asked)

    def compute(model: Model) -> TermImportance:
        single = by_head(model) if len(model.heads) <= MOST_HEADS else ()
        sets = [*by_layer(model), *single]
        return term_importance(model, on.tokens, sets=sets)

    return bench.result(asked, "term importance", compute)


def answer_of(found: TermImportance, on: Sequences) -> TermsAnswer:
    """The page's form of it."""
    gains = [TermGain(gain.name, gain.alone.value, gain.given_others.value) for gain in found.sets]
    layers = len(found.loss) - 1
    left_out = "" if len(gains) > layers or not layers else NO_SINGLE_HEADS
    return TermsAnswer(
        uniform=found.uniform,
        loss=found.loss,
        gain=found.gain,
        low=tuple(finite(estimate.low) for estimate in found.gain_estimates),
        high=tuple(finite(estimate.high) for estimate in found.gain_estimates),
        by_layer=tuple(gains[:layers]),
        heads=tuple(gains[layers:]),
        about=f"On {on.name}: {found.note}{left_out}".replace("\n", "; "),
    )
