"""How well a table of logits is a text's bigram table, by how common tokens are."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.circuits.bigram.bigram_counts import BigramCounts, count_bigrams
from pathsum.model.sequences import Split
from pathsum.result import Column, Progress, Record, Table, silent

ROWS_A_BUCKET = 200
"""Tokens of a bucket that KL and rank correlation are taken from, evenly by frequency."""

Logits = Callable[[Int[Tensor, " some"]], Float[Tensor, "some vocab"]]


@dataclass(frozen=True, eq=False)
class FrequencyBucket(Record, kind="frequency-bucket"):
    """Tokens that occur `low` to `high` times (high left out; None: no limit) before another one.

    `kl` is the mean over tokens of KL(smoothed bigram ‖ table), in nats; `rank_correlation` the
    mean Spearman correlation of the two over the whole vocabulary; losses are means over the
    held-out `positions` whose token is in the bucket.
    """

    low: int
    high: int | None
    tokens: int
    positions: int
    kl: float
    rank_correlation: float
    loss: float
    loss_unigram: float
    loss_bigram: float


@dataclass(frozen=True, eq=False)
class BigramFit(Record, kind="bigram-fit"):
    """The direct path beside counts of a text; losses in nats a token, on held-out sequences."""

    loss: float
    loss_unigram: float
    loss_bigram: float
    counted: int
    held_out: int
    buckets: tuple[FrequencyBucket, ...]

    def to_table(self) -> Table:
        """One row a bucket, and one for all."""
        columns = (
            Column("seen", align="left"),
            Column("tokens"),
            Column("positions"),
            Column("KL"),
            Column("rank ρ"),
            Column("loss"),
            Column("unigram"),
            Column("bigram"),
        )
        rows = tuple(
            (
                f"≥ {b.low}" if b.high is None else f"{b.low}–{b.high - 1}",
                *(b.tokens, b.positions, b.kl, b.rank_correlation),
                *(b.loss, b.loss_unigram, b.loss_bigram),
            )
            for b in self.buckets
        )
        everything = ("all", sum(b.tokens for b in self.buckets), self.held_out, None, None)
        note = (
            f"counted on {self.counted} pairs, losses (nats a token) on {self.held_out} others; "
            "counts smoothed by Witten–Bell over an additive unigram"
        )
        return Table(
            columns,
            (*rows, (*everything, self.loss, self.loss_unigram, self.loss_bigram)),
            title="the direct path beside counts, by how often a token was seen",
            note=note,
        )


def fit_bigrams(
    parts: Split, logits: Logits, vocab: int, block: int, *, progress: Progress = silent
) -> BigramFit:
    """Compare a table of logits, given row by row, with the bigrams of a text."""
    counts = count_bigrams(parts.counted, vocab, progress=progress)
    held = count_bigrams(parts.held_out, vocab, progress=progress)
    first, second, times = held.first, held.second, held.counts.double()
    ours = _losses(first, second, logits, block, progress)
    unigram = -counts.unigram()[second].log()
    bigram = -counts.probabilities(first, second).log()
    seen = counts.followed()
    limits = [0, 1, *(10**power for power in range(1, 1 + _digits(seen)))]
    found: list[FrequencyBucket] = []
    for low, high in zip(limits, [*limits[1:], None], strict=True):
        inside = (seen >= low) & (seen < (math.inf if high is None else high))
        here = inside[first]
        if not bool(inside.any()) or (low == 0 and not bool(here.any())):
            continue
        kl, correlation = _agreement(counts, inside, seen, logits, block)
        weights = times[here]
        found.append(
            FrequencyBucket(
                *(low, high, int(inside.sum()), int(weights.sum()), kl, correlation),
                *(_mean(values[here], weights) for values in (ours, unigram, bigram)),
            )
        )
    return BigramFit(
        loss=_mean(ours, times),
        loss_unigram=_mean(unigram, times),
        loss_bigram=_mean(bigram, times),
        counted=int(counts.counts.sum()),
        held_out=int(times.sum()),
        buckets=tuple(found),
    )


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
    found: list[Tensor] = []
    for start in range(0, len(tokens), block):
        progress(start, len(tokens), "loss of the direct path")
        some = tokens[start : start + block]
        low = int(ends[start - 1]) if start else 0
        high = int(ends[min(start + block, len(tokens)) - 1])
        log_p = logits(some).double().log_softmax(-1).cpu()
        row = torch.searchsorted(some, first[low:high])
        found.append(-log_p[row, second[low:high]])
    return torch.cat(found)


def _agreement(
    counts: BigramCounts,
    inside: Tensor,
    seen: Float[Tensor, " vocab"],
    logits: Logits,
    block: int,
) -> tuple[float, float]:
    """Mean KL and mean rank correlation over tokens of a bucket that were seen."""
    tokens = (inside & (seen > 0)).nonzero().squeeze(1)
    if not len(tokens):
        return math.nan, math.nan
    tokens = tokens[seen[tokens].argsort(stable=True)]
    count = min(ROWS_A_BUCKET, len(tokens))
    tokens = tokens[[i * len(tokens) // count for i in range(count)]]
    kl: list[Tensor] = []
    correlation: list[Tensor] = []
    for some in tokens.split(block):
        p = counts.rows(some)
        log_q = logits(some).double().log_softmax(-1).cpu()
        kl.append((p * (p.log() - log_q)).sum(-1))
        correlation.append(rank_correlation(p, log_q))
    return float(torch.cat(kl).mean()), float(torch.cat(correlation).mean())


def rank_correlation(x: Float[Tensor, "rows n"], y: Float[Tensor, "rows n"]) -> Tensor:
    """Spearman's correlation of each row; equal values share the mean of their ranks.

    >>> found = rank_correlation(torch.tensor([[1.0, 2, 3]]), torch.tensor([[10.0, 20, 40]]))
    >>> round(float(found), 9)
    1.0
    """
    a, b = _ranks(x), _ranks(y)
    a, b = a - a.mean(-1, keepdim=True), b - b.mean(-1, keepdim=True)
    return (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1))


def _ranks(x: Float[Tensor, "rows n"]) -> Float[Tensor, "rows n"]:
    ordered = x.contiguous().sort(-1).values
    low = torch.searchsorted(ordered, x.contiguous(), right=False)
    high = torch.searchsorted(ordered, x.contiguous(), right=True)
    return (low + high).double() / 2


def _mean(values: Float[Tensor, " some"], weights: Float[Tensor, " some"]) -> float:
    total = weights.sum()
    return float((values * weights).sum() / total) if float(total) > 0 else math.nan


def _digits(seen: Float[Tensor, " vocab"]) -> int:
    return max(0, int(math.log10(max(float(seen.max()), 1.0))))
