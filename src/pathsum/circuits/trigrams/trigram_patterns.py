"""The paper's patterns of skip-trigrams, told from the texts of the three tokens.

    [b] … [a] → [b]      the source itself comes again
    [b] … [a] → [b']     a variant of the source comes
    [ab] … [a] → [b]     the source is one token, here it comes again in two pieces
    [ab] … [a] → [b']    the same, with a variant of the second piece

The last two are artifacts of tokenizers: " Ralph" is one token and "Ralph" is "R" + "alph".

What is a variant: two different tokens whose texts are equal after taking off surrounding white
space, letter case, and one plural ending (s, es, or ies for y) of a stem of at least three letters.
"""

from enum import StrEnum

from pathsum.text import Tokenizer

SHORTEST_STEM = 3


class Pattern(StrEnum):
    """Which of the paper's patterns a skip-trigram is."""

    COPY = "[b]…[a]→[b]"
    COPY_VARIANT = "[b]…[a]→[b']"
    PIECES = "[ab]…[a]→[b]"
    PIECES_VARIANT = "[ab]…[a]→[b']"
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
    if not rest:
        return Pattern.OTHER
    if second == rest:
        return Pattern.PIECES
    # A second piece has no space before it: with one it would be the next word.
    if second == second.lstrip() and are_variants(rest, second):
        return Pattern.PIECES_VARIANT
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
    """What is left of a token's text after its first piece; empty if that is not how it begins."""
    whole, first = whole.strip(), first.strip()
    if not first or "\ufffd" in whole + first or not whole.startswith(first):
        return ""
    return whole[len(first) :]
