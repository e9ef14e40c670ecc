"""The token pool: tokens that may be drawn at random, and tokens common enough for tables.

A rarely seen token keeps an embedding close to its initial one: it would fill the top of every
table, and heads ignore it. A very common token attracts attention in any context. Start and special
tokens never occur inside text. Probes leave out all three.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Int
from torch import Tensor

MINIMUM_COUNT = 100
"""Tokens that training saw fewer times than this count as rare, where counts are known."""
MOST_COMMON_SHARE = 0.01
"""The share of the common tokens, most common first, that is not drawn (the 2022 paper's probe)."""
FEWEST = 50
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
    def shown(self) -> Bool[Tensor, " vocab"]:
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

    def ids(self, at_least: int = FEWEST) -> Int[Tensor, " id"]:
        """Tokens that may be drawn, ascending: common, not excluded, not among the most common 1 %.

        A short text has few common tokens. If fewer than `at_least` are left, the most common
        `at_least` tokens are taken, or all there are.
        """
        ranked = self.by_count
        if self.counts is None:
            return ranked
        common = ranked[self.common[ranked]]
        drawn = common[int(len(common) * MOST_COMMON_SHARE) :]
        if len(drawn) < at_least:
            drawn = ranked[:at_least]
        return drawn.sort().values

    def draw(
        self, sequences: int, length: int, generator: torch.Generator
    ) -> Int[Tensor, "sequence pos"]:
        """Sequences of tokens drawn uniformly and independently."""
        ids = self.ids()
        return ids[torch.randint(len(ids), (sequences, length), generator=generator)]
