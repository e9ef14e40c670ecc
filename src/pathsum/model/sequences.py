"""Token sequences of any origin: text, token ids, iterables of either, or a corpus.

    check_tokens    one tensor of ids, checked
    padded          sequences of different length as one tensor and their lengths
    token_batches   any of the above as checked batches, on which losses are measured
    split_corpus    the training part of a corpus, and the held-out part

Sequences of different length are padded on the right. If attention is causal, padding has no effect
on earlier positions, and means omit it (`lengths`); other models need sequences of one length.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from pathsum.base import Progress, silent
from pathsum.base.errors import InputError, NotExactError, TokenError
from pathsum.base.sentence import shorten
from pathsum.base.shapes import Tokens
from pathsum.model.config import Config
from pathsum.text import Corpus
from pathsum.text.shards import TokenShards

if TYPE_CHECKING:
    from pathsum.model.model import Model

    OneSequence: TypeAlias = str | Sequence[int] | Tensor
    TextOrTokens: TypeAlias = OneSequence | Iterable[OneSequence] | Corpus
else:
    # Items are checked when they are read, with better errors than their types could give.
    OneSequence = TextOrTokens = str | Tensor | Iterable[object] | Corpus
"""A text, token ids ([pos] or [n, pos]), an iterable of texts or of ids, or a corpus."""

TokenBatches: TypeAlias = list[Int[Tensor, "_ _"]]
"""Batches of token ids, [n, pos] each; their sizes and lengths may differ."""

EVERY = 5
"""One sequence in this many is held out, unless a corpus has its own held-out part."""
TRAIN_TOKENS = 8_000_000
"""The most tokens of a corpus's training part that are used, spread evenly over it."""
HELD_OUT_TOKENS = 400_000
"""The most tokens of its held-out part that are used."""


def require_values(tensor: Tensor, name: str) -> None:
    """Raise InputError for tensors that cannot be read number by number."""
    if tensor.layout is not torch.strided or tensor.device.type == "meta":
        kind = "without values" if tensor.device.type == "meta" else "a sparse tensor"
        raise InputError(f"{name} are {kind}; give a dense tensor that holds its numbers")


def check_tokens(config: Config, tokens: Tensor, longest: int | None = None) -> Tokens:
    """Token ids as [batch, pos]; raises TokenError if the model cannot read them.

    `longest` is the longest sequence allowed, by default the model's context.
    """
    require_values(tokens, "tokens")
    if tokens.numel() == 0:  # torch gives an empty list a floating-point dtype
        raise TokenError(
            f"the sequence is empty (tokens have shape {list(tokens.shape)}), so there is nothing "
            "to predict from; give at least one token"
        )
    if tokens.is_floating_point() or tokens.is_complex() or tokens.dtype == torch.bool:
        raise TokenError(f"tokens are {tokens.dtype}, but ids are whole numbers: use torch.long")
    if tokens.ndim not in (1, 2):
        raise TokenError(f"tokens have shape {list(tokens.shape)}; use [pos] or [batch, pos]")
    batch = tokens.long()[None] if tokens.ndim == 1 else tokens.long()
    longest = config.n_ctx if longest is None else longest
    if batch.shape[1] > longest:
        raise TokenError(
            f"the sequence has {batch.shape[1]} tokens, but the model knows positions for n_ctx="
            f"{config.n_ctx}; shorten it to {config.n_ctx} tokens"
        )
    low, high = int(batch.min()), int(batch.max())
    if low < 0 or high >= config.d_vocab:
        token = low if low < 0 else high
        raise TokenError(
            f"token id {token} is out of range: the vocabulary has {config.d_vocab} tokens, "
            f"so ids go from 0 to {config.d_vocab - 1}"
        )
    return batch


