"""One skip-trigram: its score, its pattern by the texts of its tokens, its evidence in a corpus.

The paper's patterns:

    [b] … [a] → [b]      the source itself is repeated
    [b] … [a] → [b']     a variant of the source follows
    [ab] … [a] → [b]     the source, one token, is repeated as two pieces
    [ab] … [a] → [b']    the same, with a variant of the second piece

and, where none of these fits, by the structure of code and prose:

    brackets             out closes what the source opened
    indentation          the source and out are white space
    word ending          out continues the word of the destination
    names                the source and out begin with a capital letter

The paper's last two are artifacts of tokenizers: " Ralph" is one token and "Ralph" is "R" + "alph".
Variants are two different tokens whose texts are equal after removing surrounding white space,
letter case, and one plural ending (s, es, or ies for y) of a stem of at least three letters.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pathsum.base import Progress, silent
from pathsum.circuits.tokens.qk import rotary_note
from pathsum.circuits.tokens.token import hidden_note, joined, token_frequencies
from pathsum.circuits.tokens.token_basis import (
    logit_cap_note,
    require_heads,
    require_logit_edges,
    require_score_edges,
    score_cap_note,
)
from pathsum.model import Head, HeadId, Model
from pathsum.model.sequences import require_tokens_out
from pathsum.text import Tokenizer

Ids = tuple[int, int, int]
"""Source, destination, out."""
SHORTEST_STEM = 3


def source_weights(model: Model) -> Float[Tensor, " vocab"]:
    """p(source)^0.1, the factor of a triple's score for how common its source is; 1 if unknown."""
    if model.token_counts is None:
        return torch.ones(model.config.d_vocab, dtype=torch.float64)
    return token_frequencies(model) ** 0.1


def check_trigrams(model: Model, what: str) -> None:
    """Raise an error if skip-trigrams cannot be read from this model's weights."""
    require_heads(model)
    require_score_edges(model, "skip-trigrams")
    require_logit_edges(model, "skip-trigrams")
    require_tokens_out(model, what)


def note_on_weights(
    model: Model,
    heads: Sequence[Head],
    offset: int | None,
    common: Bool[Tensor, " vocab"],
    rare: int,
) -> str:
    """A note on what skip-trigrams from weights leave out."""
    deeper = model.config.norm != "none" and any(each.id.layer > 0 for each in heads)
    return joined(
        (
            "layers above 0: direct path, scale omitted" if deeper else "",
            *(rotary_note(model, offset), score_cap_note(model.config)),
            *(logit_cap_note(model.config), hidden_note(common, rare)),
        )
    )


class Triple(NamedTuple):
    """A skip-trigram by ids, with the factors of its score."""

    head: HeadId
    source: int
    destination: int
    out: int
    attention: float
    effect: float
    score: float

    @property
    def tokens(self) -> Ids:
        """Source, destination, out."""
        return (self.source, self.destination, self.out)


class Pattern(StrEnum):
    """The paper's pattern that a skip-trigram belongs to, or its pattern by structure."""

    COPY = "[b]…[a]→[b]"
    COPY_VARIANT = "[b]…[a]→[b']"
    PIECES = "[ab]…[a]→[b]"
    PIECES_VARIANT = "[ab]…[a]→[b']"
    BRACKETS = "brackets"
    INDENTATION = "indentation"
    WORD_ENDING = "word ending"
    NAMES = "names"
    OTHER = "other"


def pattern_of(tokenizer: Tokenizer | None, source: int, destination: int, out: int) -> Pattern:
    """The pattern of a triple of tokens; without a tokenizer only a copy can be recognized.

    >>> words = Tokenizer.of_words(["Ralph", "R", "alph", "ralph", "cat"])
    >>> print(pattern_of(words, 0, 1, 2), pattern_of(words, 0, 4, 3), pattern_of(words, 0, 4, 0))
    [ab]…[a]→[b] [b]…[a]→[b'] [b]…[a]→[b]
    """
    if source == out:
        return Pattern.COPY
    if tokenizer is None:
        return Pattern.OTHER
    whole, first, second = (tokenizer.text(token) for token in (source, destination, out))
    if are_variants(whole, second):
        return Pattern.COPY_VARIANT
    rest = _rest(whole, first)
    if rest and second == rest:
        return Pattern.PIECES
    # A second piece with a space before it would be the next word.
    if rest and second == second.lstrip() and are_variants(rest, second):
        return Pattern.PIECES_VARIANT
    return _structure(whole, first, second)


