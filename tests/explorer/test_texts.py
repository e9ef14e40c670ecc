"""Two texts: the numbers are those of the library's patches, and induction is found."""

from typing import Any

import pytest

import pathsum as ps
from pathsum.base.errors import InputError
from pathsum.explorer.answers.interventions import TwoTexts
from pathsum.explorer.explorer import Explorer


@pytest.fixture(scope="module")
def explorer() -> Explorer:
    return Explorer([ps.construct.induction()], bundled=())


def ask(explorer: Explorer, **params: Any) -> TwoTexts:
    found = explorer.answer("texts", params)
    assert isinstance(found, TwoTexts)
    return found


def test_the_two_heads_of_induction_make_the_difference(explorer: Explorer) -> None:
    found = ask(explorer, text="a b c d a", position=5)
    model = explorer.session.models[0].model
    assert model.token_text(found.token) == "b"
    # The earlier copy of the token at the position was replaced, and nothing else.
    changed = [
        at
        for at, pair in enumerate(zip(found.ids, found.other_ids, strict=True))
        if len(set(pair)) > 1
    ]
    assert changed == [1]
    assert found.clean > 5 > found.corrupted
    lost = dict(zip(found.parts, (found.clean - found.broken).tolist(), strict=True))
    assert set(sorted(lost, key=lost.__getitem__)[-2:]) == {"L0H0", "L1H0"}


def test_every_number_is_that_of_a_patch(explorer: Explorer) -> None:
    model = explorer.session.models[0].model
    found = ask(explorer, text="a b c d a", position=5, other_text="x b c d a")
    clean, corrupted = model.trace("a b c d a"), model.trace("x b c d a")

    def difference(trace: ps.Trace) -> float:
        at = trace.logits[0, 5]
        return float(at[found.token] - at[found.rival])

    assert found.clean == pytest.approx(difference(clean))
    assert found.corrupted == pytest.approx(difference(corrupted))
    for at, part in enumerate(found.parts):
        assert float(found.broken[at]) == pytest.approx(difference(clean.patch({part: corrupted})))
        assert float(found.restored[at]) == pytest.approx(
            difference(corrupted.patch({part: clean}))
        )


def test_texts_of_different_length_have_no_partners(explorer: Explorer) -> None:
    with pytest.raises(InputError, match="the clean text has 6 tokens and the corrupted text 4"):
        ask(explorer, text="a b c d a", position=5, other_text="a b c")
    with pytest.raises(InputError, match="there is no position 6"):
        ask(explorer, text="a b c d a", position=6)
