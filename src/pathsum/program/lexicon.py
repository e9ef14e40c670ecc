"""Lexicon: the tokens of a program, the classes that their texts fall into, and their names.

Rules may speak of a class of tokens where that is shorter: "after a digit: digits +1.9". Classes
follow from the text alone (`·the` is a word, `the` lowercase letters), every token is in exactly
one, and a model without a tokenizer has a single class. Rules number tokens from 0 to V − 1, then
the classes, then `any`.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Int
from torch import Tensor

from pathsum.circuits.token_basis import Token
from pathsum.text import Tokenizer

WORD, CAPITALIZED, NUMBER, MARK = "word", "capitalized word", "number", "mark after a space"
LOWER, UPPER, DIGIT, PUNCTUATION = "lowercase letters", "capital letters", "digit", "punctuation"
BREAK, SPACES, PART, SPECIAL = "line break", "spaces", "part of a character", "special token"
CLASSES = (
    *(WORD, CAPITALIZED, NUMBER, MARK, LOWER, UPPER),
    *(DIGIT, PUNCTUATION, BREAK, SPACES, PART, SPECIAL),
)
ANY = "any token"


def class_of_text(text: str) -> str:
    """The class of a token's text.

    >>> [class_of_text(text) for text in (" the", "ing", " +", "\\n\\n", "7")]
    ['word', 'lowercase letters', 'mark after a space', 'line break', 'digit']
    """
    if "\ufffd" in text or not text:
        return PART
    if text.isspace():
        return BREAK if "\n" in text else SPACES
    first = text.lstrip()[0]
    spaced = text[0].isspace()
    if first.isalpha():
        if first.isupper():
            return CAPITALIZED if spaced else UPPER
        return WORD if spaced else LOWER
    if first.isnumeric():
        return NUMBER if spaced else DIGIT
    return MARK if spaced else PUNCTUATION


@dataclass(frozen=True, eq=False)
class Lexicon:
    """The names that rules use: tokens, their classes, and `any`."""

    size: int
    tokenizer: Tokenizer | None

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes."""
        return CLASSES if self.tokenizer is not None else (ANY,)

    @cached_property
    def class_of(self) -> Int[Tensor, " vocab"]:
        """The class of every token."""
        found = torch.zeros(self.size, dtype=torch.long)
        if self.tokenizer is None:
            return found
        special = set(self.tokenizer.special_tokens)
        for token in range(self.size):
            known = token < self.tokenizer.size and token not in special
            name = class_of_text(self.tokenizer.text(token)) if known else SPECIAL
            found[token] = CLASSES.index(name)
        return found

    @property
    def any(self) -> int:
        """The number that stands for every token."""
        return self.size + len(self.classes)

    def sources(self, tokens: Int[Tensor, "..."]) -> tuple[Int[Tensor, "..."], ...]:
        """The numbers that each token answers to: its own, its class's, and `any`."""
        return tokens, self.size + self.class_of[tokens], torch.full_like(tokens, self.any)

    def name(self, number: int) -> Token:
        """A token or a class, with its text."""
        if number == self.any:
            return Token(number, ANY)
        if number >= self.size:
            return Token(number, f"⟨{self.classes[number - self.size]}⟩")
        shown = f"<{number}>" if self.tokenizer is None else self.tokenizer.show(number)
        return Token(number, shown)
