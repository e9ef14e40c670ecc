"""Text for circuits: token sequences of any origin, and the part of them that is held out."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from jaxtyping import Int
from torch import Tensor

from pathsum.errors import InputError, TokenError
from pathsum.model import Model
from pathsum.result import Progress, silent
from pathsum.text import Corpus
from pathsum.text.shards import TokenShards

Tokens: TypeAlias = Tensor | Iterable[Tensor] | Iterable[Sequence[int]]
Text: TypeAlias = Corpus | Tokens
"""A corpus, or token ids: a tensor [n, pos], or an iterable of batches, sequences or lists."""

EVERY = 5
"""One sequence in this many is held out, where the corpus does not say itself."""
COUNTED_TOKENS = 8_000_000
"""Tokens of a corpus's training part that are counted at most, spread evenly over it."""
HELD_OUT_TOKENS = 400_000
"""Tokens of its held-out part that are judged by at most."""


@dataclass(frozen=True, eq=False)
class Split:
    """A corpus in two parts: what is counted, and what is held out to judge by."""

    counted: tuple[Int[Tensor, "_ _"], ...]
    held_out: tuple[Int[Tensor, "_ _"], ...]


def batches(model: Model, corpus: Tokens) -> list[Int[Tensor, "_ _"]]:
    """A corpus as a list of checked batches [n, pos], on the CPU."""
    given = [corpus] if isinstance(corpus, Tensor) else corpus
    found: list[Tensor] = []
    for part in given:
        ids = torch.as_tensor(part).long().cpu()
        ids = ids[None] if ids.ndim == 1 else ids
        if ids.ndim != 2 or ids.numel() == 0:
            raise InputError(
                f"a part of the corpus has shape {list(ids.shape)}; token ids as [pos] or "
                "[n, pos], not empty, would be right"
            )
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= model.config.d_vocab:
            raise TokenError(
                f"the corpus holds token id {low if low < 0 else high}, but the vocabulary has "
                f"{model.config.d_vocab} tokens; it was made with another tokenizer"
            )
        found.append(ids)
    if not found:
        raise InputError("the corpus is empty; at least two sequences of token ids would be right")
    return found


def split(model: Model, corpus: Text) -> Split:
    """What is counted and what is judged by.

    A `Corpus` says itself what is held out. Of other text every fifth sequence is (of fewer than
    five: the last one).
    """
    if isinstance(corpus, Corpus):
        return _parts_of(model, corpus)
    parts = batches(model, corpus)
    total = sum(len(part) for part in parts)
    if total < 2:
        raise InputError(
            "the corpus has one sequence, so nothing can be held out to judge by; cut it into at "
            "least two"
        )
    counted: list[Tensor] = []
    held_out: list[Tensor] = []
    start = 0
    for part in parts:
        index = torch.arange(start, start + len(part))
        out = index % EVERY == EVERY - 1 if total >= EVERY else index == total - 1
        counted += [part[~out]] if bool((~out).any()) else []
        held_out += [part[out]] if bool(out.any()) else []
        start += len(part)
    return Split(tuple(counted), tuple(held_out))


def _parts_of(model: Model, corpus: Corpus) -> Split:
    if corpus.info.vocabulary > model.config.d_vocab:
        raise TokenError(
            f"the corpus {corpus.info.name!r} has {corpus.info.vocabulary} tokens, but the model's "
            f"vocabulary has {model.config.d_vocab}; open it with the model's own tokenizer"
        )
    start = corpus.start_token
    return Split(
        counted=_windows(model, corpus.train, COUNTED_TOKENS, start),
        held_out=_windows(model, corpus.held_out, HELD_OUT_TOKENS, start),
    )


def _windows(
    model: Model, tokens: TokenShards, limit: int, start: int
) -> tuple[Int[Tensor, "_ _"], ...]:
    """Sequences of the model's context, each after a start token, spread evenly over the text."""
    length = model.config.n_ctx - 1
    there = tokens.count_windows(length) if length else 0
    if there == 0:
        raise InputError(
            "the corpus is too short for one sequence of the model's context "
            f"({length + 1} tokens); give more text"
        )
    count = max(1, min(there, limit // length))
    windows = tokens.windows([number * there // count for number in range(count)], length)
    return (torch.cat((torch.full((count, 1), start), windows), dim=1),)


def open_text(model: Model, name: str, *, progress: Progress = silent) -> Corpus:
    """A corpus by name, file or folder, read with the model's own tokenizer."""
    if model.tokenizer is None:
        raise TokenError(
            f"the model {model.name!r} has no tokenizer, so it cannot read text; "
            "give token ids to the function instead"
        )
    size = model.tokenizer.size
    return Corpus.open(name, vocabulary=size, tokenizer=model.tokenizer, progress=progress)
