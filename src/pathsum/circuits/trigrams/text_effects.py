"""The effect of skip-trigrams on text: how often they fire, and how much loss they save.

Where the destination comes after the source, a head adds to the logit of `out`, from that source
and with its attention there,

    c = Σ A[destination, source] · OV[source, out]      W_U centered, scales of the run

over the earlier copies of the source. Without it the loss there changes by

    c + log(1 − p + p e^−c)     where `out` comes next, p its probability
        log(1 − p + p e^−c)     where it does not, which is never above 0 for c > 0

A skip-trigram fires where c ≥ 0.1 and `out` comes next. Its worth is the sum of these changes over
all places, right and wrong, divided by the number of predictions: frequency × effect. On a model of
several layers only what goes straight from embeddings to logits counts.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.base import Progress
from pathsum.circuits.trigrams.trigram_records import PatternShare
from pathsum.circuits.trigrams.triple import Ids, Pattern, pattern_of
from pathsum.model import Head, HeadId, Model, Path, Trace
from pathsum.model.folding import unembed_through

FIRES = 0.1
"""Logits that a head must add for a skip-trigram to count as firing."""
CANDIDATES_PER_RESULT = 8
CLASSIFIED = 5000
"""The number of skip-trigrams, by their gain where they are right, whose patterns are counted."""
KEPT_BYTES = 64 << 20
"""Bytes of traces of a text that are cached."""


@dataclass(frozen=True)
class Occurrence:
    """One place in the text: the sequence, and the positions of source and destination."""

    sequence: int
    source: int
    destination: int


@dataclass(frozen=True, eq=False)
class TextEffect:
    """One skip-trigram of one head on text, with the place where its effect is largest.

    `gain` is the loss that it saves where it is right, in nats, and `worth` the loss that it saves
    over all places, in nats per prediction.
    """

    head: HeadId
    ids: Ids
    gain: float
    fires: int
    occurrence: Occurrence
    worth: float = 0.0


@dataclass(frozen=True, eq=False)
class OnText:
    """Skip-trigrams by worth; `covered` is the share of all gain that the classified ones have."""

    effects: tuple[TextEffect, ...]
    classes: tuple[PatternShare, ...]
    covered: float
    predictions: int


@dataclass(frozen=True, eq=False)
class TextRun:
    """A traced sequence: `known` are its distinct tokens, and `place` which of them is where.

    `total[d]` is log Σ exp of the logits at destination d.
    """

    trace: Trace
    tokens: Int[Tensor, " pos"]
    known: Int[Tensor, " known"]
    place: Int[Tensor, " pos"]
    total: Float[Tensor, " dest"]

    @classmethod
    def of(cls, trace: Trace) -> "TextRun":
        """The first sequence of a run."""
        tokens = trace.tokens[0]
        known, place = tokens.unique(return_inverse=True)
        return cls(trace, tokens, known, place, trace.logits[0, :-1].logsumexp(-1).double())

    def log_p(self, at: Int[Tensor, " some"], out: Int[Tensor, " some"]) -> Float[Tensor, " some"]:
        """Log-probabilities of tokens after some positions, in float64."""
        return self.trace.logits[0, at, out].double() - self.total[at]

    def by_source(self, each: Float[Tensor, "dest src"]) -> Float[Tensor, "dest known"]:
        """Sums over the earlier copies of each token, which act together."""
        copies = torch.nn.functional.one_hot(self.place, len(self.known)).to(each)
        return each.tril(-1) @ copies


class TextRuns:
    """The traced sequences of a text, in order, cached up to `KEPT_BYTES`.

    Calls that rank skip-trigrams of several heads on one text can share it.
    """

    def __init__(self, model: Model, rows: Sequence[Int[Tensor, " _"]]) -> None:
        self.model, self.rows = model, list(rows)
        self._kept: dict[int, TextRun] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[TextRun]:
        for number, tokens in enumerate(self.rows):
            if number in self._kept:
                yield self._kept[number]
                continue
            trace = self.model.trace(tokens[None])
            found = TextRun.of(trace)
            held = (trace.logits, *trace.patterns, *trace.streams, *trace.mlp_outputs)
            size = sum(tensor.nbytes for tensor in held)
            if self._bytes + size <= KEPT_BYTES:
                self._kept[number] = found
                self._bytes += size
            yield found


@torch.no_grad()
def effects_on_text(
    model: Model,
    heads: Sequence[Head],
    runs: TextRuns,
    k: int,
    shown: Tensor,
    progress: Progress,
) -> OnText:
    """The k skip-trigrams worth most, among tokens that may be `shown`.

    Found by their gain where they are right, then measured wherever their antecedent occurs.
    """
    gathered = _Gains(model.config.d_vocab)
    predictions = 0
    ovs = {head.id: unembed_through(model.weights, head.W_O) for head in heads}
    for number, text in enumerate(runs):
        progress(number, 2 * len(runs), "skip-trigrams on text")
        predictions += len(text.tokens) - 1
        for head in heads:
            gathered.add(head.id, number, *_right_places(text, head, ovs[head.id], shown))
    most = CANDIDATES_PER_RESULT * k
    gained, ranked = gathered.ranked(max(most, CLASSIFIED))
    candidates = [(one.head, one.ids) for one in ranked[:most]]
    wanted = [_Wanted.of(head, ovs[head.id], candidates) for head in heads]
    for number, text in enumerate(runs):
        progress(len(runs) + number, 2 * len(runs), "skip-trigrams on text")
        for one in wanted:
            one.measure(text)
    worth = {
        (one.head.id, tuple(ids)): saved
        for one in wanted
        for ids, saved in zip(one.ids.tolist(), one.worth.tolist(), strict=True)
    }
    progress(1, 1, "skip-trigrams on text")
    effects = [
        replace(one, worth=worth[one.head, one.ids] / max(predictions, 1)) for one in ranked[:most]
    ]
    effects = sorted((one for one in effects if one.worth > 0), key=lambda one: -one.worth)
    classes, covered = _classes(model, ranked[:CLASSIFIED], gained)
    return OnText(tuple(effects[:k]), classes, covered, predictions)


def _scaled_pattern(trace: Trace, head: HeadId) -> Float[Tensor, "dest src"]:
    """A head's pattern, times the normalization scales on the way to the logits."""
    return Path("embed", (head,)).pattern(trace)[0]


