"""Probe sequences, independent of any model: repeated random tokens, and a short neutral text."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from pathsum.algebra.rotations import seeded
from pathsum.base.errors import InputError
from pathsum.base.options import parse_count

NEUTRAL_TEXT = (Path(__file__).parent / "neutral.txt").read_text(encoding="utf-8")
"""Text for the mean output of a component, for models without held-out text."""


@dataclass(frozen=True, eq=False)
class RepeatedTokens:
    """Random tokens, repeated: nothing learned about words helps to predict them.

    Each row of `tokens` is an optional start token and then `repeats` copies of a block of `length`
    distinct tokens. `first` is the position where the first copy begins (1 after a start token,
    else 0).
    """

    tokens: Int[Tensor, "sequence pos"]
    length: int
    repeats: int
    first: int


def random_repeats(
    allowed: Sequence[int] | Int[Tensor, " id"],
    length: int = 25,
    repeats: int = 4,
    sequences: int = 10,
    seed: int = 0,
    start_token: int | None = None,
) -> RepeatedTokens:
    """Blocks of distinct tokens drawn uniformly from `allowed`, each repeated.

    The defaults are the prefix-matching probe of the 2022 paper on induction heads (25 tokens,
    4 times, 10 sequences). The start token, if there is one, begins each sequence and is never
    drawn. Leave rare tokens out of `allowed` (see `token_pool`): a model cannot copy a token that
    training hardly saw.

    >>> random_repeats(range(10), length=3, repeats=2, sequences=1, start_token=0).tokens.shape
    torch.Size([1, 7])
    """
    ids = torch.as_tensor(list(allowed) if not isinstance(allowed, Tensor) else allowed).unique()
    if start_token is not None:
        ids = ids[ids != start_token]
    parse_count(length, "tokens", "length")
    parse_count(repeats, "copies", "repeats")
    parse_count(sequences, "probe sequences", "sequences")
    if len(ids) < length:
        raise InputError(
            f"a block of {length} distinct tokens cannot be drawn from {len(ids)} allowed ones; "
            f"use a length of at most {len(ids)}, or allow more tokens"
        )
    generator = seeded(seed)
    rows: list[Tensor] = []
    for _ in range(sequences):
        block = ids[torch.randperm(len(ids), generator=generator)[:length]]
        rows.append(block.repeat(repeats))
    tokens = prepend_start(torch.stack(rows), start_token)
    return RepeatedTokens(tokens, length, repeats, first=0 if start_token is None else 1)


def prepend_start(
    tokens: Int[Tensor, "sequence pos"], start_token: int | None
) -> Int[Tensor, "sequence all"]:
    """Sequences after a start token, if there is one."""
    if start_token is None:
        return tokens
    return torch.cat((torch.full((len(tokens), 1), start_token), tokens), dim=1)


def shuffled(tokens: Int[Tensor, "sequence pos"], first: int) -> Int[Tensor, "sequence pos"]:
    """Tokens shuffled from position `first` on, with no copy at its old distance.

    Information about the previous token, or about the last copy, is then wrong.
    """
    generator = torch.Generator().manual_seed(0)
    order = torch.arange(tokens.shape[1])
    order[first:] = first + torch.randperm(tokens.shape[1] - first, generator=generator)
    return tokens[:, order]
