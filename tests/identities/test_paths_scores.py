"""The expansion of attention scores as properties, on every variant of a model, in float64."""

from dataclasses import replace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.identities.configs import models_with_tokens, relative
from torch import Tensor

from pathsum.model import HeadId, Model
from pathsum.paths import ScoreSum
from pathsum.paths.order_sweep import split_at

SMALL = {"min_layers": 1, "max_layers": 3, "max_heads": 2}


def drawn_head(model: Model, seed: int) -> HeadId:
    return model.heads[seed % len(model.heads)].id


@given(models_with_tokens(min_layers=1, max_layers=5, max_heads=4), st.integers(0, 99))
@settings(max_examples=30)
def test_the_total_is_the_models_score_and_groups_add_up(
    drawn: tuple[Model, Tensor], seed: int
) -> None:
    model, tokens = drawn
    trace = model.trace(tokens)
    score = trace.scores(drawn_head(model, seed))
    assert score.remainder() < 1e-9
    together = score.none + score.q + score.k + score.qk
    torch.testing.assert_close(together, score.total(), rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(score.attention(), trace.pattern(score.head), rtol=1e-8, atol=1e-10)


@given(models_with_tokens(dtype=torch.float32, min_layers=1), st.integers(0, 99))
@settings(max_examples=30)
def test_the_total_is_the_models_score_in_float32(drawn: tuple[Model, Tensor], seed: int) -> None:
    model, tokens = drawn
    score = model.trace(tokens).scores(drawn_head(model, seed))
    assert score.total().dtype == torch.float32
    assert score.remainder() < 1e-4


@given(models_with_tokens(**SMALL), st.integers(0, 99))
@settings(max_examples=30)
def test_terms_add_up_to_their_groups(drawn: tuple[Model, Tensor], seed: int) -> None:
    model, tokens = drawn
    score = model.trace(tokens).scores(drawn_head(model, seed))
    if score.count > 600:
        return
    sums = {name: torch.zeros_like(score.total()) for name in ("none", "q", "k", "qk")}
    seen: set[tuple[str, str]] = set()
    heads: list[int] = []
    for pair in score.terms():
        sums[pair.group] += pair.scores
        seen.add((str(pair.query), str(pair.key)))
        heads.append(len(pair.query.heads) + len(pair.key.heads))
    assert len(seen) == len(heads) == score.count
    assert heads == sorted(heads)
    for name, found in sums.items():
        torch.testing.assert_close(found, getattr(score, name), rtol=1e-8, atol=1e-9)


@given(models_with_tokens(**SMALL), st.integers(0, 99))
@settings(max_examples=30)
def test_a_cell_is_the_sum_of_its_terms(drawn: tuple[Model, Tensor], seed: int) -> None:
    model, tokens = drawn
    score = model.trace(tokens).scores(drawn_head(model, seed))
    destination = seed % tokens.shape[1]
    source = seed % (destination + 1)
    cell = score.cell(destination, source, k=5, sequence=-1)
    close = 1e-9 * (1 + abs(cell.score) + sum(abs(term.score) for term in cell.terms))
    assert abs(cell.score - float(score.model_scores[-1, destination, source])) < close
    assert abs(cell.none + cell.q + cell.k + cell.qk - cell.score) < close
    assert abs(sum(term.score for term in cell.terms) + cell.rest - cell.score) < close
    sizes = [abs(term.score) for term in cell.terms]
    assert sizes == sorted(sizes, reverse=True)
    first = cell.terms[0]
    term = score.term(first.query, first.key)
    assert abs(float(term[-1, destination, source]) - first.score) < close
    without = score.attention_without(first.query, first.key)
    assert abs(float(without[-1, destination, source]) - first.attention_without) < 1e-9


@given(models_with_tokens(min_layers=2, max_layers=3, max_heads=3), st.integers(0, 99))
@settings(max_examples=30)
def test_writers_are_a_coarser_sum_of_the_same(drawn: tuple[Model, Tensor], seed: int) -> None:
    model, tokens = drawn
    score = model.trace(tokens).scores(drawn_head(model, seed))
    for side in (score.query, score.key):
        whole = sum(side.split(split_at(side.frozen, side.head.layer)))
        by_writer = sum(vectors for _, vectors in side.writers())
        torch.testing.assert_close(by_writer, whole, rtol=1e-8, atol=1e-9)


@given(models_with_tokens(min_layers=2, max_layers=3, max_heads=3))
@settings(max_examples=30)
def test_a_pattern_below_that_is_not_the_models_shows(drawn: tuple[Model, Tensor]) -> None:
    """Scores are made from the patterns below, not from recorded streams."""
    model, tokens = drawn
    trace = model.trace(tokens)
    wrong = replace(trace, patterns=(trace.patterns[0] * 1.5, *trace.patterns[1:]))
    head = HeadId(model.config.n_layers - 1, 0)
    right = ScoreSum(trace, head)
    if float(right.model_scores.abs().max()) > 1e-6:
        assert relative(ScoreSum(wrong, head).total(), right.total()) > 1e-9 > right.remainder()