_CLOSES = {"(": ")", "[": "]", "{": "}", "<": ">", '"': '"', "'": "'", "`": "`"}


def _structure(source: str, destination: str, out: str) -> Pattern:
    """The structural pattern of a skip-trigram, from the texts of its tokens.

    >>> print(_structure(" (", "x", ")"), _structure("\\n    ", ":", "\\n        "))
    brackets indentation
    >>> print(_structure("abc", " re", "turn"), _structure(" Mary", " and", " John"))
    word ending names
    """
    opened = [_CLOSES[letter] for letter in source if letter in _CLOSES]
    if any(letter in out for letter in opened):
        return Pattern.BRACKETS
    if source.isspace() and out.isspace():
        return Pattern.INDENTATION
    if out[:1].isalpha() and destination[-1:].isalpha():
        return Pattern.WORD_ENDING
    if source.strip()[:1].isupper() and out.strip()[:1].isupper():
        return Pattern.NAMES
    return Pattern.OTHER


def are_variants(one: str, other: str) -> bool:
    """Whether two texts are the same word up to white space, case and a plural ending.

    >>> are_variants(" Keep", "keep"), are_variants("list", " lists"), are_variants("a", "as")
    (True, True, False)
    """
    if "\ufffd" in one + other:  # part of a character, which has no text to compare
        return False
    a, b = one.strip().casefold(), other.strip().casefold()
    if not a or not b:
        return False
    return a == b or _is_plural(a, b) or _is_plural(b, a)


def _is_plural(stem: str, word: str) -> bool:
    if len(stem) < SHORTEST_STEM or not stem.isalpha():
        return False
    return word in (stem + "s", stem + "es") or (stem[-1] == "y" and word == stem[:-1] + "ies")


def _rest(whole: str, first: str) -> str:
    """The rest of a token's text after its first piece; empty if it begins differently."""
    whole, first = whole.strip(), first.strip()
    if not first or "\ufffd" in whole + first or not whole.startswith(first):
        return ""
    return whole[len(first) :]


@dataclass(frozen=True)
class Evidence:
    """Counts of `[source] … [destination] → [out]` in a text.

    `antecedents` counts the places where the destination has the source somewhere before it in the
    sequence and a token after it, `followed` those where that token is `out`. `lift` is
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
        """P(out | source … destination) / P(out | destination)."""
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
    # How often each antecedent and destination has a next token, and how often that is `out`.
    antecedents, destinations = Counter[tuple[int, int]](), Counter[int]()
    followed, pairs = Counter[Ids](), Counter[tuple[int, int]]()
    for index, part in enumerate(parts):
        progress(index, len(parts), "reading text")
        tokens, after = part[:, :-1], part[:, 1:].flatten()
        here = {one: (tokens == one).flatten().nonzero()[:, 0] for one in by_destination}
        for destination, raised in by_destination.items():
            next_tokens = after[here[destination]]
            destinations[destination] += len(next_tokens)
            for out, count in _counts(next_tokens, list(raised)):
                pairs[destination, out] += count
        before: dict[int, Tensor] = {}
        for (source, destination), raised in outs.items():
            if source not in before:
                occurs = tokens == source
                strictly = (occurs.cumsum(1) - occurs.long()) > 0
                before = {source: strictly.flatten()}
            places = here[destination]
            next_tokens = after[places[before[source][places]]]
            antecedents[source, destination] += len(next_tokens)
            for out, count in _counts(next_tokens, raised):
                followed[source, destination, out] += count
    return {
        ids: Evidence(
            antecedents=antecedents[ids[:2]],
            followed=followed[ids],
            bigram_rate=pairs[ids[1:]] / max(destinations[ids[1]], 1),
        )
        for ids in wanted
    }


def _counts(tokens: Int[Tensor, " n"], wanted: list[int]) -> Iterator[tuple[int, int]]:
    """How often each of some tokens occurs among others."""
    ids = torch.tensor(wanted, dtype=tokens.dtype, device=tokens.device)
    yield from zip(wanted, (tokens == ids[:, None]).sum(1).tolist(), strict=True)
