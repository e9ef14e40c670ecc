"""The hand-built models do what they say: they are ground truth for everything after."""

import pytest
import torch

from pathsum.base.errors import InputError
from pathsum.model import Model, Path, construct

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def repeated(model: Model, length: int, seed: int) -> torch.Tensor:
    """Start token, distinct random words, the same words again."""
    generator = torch.Generator().manual_seed(seed)
    words = 1 + torch.randperm(model.config.d_vocab - 1, generator=generator)[:length]
    return torch.cat((torch.tensor([0]), words, words))


def test_a_bigram_table_is_the_models_probabilities() -> None:
    table = torch.rand(7, 7, dtype=torch.float64) + 0.1
    table = table / table.sum(-1, keepdim=True)
    model = construct.bigram(table)
    torch.testing.assert_close(model(torch.arange(7)).softmax(-1), table)


def test_a_bigram_table_of_counts_is_refused() -> None:
    with pytest.raises(InputError, match="probabilities above 0 that sum to 1"):
        construct.bigram(torch.tensor([[1.0, 0.0], [0.5, 0.5]]))


TRIPLES = [
    ("keep", "in", "mind"),
    ("keep", "at", "bay"),
    ("open", "the", "door"),
    ("read", "the", "book"),
]


def raised(model: Model, text: str, threshold: float = 5.0) -> set[str]:
    logits = model.trace(text).logits[0, -1]
    return {model.token_text(int(i)) for i in (logits > threshold).nonzero()}


def test_skip_trigrams_fire_and_nothing_else_does() -> None:
    model = construct.skip_trigrams(TRIPLES)
    assert raised(model, "keep book in") == {"mind"}
    assert raised(model, "keep in at") == {"bay"}
    assert raised(model, "open the") == {"door"}
    assert raised(model, "in the") == set()
    assert raised(model, "the open") == set()  # the destination must come after the source


def test_one_head_for_two_forces_the_cross_terms() -> None:
    model = construct.skip_trigrams(TRIPLES, n_heads=1)
    assert raised(model, "keep in") == {"mind", "bay"}


def test_outs_that_share_their_destinations_share_a_head() -> None:
    model = construct.skip_trigrams([("x", "a", "p"), ("x", "a", "q"), ("x", "b", "p")])
    assert model.config.n_heads == 2
    rectangle = [("x", d, out) for d in "ab" for out in "pq"]
    assert construct.skip_trigrams(rectangle).config.n_heads == 1


@pytest.mark.parametrize("build", [construct.induction, construct.induction_by_q])
@pytest.mark.parametrize("seed", range(3))
def test_induction_attends_to_what_followed_and_predicts_it(build, seed: int) -> None:
    model = build()
    length = 20
    tokens = repeated(model, length, seed)
    trace = model.trace(tokens)
    pattern = trace.pattern("L1H0")[0]
    for position in range(length + 1, 2 * length + 1):
        assert pattern[position, position - length + 1] > 0.999
    second = trace.logits[0, length + 1 : -1].argmax(-1)
    assert torch.equal(second, tokens[length + 2 :])
    assert (pattern[1 : length + 1, 0] > 0.999).all()  # nothing matched yet: at rest


def test_k_composition_needs_the_previous_token_head_and_q_composition_does_not() -> None:
    by_k, by_q = construct.induction(), construct.induction_by_q()
    tokens = repeated(by_k, 20, seed=1)
    rows = torch.arange(1, len(tokens))
    assert (by_k.trace(tokens).pattern("L0H0")[0, rows, rows - 1] > 0.999).all()
    lower = by_q.trace(tokens).pattern("L0H0")[0]
    repeats = torch.arange(21, 41)
    assert (lower[repeats, repeats - 20] > 0.999).all()  # earlier copies of the same token


def test_induction_by_q_spreads_over_several_earlier_copies() -> None:
    trace = construct.induction_by_q().trace("a b c a d a e a")
    pattern = trace.pattern("L1H0")[0, -1]
    torch.testing.assert_close(pattern[[2, 5, 7]], torch.full((3,), 1 / 3), atol=0.01, rtol=0)


def test_the_virtual_head_attends_two_back_and_maps_as_told() -> None:
    mapping = dict(zip(LETTERS, reversed(LETTERS), strict=True))
    model = construct.virtual_head(mapping)
    trace = model.trace("c x y q")
    path = Path("embed", ["L0H0", "L1H0"])
    pattern = path.pattern(trace)[0]
    rows = torch.arange(2, 5)
    assert (pattern[rows, rows - 2] > 0.999).all()
    assert [model.token_text(int(t)) for t in trace.logits[0, 3:].argmax(-1)] == ["x", "c"]
    full = path.full_ov(model).dense()
    ids = {word: i for i, word in enumerate(["<s>", *LETTERS])}
    wanted = torch.zeros_like(full)
    for word, out in mapping.items():
        wanted[ids[word], ids[out]] = 10.0
    torch.testing.assert_close(full, wanted - wanted.mean(-1, keepdim=True))


def test_words_are_checked() -> None:
    with pytest.raises(InputError, match="listed twice"):
        construct.induction(["a", "a"])
    with pytest.raises(InputError, match="'z9', which is not in the list of words"):
        construct.virtual_head({"a": "z9"})
    with pytest.raises(InputError, match="at least one word"):
        construct.induction([])
