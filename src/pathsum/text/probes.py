"""Probe sequences with known answers. They know token ids, no model."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from pathsum.errors import InputError


@dataclass(frozen=True, eq=False)
class RepeatedTokens:
    """Random tokens, then the same again: nothing learned about words helps to predict them.

    Each row of `tokens` is an optional start token and then `repeats` copies of a block of
    `length` distinct tokens. `first` is the position where the first copy begins (1 after a start
    token, else 0).
    """

    tokens: Int[Tensor, "draw pos"]
    length: int
    repeats: int
    first: int

    @property
    def known(self) -> Bool[Tensor, " pos"]:
        """Where the next token is a known answer: it followed this same token one copy ago."""
        places = torch.arange(self.tokens.shape[1])
        last = self.tokens.shape[1] - 1
        return (places >= self.first + self.length) & (places < last)

    @property
    def sources(self) -> Int[Tensor, " pos"]:
        """Where an induction head looks: at what followed the last copy; −1 where nothing did."""
        places = torch.arange(self.tokens.shape[1])
        return torch.where(places >= self.first + self.length, places - self.length + 1, -1)


def random_repeats(
    allowed: Sequence[int] | Int[Tensor, " id"],
    length: int = 25,
    repeats: int = 4,
    draws: int = 10,
    seed: int = 0,
    start_token: int | None = None,
) -> RepeatedTokens:
    """Blocks of distinct tokens drawn uniformly from `allowed`, each repeated.

    The defaults are the prefix-matching probe of the 2022 paper on induction heads (25 tokens,
    4 times, 10 draws). The start token, if there is one, stands before each sequence and is never
    drawn. Leave rare tokens out of `allowed`: what a model never saw it cannot copy.

    >>> random_repeats(range(10), length=3, repeats=2, draws=1, start_token=0).tokens.shape
    torch.Size([1, 7])
    """
    ids = torch.as_tensor(list(allowed) if not isinstance(allowed, Tensor) else allowed).unique()
    if start_token is not None:
        ids = ids[ids != start_token]
    if length < 1 or repeats < 1 or draws < 1:
        raise InputError(
            f"length={length}, repeats={repeats}, draws={draws}: each must be at least 1"
        )
    if len(ids) < length:
        raise InputError(
            f"a block of {length} distinct tokens cannot be drawn from {len(ids)} allowed ones; "
            f"a length of at most {len(ids)}, or more tokens, would be right"
        )
    generator = torch.Generator().manual_seed(seed)
    rows: list[Tensor] = []
    for _ in range(draws):
        block = ids[torch.randperm(len(ids), generator=generator)[:length]]
        rows.append(block.repeat(repeats))
    tokens = torch.stack(rows)
    if start_token is not None:
        tokens = torch.cat((torch.full((draws, 1), start_token), tokens), dim=1)
    return RepeatedTokens(tokens, length, repeats, first=0 if start_token is None else 1)
