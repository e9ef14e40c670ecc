"""Heads of two models, matched: a model against itself in disguise matches perfectly."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.identities.configs import models

from pathsum import load
from pathsum.algebra.rotations import random_frames, root
from pathsum.base import schema
from pathsum.base.errors import HeadError, InputError
from pathsum.circuits import align_heads
from pathsum.model import Config, Model, construct, from_tensors, random_model
from pathsum.model.store import MemoryStore
from pathsum.model.symmetries import scrambled
from pathsum.model.weights import Weights

SIZE = {"n_layers": 2, "n_heads": 4, "d_model": 24, "d_head": 4, "d_vocab": 60, "n_ctx": 16}


def permuted(model: Model, order: list[int]) -> Model:
    """The same model with the heads of every layer in another order."""
    tensors = dict(model.weights.items())
    stacked = {
        name: torch.stack([getattr(layer, name)[order] for layer in model.weights.layers])
        for name in ("W_Q", "W_K", "W_V", "W_O")
    }
    assert not any(name.startswith("b_") for name in tensors)
    rest = {"W_E": model.weights.W_E, "W_U": model.weights.W_U}
    rest["W_pos"] = torch.stack([layer.W_pos for layer in model.weights.layers])
    return from_tensors(model.config, {**rest, **stacked})


def rotated_heads(model: Model, seed: int) -> Model:
    """The same model with the reads and the writes of each head rotated at random."""
    generator = torch.Generator().manual_seed(seed)

    def rotated(name: str, tensor: torch.Tensor) -> torch.Tensor:
        field = name.rsplit(".", 1)[-1]
        if field not in ("W_Q", "W_K", "W_V", "W_O"):
            return tensor
        columns = tensor.mT if field == "W_O" else tensor
        heads, d, k = columns.shape
        turned = random_frames(heads, d, min(d, k), generator).to(tensor) @ root(columns)
        return (turned.mT if field == "W_O" else turned).contiguous()

    flat = {name: rotated(name, tensor) for name, tensor in model.weights.items()}
    return replace(model, weights=Weights(model.config, MemoryStore(flat)))


def test_a_permuted_and_scrambled_model_matches_head_for_head() -> None:
    order = [2, 0, 3, 1]
    model = random_model(Config(**SIZE), seed=1, dtype=torch.float64)
    disguised = scrambled(permuted(model, order), seed=5)
    found = align_heads(model, disguised, draws=10)
    for match in found.matches:
        assert match.left.layer == match.right.layer
        assert match.left.head == order[match.right.head]
        assert match.score == pytest.approx(1, abs=1e-6)
        assert match.null < 0.5 and match.p == pytest.approx(1 / 11)
    assert found.score == pytest.approx(1, abs=1e-6)


@given(models(min_layers=1, max_layers=2, max_heads=3, causal=(True,)), st.integers(0, 99))
@settings(max_examples=15)
def test_similarity_does_not_depend_on_a_basis(model: Model, seed: int) -> None:
    from pathsum.model.folding import fold

    plain = fold(model)
    here = align_heads(plain, plain, draws=1)
    there = align_heads(plain, scrambled(plain, seed), draws=1)
    torch.testing.assert_close(here.qk, there.qk, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(here.ov, there.ov, rtol=1e-5, atol=1e-6)
    both = here.similarity.diagonal()
    alive = (here.qk.diagonal() > 0.5) & (here.ov.diagonal() > 0.5)
    torch.testing.assert_close(both[alive], torch.ones_like(both[alive]), rtol=1e-9, atol=1e-9)


def test_models_of_different_depth_are_matched_as_far_as_they_go() -> None:
    one = random_model(Config(**{**SIZE, "n_layers": 1}), seed=0)
    found = align_heads(one, random_model(Config(**SIZE), seed=0), draws=2)
    assert found.similarity.shape == (4, 8) and len(found.matches) == 4


def test_numbers_of_draws() -> None:
    model = construct.induction()
    with pytest.raises(InputError, match="draws=0 random rotations are too few"):
        align_heads(model, model, draws=0)
    with pytest.raises(InputError, match="draws=1000000000000 is out of range"):
        align_heads(model, model, draws=10**12)


@pytest.mark.slow
def test_a_match_is_chance_if_either_head_is() -> None:
    """Trained heads against rotated ones, and the other way round: most p are not small."""
    trained = load("two-layer")
    random = rotated_heads(trained, 7)
    for pair in ((trained, random), (random, trained)):
        p = [match.p for match in align_heads(*pair, draws=39).matches]
        assert sorted(p)[2] > 0.05  # of eight, each with a chance of 1 in 20
    p = [match.p for match in align_heads(trained, load("two-layer-seed-1"), draws=39).matches]
    assert max(p) <= 0.05


@pytest.mark.slow
def test_p_holds_its_level_where_only_some_heads_are_matched() -> None:
    """Of eight heads the one that is matched is the most similar, so p is that of the best of 8."""
    one = {**SIZE, "n_layers": 1, "n_heads": 1}
    p: list[float] = []
    for seed in range(25):
        eight = random_model(Config(**SIZE), seed=seed + 100)
        found = align_heads(eight, random_model(Config(**one), seed=seed), draws=99, seed=seed)
        p += [match.p for match in found.matches]
    assert len(p) == 25 and sum(each <= 0.2 for each in p) <= 13  # of 25: 5 ± 2
    alone = align_heads(load("one-layer"), load("two-layer"), draws=99)
    assert min(match.p for match in alone.matches) == pytest.approx(2 / 100)


def test_what_cannot_be_compared() -> None:
    here = random_model(Config(**SIZE), seed=0)
    with pytest.raises(InputError, match="different tokens \\(60 and 61 of them\\)"):
        align_heads(here, random_model(Config(**{**SIZE, "d_vocab": 61}), seed=0))
    with pytest.raises(HeadError, match="has no layers"):
        align_heads(here, random_model(Config(**{**SIZE, "n_layers": 0}), seed=0))
    sums = random_model(Config(**{**SIZE, "d_vocab_out": 9}), seed=0)
    with pytest.raises(InputError, match="different outputs \\(60 and 9 of them\\)"):
        align_heads(here, sums)
    assert align_heads(sums, sums, draws=1).score == pytest.approx(1)
    one, other = construct.induction(), construct.induction()
    assert align_heads(one, other, draws=1).score == pytest.approx(1)


def test_it_has_a_table_and_a_schema() -> None:
    found = align_heads(random_model(Config(**SIZE), seed=0), random_model(Config(**SIZE), seed=1))
    assert found.to_table().to_text().count("L1H") >= 4
    assert schema(type(found))["title"] == "HeadAlignment"


def test_progress_is_reported_from_the_start_and_can_end_it() -> None:
    model, said = construct.induction(), list[str]()
    align_heads(model, model, draws=4, progress=lambda done, total, what: said.append(what))
    assert said[0].startswith("heads of")
    assert any(what.endswith("with the other heads") for what in said)
    assert said[-1].endswith("rotated")

    def give_up(done: int, total: int, what: str) -> None:
        raise InterruptedError(what)

    with pytest.raises(InterruptedError, match="heads of"):
        align_heads(model, model, progress=give_up)