def padded(
    model: "Model", text: OneSequence | Sequence[OneSequence]
) -> tuple[Tokens, Int[Tensor, " batch"]]:
    """A text, ids, or a list of either as one tensor, padded on the right, and the lengths."""
    if not isinstance(text, Tensor | str) and isinstance(text, np.ndarray):
        text = torch.from_numpy(text) if np.issubdtype(text.dtype, np.number) else text.tolist()
    if isinstance(text, Tensor):
        tokens = check_tokens(model.config, text).to(model.weights.device)
        return tokens, torch.full((len(tokens),), tokens.shape[1], device=tokens.device)
    rows = [row for part, _ in _parts(model, text, windows=False) for row in part]
    if not rows:
        raise TokenError("there are no sequences; give at least one text or list of token ids")
    lengths = torch.tensor([len(row) for row in rows], device=model.weights.device)
    if not model.config.causal and len(lengths.unique()) > 1:
        raise TokenError(
            f"the sequences have {int(lengths.min())} to {int(lengths.max())} tokens, but a model "
            "with causal=False attends to padding; run sequences of one length at a time"
        )
    # The id used for padding does not matter.
    tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    return tokens.to(model.weights.device), lengths


def require_tokens_out(model: "Model", subject: str) -> None:
    """Raise NotExactError if a model's outputs are not its tokens."""
    config = model.config
    if not config.predicts_tokens:
        raise NotExactError(
            f"{subject} compares outputs with tokens, but the model {model.name!r} has "
            f"{config.d_vocab_out} outputs and {config.d_vocab} tokens, which are not the same "
            "things; where targets can be given, give targets"
        )


def require_causal(model: "Model", subject: str) -> None:
    """Raise NotExactError if a model attends to later positions."""
    if not model.config.causal:
        raise NotExactError(
            f"{subject} assumes causal attention, but the model {model.name!r} attends to later "
            "tokens too (causal=False); traces, path sums, scores, patches and circuits do not "
            "assume it"
        )


def token_batches(
    model: "Model", text: Any, first: int = 0, *, targets_given: bool = False
) -> TokenBatches:
    """Texts or token ids as batches of one length each, on the model's device, to predict on.

    Sequences that are given one by one are grouped by length; a [n, pos] tensor stays a batch. A
    text longer than the context is cut into windows, each after the start token; of a corpus, the
    held-out part is used. Every sequence predicts something from position `first` on:
    its next token, unless targets are given.
    """
    if not targets_given:
        require_tokens_out(model, "predicting the next token")
        require_causal(model, "predicting the next token")
    if first < 0:
        raise InputError(f"from_position={first} is negative; use 0 or more")
    groups: dict[int, TokenBatches] = {}
    batches: TokenBatches = []
    for part, is_batch in _parts(model, text, windows=True):
        _check_predicts(part.shape[1], first, targets_given)
        if is_batch:
            batches.append(part)
        else:
            groups.setdefault(part.shape[1], []).append(part)
    batches = [*(torch.cat(group) for group in groups.values()), *batches]
    if not batches:
        raise InputError(
            "there are no sequences to measure on; give at least one text, or token ids as [pos] "
            "or [n, pos]"
        )
    return [batch.to(model.weights.device) for batch in batches]


def require_text(model: "Model", text: TextOrTokens | None) -> TextOrTokens:
    """The text given, or else the held-out text that comes with the model."""
    if text is not None:
        return text
    if model.held_out is None:
        raise InputError(
            f"the model {model.name!r} comes with no held-out text to measure on; give a text, "
            "token ids or a corpus"
        )
    return model.held_out


def _parts(
    model: "Model", text: Any, windows: bool, longest: int | None = None
) -> list[tuple[Int[Tensor, "_ _"], bool]]:
    """Checked [n, pos] tensors on the CPU, in the order given, and whether each is a batch."""
    if isinstance(text, Corpus):
        return [(_windows(model, text, text.held_out, HELD_OUT_TOKENS), True)]
    is_one = isinstance(text, str | Tensor)
    if isinstance(text, bytes | bytearray | memoryview):
        raise InputError(f"{bytes(text[:20])!r} is bytes; decode it to text, or give token ids")
    is_many = isinstance(text, Iterable) and not isinstance(text, Mapping)
    if not is_one and (not is_many or getattr(text, "ndim", 1) == 0):
        raise _not_tokens(text)
    items = [text] if is_one else list(text)
    if items and all(isinstance(item, int | float) for item in items):
        items = [items]
    parts: list[tuple[Tensor, bool]] = []
    for item in items:
        if isinstance(item, str):
            ids = text_windows(model, item) if windows else torch.tensor(model.encode(item))
        else:
            try:
                ids = torch.as_tensor(item)
            except (OverflowError, RuntimeError, TypeError, ValueError) as error:
                raise _not_tokens(item) from error
        tokens = check_tokens(model.config, ids, longest).cpu()
        parts.append((tokens, ids.ndim == 2 and not isinstance(item, str)))
    return parts


