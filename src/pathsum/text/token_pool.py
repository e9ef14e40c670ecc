"""The token pool, and probe sequences: repeated random tokens, and a short neutral text.

The pool has the tokens that may be drawn at random, and those common enough for tables.

A rarely seen token keeps an embedding close to its initial one: it would fill the top of every
table, and heads ignore it. A very common token attracts attention in any context. Start and special
tokens never occur inside text. Probes leave out all three.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from pathsum.algebra.rotations import seeded
from pathsum.base.errors import InputError
from pathsum.base.options import parse_count

MINIMUM_COUNT = 100
"""Tokens that training saw fewer times than this count as rare, where counts are known."""
MOST_COMMON_SHARE = 0.01
"""The share of the common tokens, most common first, that is not drawn (the 2022 paper's probe)."""
MIN_POOL_SIZE = 50
"""A pool has at least this many tokens, if the vocabulary allows it."""


@dataclass(frozen=True, eq=False)
class TokenPool:
    """The tokens of a vocabulary that may be drawn (`ids`) and shown (`common`).

    `counts` is how often training saw each token, or None; `excluded` are the start token, special
    tokens and ids that never occur in text.

    >>> counts = torch.tensor([900, 5, 101, 400, 0])
    >>> TokenPool(5, counts, excluded=(0,)).ids(at_least=1)
    tensor([2, 3])
    >>> TokenPool(5, excluded=(0,)).ids()
    tensor([1, 2, 3, 4])
    """

    d_vocab: int
    counts: Int[Tensor, " vocab"] | None = None
    excluded: tuple[int, ...] = ()
    minimum_count: int = MINIMUM_COUNT

    @cached_property
    def common(self) -> Bool[Tensor, " vocab"]:
        """Tokens that training saw at least `minimum_count` times; all where counts are unknown."""
        if self.counts is None:
            return torch.ones(self.d_vocab, dtype=torch.bool)
        return self.counts.cpu() >= self.minimum_count

    @property
    def in_tables(self) -> Bool[Tensor, " vocab"]:
        """Tokens that tables show: the common ones, or all if training saw none often enough."""
        return self.common if bool(self.common.any()) else torch.ones_like(self.common)

    @cached_property
    def by_count(self) -> Int[Tensor, " id"]:
        """Ids that are not excluded, the most common first; in order where counts are unknown."""
        allowed = torch.ones(self.d_vocab, dtype=torch.bool)
        allowed[list(self.excluded)] = False
        ids = allowed.nonzero()[:, 0]
        if self.counts is None:
            return ids
        return ids[self.counts.cpu()[ids].argsort(descending=True, stable=True)]

    def ids(self, at_least: int = MIN_POOL_SIZE) -> Int[Tensor, " id"]:
        """Tokens that may be drawn, ascending: common, not excluded, not among the most common 1 %.

        A short text has few common tokens. If fewer than `at_least` are left, the most common
        `at_least` tokens are taken, or all there are.
        """
        ranked = self.by_count
        if self.counts is None:
            return ranked
        common = ranked[self.common[ranked]]
        tokens = common[int(len(common) * MOST_COMMON_SHARE) :]
        if len(tokens) < at_least:
            tokens = ranked[:at_least]
        return tokens.sort().values

    def draw(
        self, sequences: int, length: int, generator: torch.Generator
    ) -> Int[Tensor, "sequence pos"]:
        """Sequences of tokens drawn uniformly and independently."""
        ids = self.ids()
        return ids[torch.randint(len(ids), (sequences, length), generator=generator)]


NEUTRAL_TEXT = (Path(__file__).parent / "neutral.txt").read_text(encoding="utf-8")
"""Text for the mean output of a component, for models without held-out text."""


MOST_SEQUENCES = 100_000
"""Far more probe sequences than any score needs."""


@dataclass(frozen=True, eq=False)
class RepeatedTokens:
    """Random tokens, repeated: knowledge about words does not help to predict them.

    Each row of `tokens` is an optional start token and then `repeats` copies of a block of `length`
    distinct tokens. `first` is the position where the first copy begins (1 after a start token,
    else 0).
    """

    tokens: Int[Tensor, "sequence pos"]
    length: int
    repeats: int
    first: int


def random_repeats(
    allowed: Sequence[int] | Int[Tensor, " id"],
    length: int = 25,
    repeats: int = 4,
    sequences: int = 10,
    seed: int = 0,
    start_token: int | None = None,
) -> RepeatedTokens:
    """Blocks of distinct tokens drawn uniformly from `allowed`, each repeated.

    The defaults are the prefix-matching probe of the 2022 paper on induction heads (25 tokens,
    4 times, 10 sequences). The start token, if there is one, begins each sequence and is never
    drawn. Leave rare tokens out of `allowed` (see `token_pool`): a model cannot copy a token that
    training hardly saw.

    >>> random_repeats(range(10), length=3, repeats=2, sequences=1, start_token=0).tokens.shape
    torch.Size([1, 7])
    """
    ids = torch.as_tensor(list(allowed) if not isinstance(allowed, Tensor) else allowed).unique()
    if start_token is not None:
        ids = ids[ids != start_token]
    parse_count(length, "tokens", "length")
    parse_count(repeats, "copies", "repeats")
    parse_count(sequences, "probe sequences", "sequences")
    if sequences > MOST_SEQUENCES:
        raise InputError(f"sequences={sequences} is out of range; use 1 to {MOST_SEQUENCES:,}")
    if len(ids) < length:
        raise InputError(
            f"a block of {length} distinct tokens cannot be drawn from {len(ids)} allowed ones; "
            f"use a length of at most {len(ids)}, or allow more tokens"
        )
    generator = seeded(seed)
    rows: list[Tensor] = []
    for _ in range(sequences):
        block = ids[torch.randperm(len(ids), generator=generator)[:length]]
        rows.append(block.repeat(repeats))
    tokens = prepend_start(torch.stack(rows), start_token)
    return RepeatedTokens(tokens, length, repeats, first=0 if start_token is None else 1)


def prepend_start(
    tokens: Int[Tensor, "sequence pos"], start_token: int | None
) -> Int[Tensor, "sequence all"]:
    """Sequences after a start token, if there is one."""
    if start_token is None:
        return tokens
    return torch.cat((torch.full((len(tokens), 1), start_token), tokens), dim=1)


def shuffled(tokens: Int[Tensor, "sequence pos"], first: int) -> Int[Tensor, "sequence pos"]:
    """Tokens shuffled from position `first` on, with no copy at its old distance.

    Information about the previous token, or about the last copy, is then wrong.
    """
    generator = torch.Generator().manual_seed(0)
    order = torch.arange(tokens.shape[1])
    order[first:] = first + torch.randperm(tokens.shape[1] - first, generator=generator)
    return tokens[:, order]
