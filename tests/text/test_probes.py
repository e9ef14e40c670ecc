"""Probe sequences with known answers."""

import pytest
import torch

from pathsum.base.errors import InputError
from pathsum.text.token_pool import random_repeats


def test_blocks_of_distinct_tokens_repeat_after_the_start_token() -> None:
    probe = random_repeats(range(50), 10, 3, 4, seed=1, start_token=7)
    assert probe.tokens.shape == (4, 31)
    assert bool((probe.tokens[:, 0] == 7).all())
    blocks = probe.tokens[:, 1:].view(4, 3, 10)
    assert torch.equal(blocks[:, 0], blocks[:, 1])
    assert torch.equal(blocks[:, 0], blocks[:, 2])
    for row in blocks[:, 0]:
        assert len(set(row.tolist())) == 10
        assert 7 not in row.tolist()


def test_draws_are_named_by_their_seed() -> None:
    one, same, other = (random_repeats(range(30), 8, 2, 3, seed=seed).tokens for seed in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_bad_input() -> None:
    with pytest.raises(InputError, match="from 3 allowed ones"):
        random_repeats(range(4), 5, 2, 1, start_token=0)
    with pytest.raises(InputError, match="repeats=0 copies were requested; choose 1 or more"):
        random_repeats(range(4), 2, 0, 1)
    with pytest.raises(InputError, match="sequences=1000000000 is out of range; use 1 to 100,000"):
        random_repeats(range(4), 2, 2, 10**9)