def _not_tokens(value: object) -> InputError:
    return InputError(
        f"{shorten(repr(value), 60)} is neither text nor token ids; give a text, ids as [pos] or "
        "[n, pos], a list of texts or of ids, or a Corpus"
    )


def text_windows(model: "Model", text: str) -> Tensor:
    """A text as [n, pos]: windows of the context, each after the start token, whole ones only."""
    ids = model.encode(text)
    start = [] if model.config.start_token is None else ids[:1]
    body = ids[len(start) :]
    width = min(model.config.n_ctx - len(start), len(body))
    if width == 0:
        return torch.tensor([ids])
    return torch.tensor(
        [start + body[at : at + width] for at in range(0, len(body) - width + 1, width)]
    )


def _check_predicts(length: int, first: int, targets_given: bool) -> None:
    if length < 2:
        raise InputError(
            "a sequence of one token has no next token to predict; give at least two tokens per "
            "sequence"
        )
    # The last position has a target only if one is given.
    last = length - 1 if targets_given else length - 2
    if first > last:
        raise InputError(
            f"a sequence of {length} tokens predicts nothing from position {first} on; use "
            f"from_position={last} or less"
        )


@dataclass(frozen=True, eq=False)
class Split:
    """A corpus in two parts: one to count or train on, and a held-out one to test on."""

    train: tuple[Int[Tensor, "_ _"], ...]
    held_out: tuple[Int[Tensor, "_ _"], ...]


def split_corpus(model: "Model", corpus: TextOrTokens) -> Split:
    """Split a corpus into a training part and a held-out part.

    A `Corpus` has its own held-out part. For other sequences, every fifth is held out (or the last
    one of fewer than five). Sequences may be longer than the model's context.
    """
    if isinstance(corpus, Corpus):
        return Split(
            train=(_windows(model, corpus, corpus.train, TRAIN_TOKENS),),
            held_out=(_windows(model, corpus, corpus.held_out, HELD_OUT_TOKENS),),
        )
    unlimited = torch.iinfo(torch.int64).max
    parts = [part for part, _ in _parts(model, corpus, windows=True, longest=unlimited)]
    total = sum(len(part) for part in parts)
    if total < 2:
        size = "is empty" if total == 0 else "has one sequence"
        raise InputError(
            f"the corpus {size}, so nothing can be held out to test on; give at least two sequences"
        )
    train: list[Tensor] = []
    held_out: list[Tensor] = []
    start = 0
    for part in parts:
        index = torch.arange(start, start + len(part))
        is_held_out = index % EVERY == EVERY - 1 if total >= EVERY else index == total - 1
        train += [part[~is_held_out]] if bool((~is_held_out).any()) else []
        held_out += [part[is_held_out]] if bool(is_held_out.any()) else []
        start += len(part)
    return Split(tuple(train), tuple(held_out))


def _windows(model: "Model", corpus: Corpus, tokens: TokenShards, limit: int) -> Int[Tensor, "_ _"]:
    """Sequences of the model's context, each after a start token, spread evenly over the text."""
    if corpus.info.vocabulary > model.config.d_vocab:
        raise TokenError(
            f"the corpus {corpus.info.name!r} has {corpus.info.vocabulary} tokens, but the model's "
            f"vocabulary has {model.config.d_vocab}; open it with the model's own tokenizer"
        )
    length = model.config.n_ctx
    windows = corpus.sequences(tokens, max(1, limit // max(1, length - 1)), length)
    if len(windows) == 0:
        raise InputError(
            "the corpus is too short for one sequence of the model's context "
            f"({length} tokens); give more text"
        )
    return windows


def open_text(model: "Model", name: str, *, progress: Progress = silent) -> Corpus:
    """A corpus by name, file or folder, read with the model's own tokenizer."""
    if model.tokenizer is None:
        raise TokenError(
            f"the model {model.name!r} has no tokenizer, so it cannot read text; "
            "give token ids instead"
        )
    size = model.tokenizer.size
    return Corpus.open(name, vocabulary=size, tokenizer=model.tokenizer, progress=progress)
