"""Top contexts of a head: the library's own patterns and effects, sorted."""

import pytest
import torch
from tests.explorer.variants import VARIANTS

import pathsum as ps
from pathsum.base.errors import InputError
from pathsum.heads import top_contexts
from pathsum.heads.contexts import read_contexts
from pathsum.model import Model
from pathsum.paths import logit_effects


@pytest.fixture(scope="module")
def induction() -> Model:
    return ps.load("hand-built-induction")


def test_the_induction_head_looks_at_what_followed_before(induction: Model) -> None:
    found = top_contexts(induction, "L1H0", "a b c a b", k=3)
    for context in (found.by_attention[0], found.by_effect[0]):
        assert context.weight > 0.9 and context.off_first >= context.weight
        assert context.ids[context.source - 1] == context.ids[context.destination]
    assert found.contexts == 5 and found.sequences == 1


def test_contexts_are_the_largest_of_all(induction: Model) -> None:
    text = "a b c a b d c a d b"
    found = top_contexts(induction, "L1H0", text, k=4)
    trace = induction.trace(text)
    pattern = trace.pattern("L1H0")[0]
    effects = logit_effects(trace, "L1H0").total[0]
    assert found.by_attention[0].weight == pytest.approx(float(pattern[1:, 1:].max()))
    sums = effects.sum(-1)[1:-1]
    assert abs(found.by_effect[0].effect or 0) == pytest.approx(float(sums.abs().max()))
    assert found.mean_effect == pytest.approx(float(sums.abs().mean()))
    for context in (*found.by_attention, *found.by_effect):
        at = context.destination
        assert context.weight == pytest.approx(float(pattern[at, context.source]))
        assert context.off_first == pytest.approx(float(1 - pattern[at, 0]), abs=1e-6)
        if at < len(trace.tokens[0]) - 1:
            assert context.effect == pytest.approx(float(effects[at].sum()))
    weights = [context.weight for context in found.by_attention]
    assert weights == sorted(weights, reverse=True)


def test_deciles_are_ordinary_contexts(induction: Model) -> None:
    text = "a b c a b d c a d b d d c b"
    found = top_contexts(induction, "L1H0", text, k=4)
    weights = induction.trace(text).pattern("L1H0")[0, 1:, 1:].max(-1).values.sort(descending=True)
    last = len(weights.values) - 1
    expected = [float(weights.values[round(last * ten / 10)]) for ten in range(1, 10)]
    assert [context.weight for context in found.deciles] == pytest.approx(expected)


def test_a_pair_of_tokens_is_listed_once_and_counted(induction: Model) -> None:
    found = top_contexts(induction, "L1H0", "a b a b a b a b", k=20)
    pairs = [
        (context.ids[context.source], context.ids[context.destination])
        for context in found.by_attention
    ]
    assert len(set(pairs)) == len(pairs)
    assert sum(context.times for context in found.by_attention) == found.contexts


def test_a_context_can_be_run_again(induction: Model) -> None:
    """Attention does not look ahead: the tokens up to the destination give the same weight."""
    context = top_contexts(induction, "L1H0", "a b c a b d c a", k=1).by_attention[0]
    again = induction.trace(torch.tensor([context.ids]))
    weight = float(again.pattern("L1H0")[0, context.destination, context.source])
    assert weight == pytest.approx(context.weight, abs=1e-5)


def test_sequences_of_several_lengths_and_the_table(induction: Model) -> None:
    found = top_contexts(induction, "L0H0", ["a b c", "c a", "b a c"], k=2)
    assert found.sequences == 3 and found.contexts == 3 + 2 + 3
    text = found.to_table().to_text(120)
    assert "L0H0: top contexts" in text and "mean over 8 contexts" in text


def test_what_cannot_be_asked(induction: Model) -> None:
    with pytest.raises(InputError, match="k=0 contexts were requested"):
        top_contexts(induction, "L1H0", "a b", k=0)
    with pytest.raises(InputError, match="comes with no held-out text"):
        top_contexts(VARIANTS["two layers"](), "L0H0")


def test_heads_share_a_reading_of_the_text(induction: Model) -> None:
    text = ["a b c a b d c a", "c a", "b a c b"]
    heads = [head.label for head in induction.heads]
    reading = read_contexts(induction, heads, text)
    for head in heads:
        alone = top_contexts(induction, head, text, k=4)
        assert reading.top(head, k=4).to_dict() == alone.to_dict()
    with pytest.raises(InputError, match="was not read for L1H0, only for L0H0"):
        read_contexts(induction, ["L0H0"], text).top("L1H0")
