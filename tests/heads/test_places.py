"""Where a head does most: the library's own patterns and effects, sorted."""

import pytest
import torch
from tests.explorer.variants import VARIANTS

import pathsum as ps
from pathsum.base.errors import InputError
from pathsum.heads import head_places
from pathsum.heads.places import read_places
from pathsum.model import Model
from pathsum.paths import logit_effects


@pytest.fixture(scope="module")
def induction() -> Model:
    return ps.load("hand-built-induction")


def test_the_induction_head_looks_at_what_followed_before(induction: Model) -> None:
    found = head_places(induction, "L1H0", "a b c a b", k=3)
    for place in (found.by_attention[0], found.by_effect[0]):
        assert place.weight > 0.9 and place.off_first >= place.weight
        assert place.ids[place.source - 1] == place.ids[place.destination]
    assert found.places == 5 and found.sequences == 1


def test_places_are_the_largest_of_all(induction: Model) -> None:
    text = "a b c a b d c a d b"
    found = head_places(induction, "L1H0", text, k=4)
    trace = induction.trace(text)
    pattern = trace.pattern("L1H0")[0]
    effects = logit_effects(trace, "L1H0").total[0]
    assert found.by_attention[0].weight == pytest.approx(float(pattern[1:, 1:].max()))
    sums = effects.sum(-1)[1:-1]
    assert abs(found.by_effect[0].effect or 0) == pytest.approx(float(sums.abs().max()))
    assert found.mean_effect == pytest.approx(float(sums.abs().mean()))
    for place in (*found.by_attention, *found.by_effect):
        at = place.destination
        assert place.weight == pytest.approx(float(pattern[at, place.source]))
        assert place.off_first == pytest.approx(float(1 - pattern[at, 0]), abs=1e-6)
        if at < len(trace.tokens[0]) - 1:
            assert place.effect == pytest.approx(float(effects[at].sum()))
    weights = [place.weight for place in found.by_attention]
    assert weights == sorted(weights, reverse=True)


def test_a_pair_of_tokens_is_listed_once_and_counted(induction: Model) -> None:
    found = head_places(induction, "L1H0", "a b a b a b a b", k=20)
    pairs = [
        (place.ids[place.source], place.ids[place.destination]) for place in found.by_attention
    ]
    assert len(set(pairs)) == len(pairs)
    assert sum(place.times for place in found.by_attention) == found.places


def test_a_place_can_be_run_again(induction: Model) -> None:
    """Attention does not look ahead: the tokens up to the place give the same weight."""
    place = head_places(induction, "L1H0", "a b c a b d c a", k=1).by_attention[0]
    again = induction.trace(torch.tensor([place.ids]))
    weight = float(again.pattern("L1H0")[0, place.destination, place.source])
    assert weight == pytest.approx(place.weight, abs=1e-5)


def test_sequences_of_several_lengths_and_the_table(induction: Model) -> None:
    found = head_places(induction, "L0H0", ["a b c", "c a", "b a c"], k=2)
    assert found.sequences == 3 and found.places == 3 + 2 + 3
    text = found.to_table().to_text(120)
    assert "L0H0: where it does most" in text and "the average of 8 places" in text


def test_what_cannot_be_asked(induction: Model) -> None:
    with pytest.raises(InputError, match="k=0 places were requested"):
        head_places(induction, "L1H0", "a b", k=0)
    with pytest.raises(InputError, match="comes with no held-out text"):
        head_places(VARIANTS["two layers"](), "L0H0")


def test_heads_share_a_reading_of_the_text(induction: Model) -> None:
    text = ["a b c a b d c a", "c a", "b a c b"]
    heads = [head.label for head in induction.heads]
    reading = read_places(induction, heads, text)
    for head in heads:
        alone = head_places(induction, head, text, k=4)
        assert head_places(induction, head, k=4, reading=reading).to_dict() == alone.to_dict()
    with pytest.raises(InputError, match="L1H0 is not in this reading"):
        head_places(induction, "L1H0", reading=read_places(induction, ["L0H0"], text))