def _right_places(
    text: TextRun, head: Head, ov: Float[Tensor, "k vocab"], shown: Tensor
) -> tuple[Tensor, Float[Tensor, " found"], Float[Tensor, " found"]]:
    """(source, destination, out, position, source's position), c and gain where `out` is next."""
    tokens, known, place = text.tokens, text.known, text.place
    after = tokens[1:]
    value = text.trace.model.weights.W_E[tokens] @ head.W_V
    effect = value @ ov[:, after]  # [source, destination]
    pattern = _scaled_pattern(text.trace, head.id)[:-1]
    c = text.by_source(pattern * effect.mT)
    allowed = shown.to(tokens.device)
    fires = (c >= FIRES) & allowed[known][None] & (allowed[tokens[:-1]] & allowed[after])[:, None]
    at, which = fires.nonzero().T
    c = c[at, which]
    p = text.log_p(at, after[at]).exp().to(c)
    gain = c + torch.log1p(p * torch.expm1(-c))
    places = torch.arange(len(tokens), device=at.device)
    # Of the copies before the destination, the one with the most attention.
    copies = (place[None] == which[:, None]) & (places < at[:, None])
    source_at = pattern[at].masked_fill(~copies, -torch.inf).argmax(1)
    rows = torch.stack((known[which], tokens[at], after[at], at, source_at), 1)
    return rows, c, gain


