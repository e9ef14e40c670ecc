"""Tokens in results: an id with its text, tokens with values, and which tokens are common."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pathsum.base import Column, Table, is_number, token_column
from pathsum.base.errors import InputError, TokenError
from pathsum.model import Model
from pathsum.text.token_pool import MINIMUM_COUNT

RARE = MINIMUM_COUNT
"""Tokens that training saw fewer times than this are hidden where counts are known."""


@dataclass(frozen=True, order=True)
class Token:
    """A token: its id, and its text with white space made visible."""

    id: int
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Scored:
    """A token and a number about it."""

    token: Token
    value: float

    def __str__(self) -> str:
        return f"{self.token} {self.value:+.2f}"


def token_of(model: Model, token: int) -> Token:
    """A token of a model, with its text."""
    return Token(int(token), model.token_text(int(token)))


def output_of(model: Model, output: int) -> Token:
    """An output of a model: a token, or a number where outputs are not tokens."""
    return Token(int(output), model.output_text(int(output)))


def find_token(model: Model, name: str | int) -> int:
    """The token id for a text, a text as tables print it, or a number.

    The visible form that tables print is understood (`·keep` is ` keep`). A text that is one token
    is that token; otherwise a number is an id. The error for a text of several tokens shows its
    pieces, and suggests the word with or without its leading space if that is one token.
    """
    if isinstance(name, int) or model.tokenizer is None:
        return model.token_id(name)
    meant = name.replace("·", " ").replace("⏎", "\n")
    if meant != name and (found := _one_token(model, meant)) is not None:
        return found
    try:
        return model.token_id(name)
    except TokenError as error:
        if is_number(name) and int(name) < model.config.d_vocab:
            return int(name)
        other = name.strip() if name != name.strip() else f" {name}"
        if _one_token(model, other) is not None:
            raise TokenError(f"{error}; {other!r} is one token") from None
        raise


def top_scored(
    model: Model, values: Float[Tensor, " vocab"], k: int, common: Bool[Tensor, " vocab"]
) -> tuple[Scored, ...]:
    """The k common tokens with the largest values, largest first."""
    values = values.masked_fill(~common.to(values.device), -torch.inf)
    best = values.topk(min(k, int(common.sum())))
    return scored(model, best.indices, best.values)


def scored(
    model: Model, tokens: Int[Tensor, " some"], values: Float[Tensor, " some"]
) -> tuple[Scored, ...]:
    """Tokens with their texts and values."""
    return tuple(
        Scored(token_of(model, token), value)
        for token, value in zip(tokens.tolist(), values.tolist(), strict=True)
    )


def paired_table(
    headings: tuple[str, str, str, str],
    left: Sequence[Scored],
    right: Sequence[Scored],
    title: str,
    note: str,
) -> Table:
    """Two lists of tokens with their values, side by side."""
    columns = tuple(
        Column(heading, "+.3f") if place % 2 else token_column(heading)
        for place, heading in enumerate(headings)
    )
    rows = tuple(
        (one.token.text, one.value, other.token.text, other.value)
        for one, other in zip(left, right, strict=True)
    )
    return Table(columns, rows, title=title, note=note)


def common_tokens(model: Model, rare: int = RARE) -> Bool[Tensor, " vocab"]:
    """A mask of tokens seen at least `rare` times in training; all where counts are unknown.

    Embeddings of barely trained tokens are close to their random initialization, and such tokens
    would fill the top of every table. Parts of characters, which have no text, are left out too.
    """
    common = model.token_pool(rare).require_common()
    if model.tokenizer is None or model.token_counts is None or rare <= 0:
        return common
    whole = common.clone()
    whole[list(model.tokenizer.fragments)] = False
    return whole if bool(whole.any()) else common


def hidden_note(common: Bool[Tensor, " vocab"], rare: int) -> str:
    """The note of a table that hides rare tokens."""
    hidden = int((~common).sum())
    if not hidden:
        return ""
    return f"{hidden} tokens seen fewer than {rare} times in training, or without text, are hidden"


def token_frequencies(model: Model) -> Float[Tensor, " vocab"]:
    """p(token) in training text, uniform where counts are unknown; float64, sums to 1."""
    counts = model.token_counts
    if counts is None or int(counts.sum()) == 0:
        vocab = model.config.d_vocab
        return torch.full((vocab,), 1.0 / vocab, dtype=torch.float64)
    return counts.cpu().double() / counts.sum().item()


def resolve_k(k: int | None, default: int, most: int, what: str) -> int:
    """k, checked against `most`; the default, capped at `most`, if k is None."""
    return min(default, most) if k is None else check_k(k, most, what)


def check_k(k: int, most: int, what: str) -> int:
    """k if it is between 1 and `most`, else InputError."""
    if isinstance(k, bool) or not 1 <= k <= most:
        raise InputError(
            f"k={k} {what} were requested, but there are {most}; choose from 1 to {most}"
        )
    return k


def joined(parts: Sequence[str]) -> str:
    """Remarks joined into one note, empty ones left out."""
    return "; ".join(part for part in parts if part)


def _one_token(model: Model, text: str) -> int | None:
    assert model.tokenizer is not None
    try:
        return model.tokenizer.id(text)
    except TokenError:
        return None
