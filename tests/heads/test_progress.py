"""Progress of long analyses: every phase has a name, and each of them can be canceled."""

from collections.abc import Callable

import pytest

import pathsum as ps

Analysis = Callable[[ps.Model, Callable[[int, int, str], None]], object]


class Canceled(Exception):
    """Raised by a callback, as the explorer does."""


def atlas(*scores: str) -> Analysis:
    return lambda model, progress: ps.atlas(
        model, scores=scores, draws=99, sequences=2, progress=progress
    )


def induction(model: ps.Model, progress: Callable[[int, int, str], None]) -> object:
    return ps.induction(model, draws=99, sequences=2, progress=progress)


def copying(model: ps.Model, progress: Callable[[int, int, str], None]) -> object:
    return ps.copying(model, draws=200, progress=progress)


# An analysis and its phases; an atlas by its scores, so that each phase is soon reached.
PHASES: list[tuple[Analysis, list[str]]] = [
    (
        atlas("previous_token"),
        [
            "running the model on random tokens",
            "heads on random tokens",
            "attention to the first token",
        ],
    ),
    (atlas("previous_token_text"), ["running the model on text", "heads on text"]),
    (
        atlas("fuzzy_induction"),
        [
            "finding similar tokens",
            "running the model on similar tokens",
            "heads on similar tokens",
        ],
    ),
    (
        atlas("word_piece"),
        ["finding split words", "running the model on split words", "heads on split words"],
    ),
    (atlas("copying_weights"), ["null of copying", "copying"]),
    (atlas("matching_weights"), ["null of matching", "matching"]),
    (
        atlas("deleting_weights"),
        [
            "null of deleting",
            "deleting",
            "heads that write nothing",
            "composition",
            "offsets",
            "comparing heads",
            "naming kinds",
        ],
    ),
    (
        atlas("previous_token", "matching_through_previous"),
        [
            "null of matching through previous-token heads",
            "matching through previous-token heads",
        ],
    ),
    (
        induction,
        [
            "running the model",
            "candidates against random heads",
            "composition",
            "cutting edges from",
            "eigenvalues of",
            "score terms of",
            "ideal pattern of",
            "ideal pattern below",
            "ablating",
        ],
    ),
    (copying, ["copying of L0H0", "copying of L1H3"]),
]


@pytest.fixture(scope="module")
def model() -> ps.Model:
    return ps.load("two-layer")


def logged(analysis: Analysis, model: ps.Model) -> list[tuple[int, int, str]]:
    calls: list[tuple[int, int, str]] = []
    analysis(model, lambda done, total, what: calls.append((done, total, what)))
    return calls


@pytest.mark.parametrize(("analysis", "phases"), PHASES)
def test_every_phase_has_a_name(analysis: Analysis, phases: list[str], model: ps.Model) -> None:
    calls = logged(analysis, model)
    assert all(0 <= done <= total for done, total, _ in calls)
    named = list(dict.fromkeys(what for _, _, what in calls))
    first = [next((at for at, what in enumerate(named) if what.startswith(p)), -1) for p in phases]
    assert -1 not in first, [phase for phase, at in zip(phases, first, strict=True) if at < 0]


@pytest.mark.parametrize(("analysis", "phases"), PHASES)
def test_every_phase_can_be_canceled(
    analysis: Analysis, phases: list[str], model: ps.Model
) -> None:
    for phase in phases:

        def cancel(done: int, total: int, what: str, phase: str = phase) -> None:
            if what.startswith(phase):
                raise Canceled(what)

        with pytest.raises(Canceled, match=phase):
            analysis(model, cancel)
