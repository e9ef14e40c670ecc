"""Columns: what a fit distinguishes among the outputs, so that its memory does not grow with V.

The tokens with the most probability have a column each, the classes of tokens have one each, and
what is left of a class is a single outcome: its tokens have no entries of their own, so they share
one logit, and their probabilities add up. With few tokens every token has a column and nothing is
left.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.program.lexicon import Lexicon

MOST_COLUMNS = 4096
"""Tokens with a column of their own, at most."""


@dataclass(frozen=True, eq=False)
class Columns:
    """Some tokens, then all classes."""

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
        found = torch.full((self.lexicon.any,), self.width)
        found[self.outs] = torch.arange(self.width)
        return found

    @cached_property
    def _class_of(self) -> Int[Tensor, " col"]:
        return self.lexicon.class_of[self.tokens]

    @cached_property
    def _onehot(self) -> Float[Tensor, "col kind"]:
        return torch.nn.functional.one_hot(self._class_of, len(self.lexicon.classes)).float()

    @cached_property
    def _left(self) -> tuple[Tensor, Tensor]:
        """The classes that have tokens without a column, and the logarithm of how many."""
        kinds = len(self.lexicon.classes)
        count = torch.bincount(self.lexicon.class_of, minlength=kinds)
        count = count - torch.bincount(self._class_of, minlength=kinds)
        return count.nonzero()[:, 0], count[count > 0].double().log().float()

    def outcomes(self, total: Float[Tensor, "batch pos wide"]) -> Float[Tensor, "batch pos out"]:
        """Logits of all outcomes from what every column receives."""
        count, kinds = len(self.tokens), len(self.lexicon.classes)
        by_class = total[..., count : count + kinds]
        logits = total[..., :count] + by_class @ self._onehot.T
        left, log_count = self._left
        return torch.cat((logits, by_class[..., left] + log_count), -1) if len(left) else logits

    def sums(self, given: Float[Tensor, "batch pos out"]) -> Float[Tensor, "batch pos wide"]:
        """The transpose of `outcomes`: each column's own number, and each class's sum."""
        own = given[..., : len(self.tokens)]
        by_class = own @ self._onehot
        left, _ = self._left
        by_class[..., left] += given[..., len(self.tokens) :]
        return torch.cat((own, by_class, own.new_zeros(*own.shape[:-1], 1)), -1)

    def probabilities(
        self, logits: Float[Tensor, "batch pos vocab"]
    ) -> Float[Tensor, "batch pos out"]:
        """The probabilities that a model's logits give to the outcomes."""
        probs = logits.float().softmax(-1)
        own = probs[..., self.tokens]
        left, _ = self._left
        if not len(left):
            return own
        kinds = probs.new_zeros(*probs.shape[:-1], len(self.lexicon.classes))
        kinds.index_add_(-1, self.lexicon.class_of, probs)
        rest = (kinds - own @ self._onehot).clamp(min=0)
        return torch.cat((own, rest[..., left]), -1)


def choose_columns(
    lexicon: Lexicon, probability: Float[Tensor, " vocab"], most: int = MOST_COLUMNS
) -> Columns:
    """Columns for the tokens that a model gives the most probability on some text."""
    best = probability.topk(min(most, lexicon.size)).indices
    return Columns(lexicon, best.sort().values)
