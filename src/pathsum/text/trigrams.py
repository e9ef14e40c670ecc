"""Skip-trigrams `[source] … [destination] → [out]` in text: their patterns and their counts.

The paper's patterns:

    [b] … [a] → [b]      the source itself is repeated
    [b] … [a] → [b']     a variant of the source follows
    [ab] … [a] → [b]     the source, one token, is repeated as two pieces
    [ab] … [a] → [b']    the same, with a variant of the second piece

Otherwise, a pattern by the structure of code and prose:

    brackets             out closes what the source opened
    indentation          the source and out are white space
    word ending          out continues the word of the destination
    names                the source and out begin with a capital letter

The paper's last two are artifacts of tokenizers: " Ralph" is one token and "Ralph" is "R" + "alph".
Variants are two different tokens whose texts are equal after removing surrounding white space,
letter case, and one plural ending (s, es, or ies for y) of a stem of at least three letters.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from operator import itemgetter

import torch
from jaxtyping import Int
from torch import Tensor

from pathsum.base import Progress, computed_field, silent
from pathsum.text.tokenizer import Tokenizer

Ids = tuple[int, int, int]
"""Source, destination, out."""
SHORTEST_STEM = 3


class Pattern(StrEnum):
    """The pattern of a skip-trigram: one of the paper's, or one by structure."""

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
    word, first, second = (tokenizer.text(token) for token in (source, destination, out))
    if are_variants(word, second):
        return Pattern.COPY_VARIANT
    ending = _after_prefix(word, first)
    if ending and second == ending:
        return Pattern.PIECES
    # A second piece with a space before it would be the next word.
    if ending and second == second.lstrip() and are_variants(ending, second):
        return Pattern.PIECES_VARIANT
    return _structure(word, first, second, not tokenizer.has_whole_words)


_CLOSES = {"(": ")", "[": "]", "{": "}", "<": ">", '"': '"', "'": "'", "`": "`"}


def _structure(source: str, destination: str, out: str, pieces: bool = True) -> Pattern:
    """The structural pattern of a skip-trigram, from the texts of its tokens.

    Without `pieces`, tokens are whole words, so no token continues another.

    >>> print(_structure(" (", "x", ")"), _structure("\\n    ", ":", "\\n        "))
    brackets indentation
    >>> print(_structure("abc", " re", "turn"), _structure(" Mary", " and", " John"))
    word ending names
    """
    if any(_CLOSES[letter] in out for letter in source if letter in _CLOSES):
        return Pattern.BRACKETS
    if source.isspace() and out.isspace():
        return Pattern.INDENTATION
    if pieces and out[:1].isalpha() and destination[-1:].isalpha():
        return Pattern.WORD_ENDING
    if source.strip()[:1].isupper() and out.strip()[:1].isupper():
        return Pattern.NAMES
    return Pattern.OTHER


def are_variants(a: str, b: str) -> bool:
    """Whether two texts are the same word up to white space, case and a plural ending.

    >>> are_variants(" Keep", "keep"), are_variants("list", " lists"), are_variants("a", "as")
    (True, True, False)
    """
    if "\ufffd" in a + b:  # part of a character, which has no text to compare
        return False
    a, b = a.strip().casefold(), b.strip().casefold()
    if not a or not b:
        return False
    return a == b or _is_plural(a, b) or _is_plural(b, a)


def _is_plural(stem: str, word: str) -> bool:
    if len(stem) < SHORTEST_STEM or not stem.isalpha():
        return False
    return word in (stem + "s", stem + "es") or (stem[-1] == "y" and word == stem[:-1] + "ies")


def _after_prefix(word: str, prefix: str) -> str:
    """The rest of a token's text after its first piece; empty if it begins differently."""
    word, prefix = word.strip(), prefix.strip()
    if not prefix or "\ufffd" in word + prefix or not word.startswith(prefix):
        return ""
    return word[len(prefix) :]


@dataclass(frozen=True)
class Evidence:
    """Counts of `[source] … [destination] → [out]` in a text.

    `antecedents` counts positions of the destination with the source before it and another token
    after it, `followed` those where that token is `out`. `lift` is
    P(out | source … destination) / P(out | destination): above 1, the source helps.
    """

    antecedents: int
    followed: int
    bigram_rate: float

    @computed_field
    def rate(self) -> float:
        """P(out | source … destination); NaN where the antecedent never occurs."""
        return self.followed / self.antecedents if self.antecedents else math.nan

    @computed_field
    def lift(self) -> float:
        """P(out | source … destination) / P(out | destination)."""
        return self.rate / self.bigram_rate if self.bigram_rate > 0 else math.nan


def gather_evidence(
    text: Sequence[Int[Tensor, "_ _"]], triples: Iterable[Ids], *, progress: Progress = silent
) -> dict[Ids, Evidence]:
    """Evidence for each triple, from one pass over the text for each pair of tokens."""
    groups = groupby(sorted(set(triples)), key=itemgetter(0))
    by_source = {source: list(group) for source, group in groups}
    # For each triple: antecedents, antecedents before `out`, destinations, destinations before out.
    counts = {
        ids: torch.zeros(4, dtype=torch.long) for group in by_source.values() for ids in group
    }
    destinations = {destination for _, destination, _ in counts}
    for index, batch in enumerate(text):
        progress(index, len(text), "reading text")
        tokens, after = batch[:, :-1], batch[:, 1:].flatten()
        positions = {d: (tokens == d).flatten().nonzero()[:, 0] for d in destinations}
        for source, group in by_source.items():
            occurs = tokens == source
            before = ((occurs.cumsum(1) - occurs.long()) > 0).flatten()
            for ids in group:
                after_source = before[positions[ids[1]]]
                right = after[positions[ids[1]]] == ids[2]
                masks = (after_source, after_source & right, torch.ones_like(right), right)
                counts[ids] += torch.stack(masks).sum(1).cpu()
    evidence: dict[Ids, Evidence] = {}
    for ids, numbers in counts.items():
        antecedents, followed, occurrences, pairs = numbers.tolist()
        evidence[ids] = Evidence(antecedents, followed, pairs / max(occurrences, 1))
    return evidence