class _Gains:
    """Gains where skip-trigrams are right, summed over the text."""

    def __init__(self, d_vocab: int) -> None:
        self._d_vocab = d_vocab
        self._heads: list[HeadId] = []
        # Columns: (source, destination, out), head, sequence, source's position, position; c; gain.
        self._found: list[tuple[Tensor, Tensor, Tensor]] = []

    def add(
        self, head: HeadId, number: int, rows: Tensor, c: Tensor, gain: Float[Tensor, " found"]
    ) -> None:
        """Add what `_right_places` found of a head in one sequence."""
        if head not in self._heads:
            self._heads.append(head)
        where = torch.tensor([[self._heads.index(head), number]]).expand(len(rows), -1)
        at, source_at = rows[:, 3:4].cpu(), rows[:, 4:5].cpu()
        row = torch.cat((rows[:, :3].cpu(), where, source_at, at), 1)
        self._found.append((row, c.cpu(), gain.double().cpu()))

    def ranked(self, count: int) -> tuple[float, list[TextEffect]]:
        """The total gain, and the skip-trigrams with the largest, largest first.

        Of equal gains, and of equal effects of one skip-trigram, the first one found comes first.
        """
        if not self._found:
            return 0.0, []
        rows, c, gain = (torch.cat(column) for column in zip(*self._found, strict=True))
        which, fires = self._numbered(rows)
        total = torch.zeros(len(fires), dtype=torch.float64).index_add_(0, which, gain)
        # Occurrences of each together, in order; and again, the largest effect first.
        starts = fires.cumsum(0) - fires
        first = which.argsort(stable=True)[starts]
        by_effect = c.argsort(descending=True, stable=True)
        most = by_effect[which[by_effect].argsort(stable=True)][starts]
        order = first.argsort()
        order = order[total[order].argsort(descending=True, stable=True)][:count]
        return float(total.sum()), [
            TextEffect(self._heads[head], (s, d, o), gain, fires, Occurrence(number, source_at, at))
            for (s, d, o, head, number, source_at, at), gain, fires in zip(
                rows[most[order]].tolist(),
                total[order].tolist(),
                fires[order].tolist(),
                strict=True,
            )
        ]

    def _numbered(self, rows: Tensor) -> tuple[Int[Tensor, " found"], Int[Tensor, " triple"]]:
        """The number of each row's head and triple, and how many rows each number has."""
        pairs = (rows[:, 3] * self._d_vocab + rows[:, 0]) * self._d_vocab + rows[:, 1]
        # In two steps, since one number for all four may overflow.
        _, pair = pairs.unique(return_inverse=True)
        _, which, fires = (pair * self._d_vocab + rows[:, 2]).unique(
            return_inverse=True, return_counts=True
        )
        return which, fires


@dataclass(frozen=True, eq=False)
class _Wanted:
    """The candidates of one head, and the loss that each has saved so far, in nats.

    `effect` is what a unit of attention to the source adds to the logit of the out.
    """

    head: Head
    ids: Int[Tensor, "candidate 3"]
    effect: Float[Tensor, " candidate"]
    worth: Float[Tensor, " candidate"]

    @classmethod
    def of(
        cls, head: Head, ov: Float[Tensor, "k vocab"], candidates: Sequence[tuple[HeadId, Ids]]
    ) -> "_Wanted":
        mine = [ids for name, ids in candidates if name == head.id]
        ids = torch.tensor(mine, dtype=torch.long, device=ov.device).view(-1, 3)
        value = head.model.weights.W_E[ids[:, 0]] @ head.W_V
        effect = (value * ov[:, ids[:, 2]].T).sum(-1).double()
        return cls(head, ids, effect, torch.zeros_like(effect))

    def measure(self, text: TextRun) -> None:
        """Add the loss that each saves on one sequence, wherever its antecedent occurs."""
        tokens, known = text.tokens, text.known
        column = torch.searchsorted(known, self.ids[:, 0].contiguous()).clamp(max=len(known) - 1)
        here = (known[column] == self.ids[:, 0]).nonzero()[:, 0]
        which, at = (tokens[:-1] == self.ids[here, 1, None]).nonzero().T
        which = here[which]
        moved = text.by_source(_scaled_pattern(text.trace, self.head.id)[:-1])
        c = moved[at, column[which]].double() * self.effect[which]
        out = self.ids[which, 2]
        change = torch.log1p(text.log_p(at, out).exp() * torch.expm1(-c))
        self.worth.index_add_(0, which, change + torch.where(tokens[at + 1] == out, c, 0.0))


def _classes(
    model: Model, strongest: Sequence[TextEffect], total: float
) -> tuple[tuple[PatternShare, ...], float]:
    """Shares of the gain by pattern among the strongest skip-trigrams, and their share of all."""
    counts, sums = Counter[Pattern](), defaultdict[Pattern, float](float)
    for one in strongest:
        pattern = pattern_of(model.tokenizer, *one.ids)
        counts[pattern] += 1
        sums[pattern] += one.gain
    covered = sum(sums.values())
    if covered <= 0:
        return (), 0.0
    ranked = sorted(sums, key=lambda pattern: -sums[pattern])
    shares = tuple(PatternShare(each, counts[each], sums[each] / covered) for each in ranked)
    return shares, covered / total
