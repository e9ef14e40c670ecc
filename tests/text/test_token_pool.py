"""Which tokens may be drawn: common, not special, not the most common."""

import dataclasses

import torch
from hypothesis import given
from hypothesis import strategies as st

import pathsum as ps
from pathsum.text.token_pool import TokenPool


def test_rare_excluded_and_the_most_common_tokens_are_not_drawn() -> None:
    counts = torch.arange(1000)
    pool = TokenPool(1000, counts, excluded=(500, 999))
    ids = pool.ids().tolist()
    assert ids == [i for i in range(100, 991) if i != 500]  # 898 are common; 8 of them are dropped
    assert bool(pool.common[999]) and not bool(pool.common[99])


def test_a_short_text_gives_its_most_common_tokens() -> None:
    counts = torch.tensor([900, 5, 7, 3, 0, 8])
    pool = TokenPool(6, counts, excluded=(0,))
    assert pool.ids(at_least=3).tolist() == [1, 2, 5]
    assert pool.ids().tolist() == [1, 2, 3, 4, 5]


def test_without_counts_all_but_the_excluded_are_drawn() -> None:
    assert TokenPool(4, excluded=(1,)).ids().tolist() == [0, 2, 3]
    assert bool(TokenPool(4).common.all())


def test_tables_show_all_tokens_if_none_is_common() -> None:
    assert bool(TokenPool(2, torch.tensor([1, 2])).in_tables.all())
    assert TokenPool(2, torch.tensor([1, 200])).in_tables.tolist() == [False, True]
    assert TokenPool(2, torch.tensor([1, 2]), minimum_count=2).in_tables.tolist() == [False, True]


@given(st.lists(st.integers(0, 300), min_size=2, max_size=40), st.integers(1, 60))
def test_the_pool_is_sorted_distinct_and_never_holds_what_is_excluded(
    counts: list[int], at_least: int
) -> None:
    ids = TokenPool(len(counts), torch.tensor(counts), excluded=(0,)).ids(at_least).tolist()
    assert ids == sorted(set(ids)) and 0 not in ids
    assert len(ids) >= min(at_least, len(counts) - 1)


def test_draws_come_from_the_pool() -> None:
    pool = TokenPool(8, excluded=(3,))
    drawn = pool.draw(5, 7, torch.Generator().manual_seed(0))
    assert drawn.shape == (5, 7) and set(drawn.flatten().tolist()) <= set(pool.ids().tolist())


def test_a_models_pool_knows_its_start_token_and_its_tokenizers_special_ones() -> None:
    model = ps.load("two-layer")
    pool = model.token_pool()
    assert model.token_counts is not None and model.tokenizer is not None
    assert model.config.start_token in pool.excluded
    assert torch.equal(pool.common, model.token_counts >= 100)
    padded = ps.random_model(ps.Config(1, 1, 8, 4, model.config.d_vocab + 3, 16))
    padded = dataclasses.replace(padded, tokenizer=model.tokenizer)
    ids = padded.token_pool().ids()
    assert int(ids.max()) < model.tokenizer.size and 0 not in ids.tolist()
