"""The fit of a table of logits to the bigrams of a text, by token frequency.

Counts are kept sparse and smoothed by interpolated Witten–Bell over an additive unigram:

    p(b)      = (c(b) + 1) / (N + V)
    P(b | a)  = (c(a, b) + T(a) p(b)) / (c(a) + T(a))      T(a): number of distinct tokens after a

A token that occurs before no other token has P(b | a) = p(b).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.algebra.spectrum import remove_mean
from pathsum.base import Column, Progress, Record, Table, silent, text_column
from pathsum.base.table import rows_table
from pathsum.model.sequences import Split
from pathsum.text.shards import spaced

ROWS_PER_BUCKET = 200
"""Tokens per bucket for KL and rank correlation, evenly spaced by frequency."""

Logits = Callable[[Int[Tensor, " n"]], Float[Tensor, "n vocab"]]


@dataclass(frozen=True, eq=False)
class BigramCounts:
    """Counts of pairs of adjacent tokens: sorted keys a · V + b and their counts."""

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
        """c(a): how often each token occurs before another token."""
        return self._sums(self.first, self.counts)

    def variety(self) -> Float[Tensor, " vocab"]:
        """T(a): the number of distinct tokens after each token."""
        return self._sums(self.first, torch.ones_like(self.counts))

    def unigram(self) -> Float[Tensor, " vocab"]:
        """p(b), additively smoothed, of tokens that follow another token."""
        counts = self._sums(self.second, self.counts)
        return (counts + 1) / (counts.sum() + self.vocab)

    def rows(self, tokens: Int[Tensor, " n"]) -> Float[Tensor, "n vocab"]:
        """P(· | a) for tokens a, dense; each row sums to 1."""
        total, variety = self.followed()[tokens], self.variety()[tokens]
        dense = variety[:, None] * self.unigram()
        for row, token in enumerate(tokens.tolist()):
            ends = torch.tensor([token, token + 1]) * self.vocab
            low, high = torch.searchsorted(self.keys, ends).tolist()
            dense[row, self.second[low:high]] += self.counts[low:high].double()
        unseen = total + variety == 0
        dense[unseen] = self.unigram()
        return dense / (total + variety + unseen)[:, None]

    def probabilities(
        self, first: Int[Tensor, " n"], second: Int[Tensor, " n"]
    ) -> Float[Tensor, " n"]:
        """P(b | a) of each pair."""
        keys = first * self.vocab + second
        at = torch.searchsorted(self.keys, keys).clamp(max=max(len(self.keys) - 1, 0))
        counts = torch.where(self.keys[at] == keys, self.counts[at], torch.zeros_like(at)).double()
        total, variety = self.followed()[first], self.variety()[first]
        p = self.unigram()[second]
        return torch.where(total > 0, (counts + variety * p) / (total + variety).clamp(min=1), p)

    def _sums(self, at: Tensor, values: Tensor) -> Float[Tensor, " vocab"]:
        return torch.zeros(self.vocab, dtype=torch.float64).index_add(0, at, values.double())


def count_bigrams(text: Sequence[Int[Tensor, "_ _"]], vocab: int) -> BigramCounts:
    """Count adjacent pairs."""
    pairs = [(batch[:, :-1] * vocab + batch[:, 1:]).flatten() for batch in text]
    none = torch.empty(0, dtype=torch.long)
    return BigramCounts(vocab, *torch.cat([none, *pairs]).unique(return_counts=True))


@dataclass(frozen=True, eq=False)
class FrequencyBucket(Record, kind="frequency-bucket"):
    """Tokens that occur `low` to `high` − 1 times before another token; no limit if `high` is None.

    `kl` is the mean over tokens of KL(smoothed bigram ‖ table), in nats; `rank_correlation` the
    mean Spearman correlation of the two over the whole vocabulary; losses are means over the
    held-out `positions` whose token is in the bucket.
    """

    low: int
    high: int | None
    tokens: Annotated[int, Column("tokens")]
    positions: Annotated[int, Column("positions")]
    kl: Annotated[float, Column("KL")]
    rank_correlation: Annotated[float, Column("rank ρ")]
    loss: Annotated[float, Column("loss")]
    loss_unigram: Annotated[float, Column("unigram")]
    loss_bigram: Annotated[float, Column("bigram")]


@dataclass(frozen=True, eq=False)
class BigramFit(Record, kind="bigram-fit"):
    """The direct path compared with counts of a text; losses in nats per held-out token."""

    loss: float
    loss_unigram: float
    loss_bigram: float
    counted: int
    held_out: int
    buckets: tuple[FrequencyBucket, ...]

    def to_table(self) -> Table:
        """One row per bucket, and one for all."""
        names = [f"≥ {b.low}" if b.high is None else f"{b.low}–{b.high - 1}" for b in self.buckets]
        table = rows_table(self.buckets, row=FrequencyBucket)
        rows = tuple((name, *row) for name, row in zip(names, table.rows, strict=True))
        everything = ("all", sum(b.tokens for b in self.buckets), self.held_out, None, None)
        note = (
            f"counted on {self.counted} pairs, losses (nats per token) on {self.held_out} others; "
            "counts smoothed by Witten–Bell over an additive unigram"
        )
        return Table(
            (text_column("seen"), *table.columns),
            (*rows, (*everything, self.loss, self.loss_unigram, self.loss_bigram)),
            title="the direct path against counts, by how often a token was seen",
            note=note,
        )


def fit_bigrams(
    split: Split, logits: Logits, vocab: int, block: int, *, progress: Progress = silent
) -> BigramFit:
    """Compare a table of logits, a function of rows, with the bigrams of a text."""
    counts, pairs = (count_bigrams(text, vocab) for text in (split.train, split.held_out))
    first, second, times = pairs.first, pairs.second, pairs.counts.double()
    of_counts = counts.unigram()[second], counts.probabilities(first, second)
    losses = (_losses(first, second, logits, block, progress), *(-p.log() for p in of_counts))
    followed = counts.followed()
    powers = int(math.log10(max(float(followed.max()), 1.0)))
    limits = [0, 1, *(10**power for power in range(1, 1 + powers))]
    buckets: list[FrequencyBucket] = []
    for low, high in zip(limits, [*limits[1:], None], strict=True):
        inside = (followed >= low) & (followed < (math.inf if high is None else high))
        rows = inside[first]
        if not bool(inside.any()) or (low == 0 and not bool(rows.any())):
            continue
        agreement = _agreement(counts, inside, followed, logits, block)
        sizes = int(inside.sum()), int(times[rows].sum())
        means = (_mean(values[rows], times[rows]) for values in losses)
        buckets.append(FrequencyBucket(low, high, *sizes, *agreement, *means))
    ours, unigram, bigram = (_mean(values, times) for values in losses)
    predictions = int(counts.counts.sum()), int(times.sum())
    return BigramFit(ours, unigram, bigram, *predictions, tuple(buckets))


def _losses(
    first: Int[Tensor, " pairs"],
    second: Int[Tensor, " pairs"],
    logits: Logits,
    block: int,
    progress: Progress,
) -> Float[Tensor, " pairs"]:
    """−log p(second | first) by the table, for pairs sorted by their first token."""
    tokens, sizes = first.unique_consecutive(return_counts=True)
    ends = sizes.cumsum(0)
    losses: list[Tensor] = []
    for start in range(0, len(tokens), block):
        progress(start, len(tokens), "loss of the direct path")
        batch = tokens[start : start + block]
        low = int(ends[start - 1]) if start else 0
        high = int(ends[min(start + block, len(tokens)) - 1])
        log_p = logits(batch).double().log_softmax(-1).cpu()
        row = torch.searchsorted(batch, first[low:high])
        losses.append(-log_p[row, second[low:high]])
    return torch.cat(losses)


def _agreement(
    counts: BigramCounts,
    inside: Tensor,
    followed: Float[Tensor, " vocab"],
    logits: Logits,
    block: int,
) -> tuple[float, float]:
    """Mean KL and mean rank correlation over the tokens of a bucket that occur."""
    tokens = (inside & (followed > 0)).nonzero().squeeze(1)
    if not len(tokens):
        return math.nan, math.nan
    tokens = tokens[followed[tokens].argsort(stable=True)]
    measures: list[Tensor] = []
    for batch in tokens[spaced(len(tokens), ROWS_PER_BUCKET)].split(block):
        p = counts.rows(batch)
        log_q = logits(batch).double().log_softmax(-1).cpu()
        measures.append(torch.stack(((p * (p.log() - log_q)).sum(-1), rank_correlation(p, log_q))))
    kl, correlation = torch.cat(measures, 1).mean(1).tolist()
    return kl, correlation


def rank_correlation(x: Float[Tensor, "rows n"], y: Float[Tensor, "rows n"]) -> Tensor:
    """Spearman's correlation of each row; equal values share the mean of their ranks.

    >>> rho = rank_correlation(torch.tensor([[1.0, 2, 3]]), torch.tensor([[10.0, 20, 40]]))
    >>> round(float(rho), 9)
    1.0
    """
    a, b = remove_mean(_ranks(x)), remove_mean(_ranks(y))
    return (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1))


def _ranks(x: Float[Tensor, "rows n"]) -> Float[Tensor, "rows n"]:
    ordered, x = x.contiguous().sort(-1).values, x.contiguous()
    low, high = (torch.searchsorted(ordered, x, right=right) for right in (False, True))
    return (low + high).double() / 2


def _mean(values: Float[Tensor, " n"], weights: Float[Tensor, " n"]) -> float:
    total = weights.sum()
    return float((values * weights).sum() / total) if float(total) > 0 else math.nan
