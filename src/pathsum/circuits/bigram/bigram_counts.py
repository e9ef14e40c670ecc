"""Bigram counts of a text, kept sparse, and the probabilities that smoothing makes of them.

Smoothing is interpolated Witten–Bell over an additive unigram:

    p(b)      = (c(b) + 1) / (N + V)
    P(b | a)  = (c(a, b) + T(a) p(b)) / (c(a) + T(a))      T(a): different tokens seen after a

A token that was never followed by anything has P(b | a) = p(b).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.result import Progress, silent

MERGE_AT = 4_000_000
"""Pairs that wait before they are merged into the sorted list of distinct ones."""


@dataclass(frozen=True, eq=False)
class BigramCounts:
    """How often each pair of neighbors occurs: sorted keys a · V + b and their counts."""

    vocab: int
    keys: Int[Tensor, " distinct"]
    counts: Int[Tensor, " distinct"]

    @property
    def first(self) -> Int[Tensor, " distinct"]:
        """The first token of each distinct pair."""
        return self.keys // self.vocab

    @property
    def second(self) -> Int[Tensor, " distinct"]:
        """The second token of each distinct pair."""
        return self.keys % self.vocab

    def followed(self) -> Float[Tensor, " vocab"]:
        """c(a): how often each token was followed by something."""
        return self._sums(self.first, self.counts)

    def variety(self) -> Float[Tensor, " vocab"]:
        """T(a): how many different tokens followed each token."""
        return self._sums(self.first, torch.ones_like(self.counts))

    def unigram(self) -> Float[Tensor, " vocab"]:
        """p(b), additively smoothed, of tokens that follow something."""
        seen = self._sums(self.second, self.counts)
        return (seen + 1) / (seen.sum() + self.vocab)

    def rows(self, tokens: Int[Tensor, " some"]) -> Float[Tensor, "some vocab"]:
        """P(· | a) for some tokens a, dense; sums to 1 along a row."""
        total, variety = self.followed()[tokens], self.variety()[tokens]
        dense = variety[:, None] * self.unigram()
        for row, token in enumerate(tokens.tolist()):
            low, high = torch.searchsorted(
                self.keys, torch.tensor([token * self.vocab, (token + 1) * self.vocab])
            ).tolist()
            dense[row, self.second[low:high]] += self.counts[low:high].double()
        never = total + variety == 0
        dense[never] = self.unigram()
        return dense / torch.where(never, torch.ones_like(total), total + variety)[:, None]

    def probabilities(
        self, first: Int[Tensor, " some"], second: Int[Tensor, " some"]
    ) -> Float[Tensor, " some"]:
        """P(b | a) for some pairs."""
        keys = first * self.vocab + second
        at = torch.searchsorted(self.keys, keys).clamp(max=max(len(self.keys) - 1, 0))
        seen = torch.where(self.keys[at] == keys, self.counts[at], torch.zeros_like(at)).double()
        total, variety = self.followed()[first], self.variety()[first]
        p = self.unigram()[second]
        return torch.where(total > 0, (seen + variety * p) / (total + variety).clamp(min=1), p)

    def _sums(self, at: Tensor, values: Tensor) -> Float[Tensor, " vocab"]:
        return torch.zeros(self.vocab, dtype=torch.float64).index_add(0, at, values.double())


def count_bigrams(
    parts: Sequence[Int[Tensor, "_ _"]], vocab: int, *, progress: Progress = silent
) -> BigramCounts:
    """Count neighbors; memory grows with the number of distinct pairs, not with the text."""
    keys = torch.empty(0, dtype=torch.long)
    counts = torch.empty(0, dtype=torch.long)
    waiting: list[Tensor] = []
    for index, part in enumerate(parts):
        progress(index, len(parts), "counting bigrams")
        pairs = (part[:, :-1] * vocab + part[:, 1:]).flatten()
        waiting += list(pairs.split(MERGE_AT))
        while sum(map(len, waiting)) > MERGE_AT:
            keys, counts = _merged(keys, counts, [waiting.pop(0)])
    keys, counts = _merged(keys, counts, waiting)
    return BigramCounts(vocab, keys, counts)


def _merged(keys: Tensor, counts: Tensor, waiting: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    arrived, times = torch.cat([keys[:0], *waiting]).unique(return_counts=True)
    distinct, where = torch.cat([keys, arrived]).unique(return_inverse=True)
    total = torch.zeros_like(distinct).index_add(0, where, torch.cat([counts, times]))
    return distinct, total
