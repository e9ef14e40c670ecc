"""What text says about skip-trigrams: how often the antecedent occurs, and what follows it."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from jaxtyping import Int
from torch import Tensor

from pathsum.result import Progress, silent

Ids = tuple[int, int, int]
"""Source, destination, out."""


@dataclass(frozen=True)
class Evidence:
    """What a text says about `[source] … [destination] → [out]`.

    `antecedents` counts the places where the destination stands with the source somewhere before it
    in the sequence and a token after it, `followed` those where that token is `out`. `lift` is
    P(out | source … destination) / P(out | destination): above 1, the source helps.
    """

    antecedents: int
    followed: int
    bigram_rate: float

    @property
    def rate(self) -> float:
        """P(out | source … destination); NaN where the antecedent never occurs."""
        return self.followed / self.antecedents if self.antecedents else math.nan

    @property
    def lift(self) -> float:
        """How many times as often `out` follows as it does after the destination anyway."""
        return self.rate / self.bigram_rate if self.bigram_rate > 0 else math.nan

    def to_json(self) -> dict[str, float | int | None]:
        """Counts, and the rates that follow from them."""
        numbers = {"rate": self.rate, "bigram_rate": self.bigram_rate, "lift": self.lift}
        finite = {name: None if math.isnan(value) else value for name, value in numbers.items()}
        return {"antecedents": self.antecedents, "followed": self.followed, **finite}

    @classmethod
    def json_schema(cls) -> dict[str, object]:
        """Counts are whole numbers; a rate of what never occurs is null."""
        rate = {"type": ["number", "null"]}
        names = ("rate", "bigram_rate", "lift")
        counts = {name: {"type": "integer"} for name in ("antecedents", "followed")}
        return {
            "type": "object",
            "properties": {**counts, **dict.fromkeys(names, rate)},
            "required": [*counts, *names],
            "additionalProperties": False,
        }


@dataclass
class _Tally:
    antecedents: dict[tuple[int, int], int] = field(default_factory=lambda: defaultdict(int))
    followed: dict[Ids, int] = field(default_factory=lambda: defaultdict(int))
    seen: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    pairs: dict[tuple[int, int], int] = field(default_factory=lambda: defaultdict(int))


def gather_evidence(
    parts: Sequence[Int[Tensor, "_ _"]], triples: Iterable[Ids], *, progress: Progress = silent
) -> dict[Ids, Evidence]:
    """Evidence for each triple, from one pass over the text for each distinct pair it names."""
    wanted = list(dict.fromkeys(triples))
    outs: dict[tuple[int, int], list[int]] = defaultdict(list)
    by_destination: dict[int, set[int]] = defaultdict(set)
    for source, destination, out in wanted:
        outs[source, destination].append(out)
        by_destination[destination].add(out)
    tally = _Tally()
    for index, part in enumerate(parts):
        progress(index, len(parts), "reading text")
        _count(part, outs, by_destination, tally)
    return {
        ids: Evidence(
            antecedents=tally.antecedents[ids[:2]],
            followed=tally.followed[ids],
            bigram_rate=tally.pairs[ids[1:]] / max(tally.seen[ids[1]], 1),
        )
        for ids in wanted
    }


def _count(
    part: Int[Tensor, "_ _"],
    outs: dict[tuple[int, int], list[int]],
    by_destination: dict[int, set[int]],
    tally: _Tally,
) -> None:
    here, after = part[:, :-1], part[:, 1:]
    for destination, raised in by_destination.items():
        next_tokens = after[here == destination]
        tally.seen[destination] += len(next_tokens)
        for out in raised:
            tally.pairs[destination, out] += int((next_tokens == out).sum())
    before: dict[int, Tensor] = {}
    for (source, destination), raised in outs.items():
        if source not in before:
            stands = here == source
            before = {source: (stands.cumsum(1) - stands.long()) > 0}  # strictly before
        next_tokens = after[before[source] & (here == destination)]
        tally.antecedents[source, destination] += len(next_tokens)
        for out in raised:
            tally.followed[source, destination, out] += int((next_tokens == out).sum())
