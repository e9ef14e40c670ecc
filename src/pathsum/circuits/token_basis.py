"""The token basis: tokens in results, and circuits between tokens.

Two maps of `pathsum.model.folding` turn a circuit of the stream into one between tokens, without
forming anything larger than vocabulary × width of the circuit:

    embed_through(layer, W)     W_E as the layer reads it, times a read       [vocab, k]
    unembed_through(W)          a write, times W_U centered over the vocabulary  [k, vocab]

A soft cap is not linear, so a circuit's entries are exact terms of scores and logits before the
cap. Results carry a note about that (`score_cap_note`, `logit_cap_note`).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import SupportsIndex

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pathsum.algebra.spectrum import remove_mean
from pathsum.base import (
    ARROW,
    LOGITS,
    Column,
    HeadId,
    HeadName,
    Side,
    Site,
    Source,
    Table,
    is_number,
    token_column,
)
from pathsum.base.errors import HeadError, NotExactError, TokenError
from pathsum.base.options import parse_count
from pathsum.model import Config, Model, Path
from pathsum.model.folding import ROWS, fold_read, read_scales, token_basis_note
from pathsum.model.weights import Weights


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


def find_token(model: Model, name: str | SupportsIndex) -> int:
    """The token id for a text, a text as tables print it, or a number.

    The visible form of tables is accepted (`·keep` is ` keep`). A text that is one token is that
    token; otherwise a number is an id. The error for a text of several tokens lists its pieces, and
    suggests the word with or without its leading space if that is one token.
    """
    if not isinstance(name, str) or model.tokenizer is None:
        return model.token_id(name)
    text = name.replace("·", " ").replace("⏎", "\n")
    if text != name and (token := _single_token(model, text)) is not None:
        return token
    try:
        return model.token_id(name)
    except TokenError as error:
        if is_number(name) and int(name) < model.config.d_vocab:
            return int(name)
        variant = name.strip() if name != name.strip() else f" {name}"
        if _single_token(model, variant) is not None:
            raise TokenError(f"{error}; {variant!r} is one token") from None
        raise


def top_scored(
    model: Model,
    values: Float[Tensor, " vocab"],
    k: int,
    common: Bool[Tensor, " vocab"],
    name: Callable[[Model, int], Token] = token_of,
) -> tuple[Scored, ...]:
    """The k common tokens with the largest values, largest first; outputs by `output_of`."""
    values = values.masked_fill(~common.to(values.device), -torch.inf)
    top = values.topk(min(k, int(common.sum())))
    pairs = zip(top.indices.tolist(), top.values.tolist(), strict=True)
    return tuple(Scored(name(model, token), value) for token, value in pairs)


def paired_table(
    headings: tuple[str, str, str, str],
    left: Sequence[Scored],
    right: Sequence[Scored],
    title: str,
    note: str,
) -> Table:
    """Two lists of tokens with their values, side by side."""
    columns = tuple(
        Column(heading, "+.3f") if index % 2 else token_column(heading)
        for index, heading in enumerate(headings)
    )
    rows = tuple(
        (a.token.text, a.value, b.token.text, b.value) for a, b in zip(left, right, strict=True)
    )
    return Table(columns, rows, title=title, note=note)


def common_tokens(model: Model) -> Bool[Tensor, " vocab"]:
    """A mask of the tokens that tables show: `TokenPool.in_tables`, all where counts are unknown.

    Embeddings of barely trained tokens are close to their random initialization, and such tokens
    would fill the top of every table. Parts of characters, which have no text, are left out too.
    """
    common = model.token_pool().in_tables
    if model.tokenizer is None or model.token_counts is None:
        return common
    with_text = common.clone()
    with_text[list(model.tokenizer.fragments)] = False
    return with_text if bool(with_text.any()) else common


def hidden_note(model: Model, common: Bool[Tensor, " vocab"]) -> str:
    """The note of a table that hides rare tokens."""
    hidden, rare = int((~common).sum()), model.token_pool().minimum_count
    if not hidden:
        return ""
    return f"{hidden} tokens seen fewer than {rare} times in training, or without text, are hidden"


def token_frequencies(model: Model) -> Float[Tensor, " vocab"]:
    """p(token) in training text, uniform where counts are unknown; float64, sums to 1."""
    counts = model.token_counts
    if counts is None or int(counts.sum()) == 0:
        counts = torch.ones(model.config.d_vocab)
    return counts.cpu().double() / counts.sum().item()


def resolve_k(k: int | None, default: int, most: int, what: str) -> int:
    """k, checked against `most`; the default, capped at `most`, if k is None."""
    return min(default, most) if k is None else parse_count(k, what, maximum=most)


def join_notes(notes: Iterable[str]) -> str:
    """One note from several, without empty ones."""
    return "; ".join(note for note in notes if note)


def _single_token(model: Model, text: str) -> int | None:
    assert model.tokenizer is not None
    try:
        return model.tokenizer.id(text)
    except TokenError:
        return None


TOKENS = 4096
"""Tokens per block in products over the vocabulary, so that a block stays in cache."""


def token_product(weights: Weights, layer: int) -> Float[Tensor, "d d"]:
    """W_U W_E, the d × d product that the token-basis spectra of all heads of a depth share.

    The nonzero eigenvalues of `W_E W_V W_O W_U` are those of `W_O (W_U W_E) W_V`, which is
    d_head × d_head. W_U is centered and has the final normalization folded in; W_E is as `layer`
    reads it. Computed in blocks of the vocabulary.
    """
    W_U, config = weights.W_U, weights.config
    mean = W_U.mean(-1, keepdim=True)
    product = W_U.new_zeros(config.d_model, config.d_model)
    for block, rows in embedding_blocks(weights, layer):
        product.addmm_(W_U[:, block] - mean, rows)
    product = fold_read(config.norm, product, weights.ln_f_w)
    # A folded read maps the ones-vector to 0.
    return remove_mean(product, config.norm == "layer")


def embedding_blocks(weights: Weights, layer: int) -> Iterator[tuple[slice, Float[Tensor, "n d"]]]:
    """Embeddings times the scales with which a layer reads them, some tokens at a time."""
    W_E, scales = weights.W_E, read_scales(weights, layer)
    for start in range(0, len(W_E), TOKENS):
        block = slice(start, start + TOKENS)
        yield block, W_E[block] if scales is None else W_E[block] * scales[block, None]


class TokenMoments:
    """Sums over the vocabulary that all heads of a depth share, computed on first use.

    Layer 0 reads normalized embeddings, every deeper layer the same plain ones.
    """

    def __init__(self, model: Model, *, first_layer: bool) -> None:
        self.model, self.layer = model, 0 if first_layer else 1

    @cached_property
    def frequencies(self) -> Float[Tensor, " vocab"]:
        """The frequency of each token."""
        return token_frequencies(self.model).to(self.model.weights.device)

    @cached_property
    def scales(self) -> Float[Tensor, " ctx"]:
        """The normalization scale of each position, on average over tokens."""
        return position_scales(self.model, self.layer)

    @cached_property
    def mean(self) -> Float[Tensor, " d"]:
        """Σ p(t) e(t) over tokens, e as read."""
        p, blocks = self.frequencies, embedding_blocks(self.model.weights, self.layer)
        return torch.stack([p[block] @ rows.to(p) for block, rows in blocks]).sum(0)

    @cached_property
    def covariance(self) -> Float[Tensor, "d d"]:
        """The covariance of embeddings over tokens, as read."""
        # The mean is removed first: it may be much larger than the differences between tokens.
        mean = self.mean
        total = mean.new_zeros(len(mean), len(mean))
        for block, rows in embedding_blocks(self.model.weights, self.layer):
            half = (rows - mean.to(rows)) * self.frequencies[block].sqrt().to(rows)[:, None]
            total += half.T @ half
        return total


def position_scales(model: Model, layer: int) -> Float[Tensor, " ctx"]:
    """The mean over tokens of the scale by which layer 0 normalizes each position."""
    config = model.config
    W_pos = model.weights.W_pos
    assert W_pos is not None
    if config.norm == "none" or layer > 0:
        return W_pos.new_ones(len(W_pos))
    centering = config.norm == "layer"
    positions = remove_mean(W_pos, centering)
    p = token_frequencies(model).to(positions)
    total = positions.new_zeros(len(positions))
    for start in range(0, len(p), ROWS):
        tokens = remove_mean(model.weights.W_E[start : start + ROWS], centering)
        # |t + p|² from one product, rather than all sums.
        square = tokens.square().sum(-1)[:, None] + positions.square().sum(-1)
        square = square + 2 * tokens @ positions.T
        scale = torch.rsqrt(square.clamp(min=0) / positions.shape[1] + config.norm_eps)
        total += p[start : start + ROWS] @ scale
    return total


def as_path(model: Model, circuit: HeadName | Path) -> Path:
    """A head or a virtual head of this model, as a path from the embedding."""
    if not isinstance(circuit, Path):
        return Path("embed", (model.head(circuit).id,))
    circuit.check_in(model)
    if circuit.source.kind != "embed" or not circuit.heads:
        raise HeadError(
            f"{circuit} is not a head or a virtual head: it begins at {circuit.source} and goes "
            f"through {circuit.order} heads; use a path from 'embed' through at least one head"
        )
    return circuit


def circuit_label(path: Path) -> str:
    """`L1H4`, a `HeadId`, or `L0H7→L1H4` for a virtual head."""
    return path.heads[0] if path.order == 1 else ARROW.join(path.heads)


def basis_note(model: Model, path: Path) -> str:
    """A note on the terms that the full OV of a head or a virtual head omits."""
    depth = token_basis_note(model.weights, path.heads[-1].layer)
    return join_notes((depth, logit_cap_note(model.config)))


def require_heads(model: Model) -> tuple[HeadId, ...]:
    """All heads of a model, or an error if it has none."""
    if model.config.n_layers == 0:
        raise HeadError(
            f"the model {model.name!r} has no layers, so it has no heads; use `bigram` for "
            "its direct path"
        )
    return model.config.every_head


def score_cap_note(config: Config) -> str:
    """A note that scores from weights are those before the cap, or "" without one."""
    cap = config.score_cap
    return "" if cap is None else f"scores before the cap (±{cap:g})"


def logit_cap_note(config: Config) -> str:
    """A note that logits from weights are those before the cap, or "" without one."""
    cap = config.logit_cap
    return "" if cap is None else f"logits before the cap (±{cap:g})"


def require_logit_edges(model: Model, what: str) -> None:
    """Raise NotExactError if an edit of the model replaced an edge from embeddings to logits."""
    _require_edges(model, what, lambda edge: edge.reader == LOGITS or edge.side is Side.V)


def require_score_edges(model: Model, what: str) -> None:
    """Raise NotExactError if an edit replaced a pattern, or what queries or keys see of tokens."""
    if model.weights.edited_patterns:
        heads = ", ".join(sorted(model.weights.edited_patterns))
        raise NotExactError(
            f"{what} cannot be read from the weights of this edited model: {heads} attends by a "
            "given pattern, not by QK; use the model without that edit"
        )
    _require_edges(model, what, lambda edge: edge.side is not Side.V)


def _require_edges(model: Model, what: str, needed: Callable[[Site], bool]) -> None:
    """Raise NotExactError if an edit of the model replaced an edge of the token basis."""
    for edge in model.weights.edited_edges:
        ends = edge.writer == Source("embed") or edge.reader == LOGITS
        to_mlp = isinstance(edge.reader, Source) and edge.reader.kind == "mlp"
        if ends and needed(edge) and not to_mlp:
            raise NotExactError(
                f"{what} cannot be read from the weights of this edited model: {edge} carries the "
                "same for every text; use the model without that edit"
            )
