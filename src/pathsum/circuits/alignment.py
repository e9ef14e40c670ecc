"""Alignment: which heads of two models do the same, by what they do to tokens and positions.

Two models share neither a basis of the stream nor an order of their heads, but they share tokens
and offsets, so heads are compared there. A head's QK is the score it gives, as a function of
destination token, source token and offset (position and content, row-centered, since a softmax
compares sources); its OV is what each source token does to each logit. The similarity of two heads
is the cosine between such functions:

    ⟨f, g⟩ / (‖f‖ ‖g‖),     ⟨f, g⟩ = E[f(d, s, Δ) g(d, s, Δ)],  tokens as common as in training

and heads are matched one to one so that the sum of (QK + OV)/2 is largest. Chance: the same with
the other model's tokens and offsets in a random order, and the best match taken as here.
"""

from dataclasses import dataclass
from typing import TypeAlias

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pathsum.algebra.assignment import best_assignment
from pathsum.circuits.positional import WINDOW, positional
from pathsum.circuits.tokens.qk import token_keys, token_queries
from pathsum.circuits.tokens.token import token_frequencies
from pathsum.circuits.tokens.token_basis import (
    require_heads,
    require_logit_edges,
    require_score_edges,
)
from pathsum.errors import InputError, NotExactError
from pathsum.model import HeadId, Model
from pathsum.model.folding import embed_through, unembed_through
from pathsum.result import Column, Progress, Record, Table, silent, text_column
from pathsum.result.p_value import counted_p

DRAWS = 50
# A squared norm this small relative to the largest is rounding.
IDLE = 1e-12

_Norms: TypeAlias = tuple[Float[Tensor, " head"], Float[Tensor, " head"]]
"""⟨f, f⟩ of the QK and of the OV of every head."""


@dataclass(frozen=True)
class HeadMatch:
    """Two matched heads; `null` is the mean similarity of the best match by chance, with its p."""

    left: HeadId
    right: HeadId
    score: float
    qk: float
    ov: float
    null: float
    p: float


@dataclass(frozen=True, eq=False)
class HeadAlignment(Record, kind="head-alignment"):
    """Similarities of all pairs of heads, in [−1, 1], and the best one-to-one matching."""

    left: str
    right: str
    left_heads: tuple[HeadId, ...]
    right_heads: tuple[HeadId, ...]
    similarity: Float[Tensor, "left right"]
    qk: Float[Tensor, "left right"]
    ov: Float[Tensor, "left right"]
    matches: tuple[HeadMatch, ...]
    draws: int

    @property
    def score(self) -> float:
        """The mean similarity of matched heads."""
        return sum(match.score for match in self.matches) / len(self.matches)

    def to_table(self) -> Table:
        """One row per matched pair, most similar first."""
        columns = (
            *(text_column(self.left), text_column(self.right), Column("similarity", "+.3f")),
            *(Column("QK", "+.3f"), Column("OV", "+.3f"), Column("chance", "+.3f")),
            counted_p(self.draws),
        )
        ranked = sorted(self.matches, key=lambda match: -match.score)
        rows = tuple((str(m.left), str(m.right), m.score, m.qk, m.ov, m.null, m.p) for m in ranked)
        note = (
            "cosines of scores (QK) and of effects on logits (OV), between tokens and offsets; "
            f"chance: the best match with tokens and offsets in random order, {self.draws} draws; "
            "smooth offset profiles agree more often than that, so p is too small for such heads"
        )
        return Table(columns, rows, f"heads of {self.left} and {self.right}", note)


