"""Lexicon: the tokens of a program, the classes of their texts, and the columns of a fit.

Rules may name a class of tokens if that is shorter: "after a digit: digits +1.9". Classes depend
only on the text (`·the` is a word, `the` lowercase letters), every token is in exactly one class,
and a model without a tokenizer has a single class. Rules number tokens from 0 to V − 1, then the
classes, then `any`.

`Columns` are the outputs that a fit distinguishes, so that its memory does not grow with V. Each of
the most probable tokens has a column, and so has every class. The other tokens of a class are a
single outcome: they have no entries, so they share one logit, and their probabilities add up. With
few tokens, every token has a column.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
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
MOST_COLUMNS = 4096
"""The largest number of tokens with a column."""


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
        classes = torch.zeros(self.size, dtype=torch.long)
        if self.tokenizer is None:
            return classes
        special = set(self.tokenizer.special_tokens)
        for token in range(self.size):
            has_text = token < self.tokenizer.size and token not in special
            name = class_of_text(self.tokenizer.text(token)) if has_text else SPECIAL
            classes[token] = CLASSES.index(name)
        return classes

    @property
    def any(self) -> int:
        """The number of the class of all tokens."""
        return self.size + len(self.classes)

    def sources(self, tokens: Int[Tensor, "..."]) -> tuple[Int[Tensor, "..."], ...]:
        """The numbers of each token, of its class, and of `any`."""
        return tokens, self.size + self.class_of[tokens], torch.full_like(tokens, self.any)

    def name(self, number: int) -> Token:
        """A token or a class, with its text."""
        if number == self.any:
            return Token(number, ANY)
        if number >= self.size:
            return Token(number, f"⟨{self.classes[number - self.size]}⟩")
        text = f"<{number}>" if self.tokenizer is None else self.tokenizer.show(number)
        return Token(number, text)


@dataclass(frozen=True, eq=False)
class Columns:
    """Columns of a fit: the most probable tokens, then all classes."""

    lexicon: Lexicon
    tokens: Int[Tensor, " col"]

    @cached_property
    def width(self) -> int:
        """The number of columns."""
        return len(self.tokens) + len(self.lexicon.classes)

    @cached_property
    def outs(self) -> Int[Tensor, " col"]:
        """The token or class of each column, as rules number them."""
        return torch.cat((self.tokens, torch.arange(self.lexicon.size, self.lexicon.any)))

    @cached_property
    def column_of(self) -> Int[Tensor, " number"]:
        """The column of each token and class; one past the last for tokens without one."""
        columns = torch.full((self.lexicon.any,), self.width)
        columns[self.outs] = torch.arange(self.width)
        return columns

    @cached_property
    def _class_of(self) -> Int[Tensor, " col"]:
        return self.lexicon.class_of[self.tokens]

    @cached_property
    def _onehot(self) -> Float[Tensor, "col kind"]:
        return torch.nn.functional.one_hot(self._class_of, len(self.lexicon.classes)).float()

    @cached_property
    def _rest(self) -> tuple[Tensor, Tensor]:
        """The classes with tokens without a column, and the logarithm of their number."""
        kinds = len(self.lexicon.classes)
        count = torch.bincount(self.lexicon.class_of, minlength=kinds)
        count = count - torch.bincount(self._class_of, minlength=kinds)
        return count.nonzero()[:, 0], count[count > 0].double().log().float()

    def outcomes(self, total: Float[Tensor, "batch pos wide"]) -> Float[Tensor, "batch pos out"]:
        """Logits of all outcomes from the sum at every column."""
        count, kinds = len(self.tokens), len(self.lexicon.classes)
        by_class = total[..., count : count + kinds]
        logits = total[..., :count] + by_class @ self._onehot.T
        rest, log_count = self._rest
        return torch.cat((logits, by_class[..., rest] + log_count), -1) if len(rest) else logits

    def sums(self, values: Float[Tensor, "batch pos out"]) -> Float[Tensor, "batch pos wide"]:
        """The transpose of `outcomes`: each column's value, and each class's sum."""
        of_tokens = values[..., : len(self.tokens)]
        by_class = of_tokens @ self._onehot
        rest, _ = self._rest
        by_class[..., rest] += values[..., len(self.tokens) :]
        return torch.cat((of_tokens, by_class, of_tokens.new_zeros(*of_tokens.shape[:-1], 1)), -1)

    def probabilities(
        self, logits: Float[Tensor, "batch pos vocab"]
    ) -> Float[Tensor, "batch pos out"]:
        """The model's probabilities of the outcomes, from its logits."""
        probs = logits.float().softmax(-1)
        of_tokens = probs[..., self.tokens]
        classes, _ = self._rest
        if not len(classes):
            return of_tokens
        kinds = probs.new_zeros(*probs.shape[:-1], len(self.lexicon.classes))
        kinds.index_add_(-1, self.lexicon.class_of, probs)
        rest = (kinds - of_tokens @ self._onehot).clamp(min=0)
        return torch.cat((of_tokens, rest[..., classes]), -1)


def choose_columns(
    lexicon: Lexicon, probability: Float[Tensor, " vocab"], most: int = MOST_COLUMNS
) -> Columns:
    """Columns for the tokens with the largest total probability."""
    tokens = probability.topk(min(most, lexicon.size)).indices
    return Columns(lexicon, tokens.sort().values)