@torch.no_grad()
def align_heads(
    left: Model, right: Model, *, draws: int = DRAWS, seed: int = 0, progress: Progress = silent
) -> HeadAlignment:
    """Match the heads of two models that read the same tokens.

    >>> from pathsum.model import construct
    >>> found = align_heads(construct.induction(), construct.induction())
    >>> f"{found.score:.3f}", [str(match.right) for match in found.matches]
    ('1.000', ['L0H0', 'L0H1', 'L1H0', 'L1H1'])

    Nothing here depends on a basis of either stream, on the order of heads, or on a constant added
    to all logits. Layers above the first are compared by their direct path; a head that works by
    composition alone has little of one.
    """
    _check(left, right)
    generator = torch.Generator().manual_seed(seed)
    weights = token_frequencies(left)
    window = min(WINDOW, max(1, min(left.config.n_ctx, right.config.n_ctx) // 2))
    one, other = _measured(_features(left, window), weights), _features(right, window)
    norms = _norms(one)
    qk, ov = _similarities(one, norms, _measured(other, weights))
    similarity = (qk + ov) / 2
    chance: list[Tensor] = []
    for draw in range(draws):
        progress(draw, draws, "matching by chance")
        both = _similarities(one, norms, _measured(_shuffled(other, generator), weights))
        chance.append(((both[0] + both[1]) / 2).amax(1))
    progress(draws, draws, "matching by chance")
    best_by_chance = torch.stack(chance)
    rows, columns = best_assignment(similarity)
    matches = tuple(
        HeadMatch(
            left=left.heads[row].id,
            right=right.heads[column].id,
            score=float(similarity[row, column]),
            qk=float(qk[row, column]),
            ov=float(ov[row, column]),
            null=float(best_by_chance[:, row].mean()),
            p=float((1 + (best_by_chance[:, row] >= similarity[row, column]).sum()) / (1 + draws)),
        )
        for row, column in zip(rows.tolist(), columns.tolist(), strict=True)
    )
    return HeadAlignment(
        left=left.name,
        right=right.name,
        left_heads=tuple(head.id for head in left.heads),
        right_heads=tuple(head.id for head in right.heads),
        similarity=similarity,
        qk=qk,
        ov=ov,
        matches=matches,
        draws=draws,
    )


@dataclass(frozen=True, eq=False)
class _Layer:
    """The heads of a layer: queries, keys, reads and effects by token; scores by offset."""

    queries: Float[Tensor, "head vocab k"]
    keys: Float[Tensor, "head vocab k"]
    reads: Float[Tensor, "head vocab k"]
    effects: Float[Tensor, "head k vocab"]
    offsets: Float[Tensor, "head window"]


@dataclass(frozen=True, eq=False)
class _Measured:
    """A layer whose plain products are expectations: tokens weighted by √p, keys centered.

    Heads are side by side, [vocab, head · k], so that all pairs are one matrix product.
    """

    queries: Float[Tensor, "vocab hk"]
    keys: Float[Tensor, "vocab hk"]
    reads: Float[Tensor, "vocab hk"]
    effects: Float[Tensor, "vocab hk"]
    offsets: Float[Tensor, "head window"]


def _features(model: Model, window: int) -> list[_Layer]:
    found: list[_Layer] = []
    scale = model.config.score_scale
    for layer in range(model.config.n_layers):
        heads = [head for head in model.heads if head.id.layer == layer]
        offsets = torch.zeros(len(heads), window, dtype=torch.float64)
        if model.config.positions != "none":
            profiles = positional(model, *(head.id for head in heads), window=window).heads
            offsets = torch.stack([profile.score.double().cpu() for profile in profiles])
        found.append(
            _Layer(
                queries=torch.stack([token_queries(head) * scale for head in heads]),
                keys=torch.stack([token_keys(head) for head in heads]),
                reads=torch.stack(
                    [embed_through(model.weights, layer, head.W_V) for head in heads]
                ),
                effects=torch.stack([unembed_through(model.weights, head.W_O) for head in heads]),
                offsets=offsets,
            )
        )
    return found


def _shuffled(layers: list[_Layer], generator: torch.Generator) -> list[_Layer]:
    """The same heads with tokens and offsets shuffled."""
    vocab, window = layers[0].queries.shape[1], layers[0].offsets.shape[1]
    tokens = torch.randperm(vocab, generator=generator)
    places = torch.randperm(window, generator=generator)
    return [
        _Layer(
            queries=layer.queries[:, tokens],
            keys=layer.keys[:, tokens],
            reads=layer.reads[:, tokens],
            effects=layer.effects[..., tokens],
            offsets=layer.offsets[:, places],
        )
        for layer in layers
    ]


def _similarities(
    left: list[_Measured], left_norms: _Norms, right: list[_Measured]
) -> tuple[Float[Tensor, "left right"], Float[Tensor, "left right"]]:
    """Cosines of QK and of OV for every pair of heads."""
    pairs = [[_products(a, b) for b in right] for a in left]
    qk = torch.cat([torch.cat([pair[0] for pair in row], 1) for row in pairs])
    ov = torch.cat([torch.cat([pair[1] for pair in row], 1) for row in pairs])
    right_norms = _norms(right)
    return _cosine(qk, left_norms[0], right_norms[0]), _cosine(ov, left_norms[1], right_norms[1])


def _measured(layers: list[_Layer], weights: Float[Tensor, " vocab"]) -> list[_Measured]:
    found: list[_Measured] = []
    for layer in layers:
        root = weights.sqrt().to(layer.queries)[:, None]
        keys = _side_by_side(layer.keys)
        keys = keys - (root.square() * keys).sum(0)
        found.append(
            _Measured(
                queries=_side_by_side(layer.queries) * root,
                keys=keys * root,
                reads=_side_by_side(layer.reads) * root,
                effects=_side_by_side(layer.effects.mT) / layer.effects.shape[-1] ** 0.5,
                offsets=layer.offsets / layer.offsets.shape[-1] ** 0.5,
            )
        )
    return found


def _side_by_side(heads: Float[Tensor, "head vocab k"]) -> Float[Tensor, "vocab hk"]:
    return heads.transpose(0, 1).flatten(1)


def _products(a: _Measured, b: _Measured) -> tuple[Tensor, Tensor]:
    """⟨f, g⟩ of the QK and of the OV of every pair of heads, from d_head × d_head products."""
    heads = len(a.offsets), len(b.offsets)

    def summed(first: Tensor, second: Tensor) -> Tensor:
        blocks = (first * second).view(heads[0], -1, heads[1], second.shape[1] // heads[1])
        return blocks.sum((1, 3)).double().cpu()

    content = summed(a.queries.T @ b.queries, a.keys.T @ b.keys)
    moved = summed(a.reads.T @ b.reads, a.effects.T @ b.effects)
    return content + a.offsets @ b.offsets.T, moved


def _norms(layers: list[_Measured]) -> _Norms:
    """⟨f, f⟩ of every head: `_products` with itself, without those of different heads."""
    qk = [
        (_squares(layer.queries, layer) * _squares(layer.keys, layer)).sum((1, 2)).double().cpu()
        + layer.offsets.square().sum(1)
        for layer in layers
    ]
    ov = [
        (_squares(layer.reads, layer) * _squares(layer.effects, layer)).sum((1, 2)).double().cpu()
        for layer in layers
    ]
    return torch.cat(qk), torch.cat(ov)


def _squares(x: Float[Tensor, "vocab hk"], layer: _Measured) -> Float[Tensor, "head k k"]:
    """xᵀ x of each head."""
    each = x.unflatten(1, (len(layer.offsets), -1)).transpose(0, 1)
    return each.mT @ each


def _cosine(
    products: Float[Tensor, "left right"],
    left: Float[Tensor, " left"],
    right: Float[Tensor, " right"],
) -> Float[Tensor, "left right"]:
    size = (left[:, None] * right[None, :]).clamp(min=0).sqrt()
    idle_left, idle_right = _idle(left)[:, None], _idle(right)[None, :]
    found = torch.where(idle_left | idle_right, torch.zeros_like(products), products / size)
    # Two circuits that are zero are equal; one that is zero is similar to no other.
    return torch.where(idle_left & idle_right, torch.ones_like(found), found).clamp(-1, 1)


def _idle(squares: Float[Tensor, " head"]) -> Bool[Tensor, " head"]:
    """Which circuits are zero up to rounding."""
    return squares <= IDLE * squares.max().clamp(min=0)


def can_align(left: Model, right: Model) -> bool:
    """Whether `align_heads` can compare these two models."""
    try:
        _check(left, right)
    except (InputError, NotExactError):
        return False
    return True


def _check(left: Model, right: Model) -> None:
    for model in (left, right):
        require_heads(model)
        require_score_edges(model, "what heads attend to")
        require_logit_edges(model, "what heads do to logits")
    if left.config.d_vocab != right.config.d_vocab or _tokens_differ(left, right):
        raise InputError(
            f"the heads of {left.name!r} and {right.name!r} cannot be compared: they read "
            f"different tokens ({left.config.d_vocab} and {right.config.d_vocab} of them); use two "
            "models with the same tokenizer"
        )


def _tokens_differ(left: Model, right: Model) -> bool:
    if left.tokenizer is None or right.tokenizer is None:
        return False
    return left.tokenizer.to_json() != right.tokenizer.to_json()
