"""Heads rotated at random in their stream: the null of the similarity of heads of two models.

With W = F R, F a frame of the stream and R = `root(W)`, what a head does (`head_functions`) is
linear in R_Q R_Kᵀ and R_V R_Oᵀ. So one set of random frames gives every head of a layer in random
directions, with its own singular values, in its own stream: the same embeddings, positions, norms
and biases.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.algebra.rotations import random_frames, root
from pathsum.circuits.alignment.head_functions import LayerHeads, Offsets, with_row

# Entries of drawn heads in memory at a time.
_NUMBERS_AT_ONCE = 1 << 23


@dataclass(frozen=True, eq=False)
class RotatedLayer:
    """The heads of a layer in random frames: n draws, whose frames all heads share."""

    heads: LayerHeads
    query: Float[Tensor, "n d r"]
    key: Float[Tensor, "n d r"]
    value: Float[Tensor, "n d r"]
    write: Float[Tensor, "n d r"]
    roots: tuple[Float[Tensor, "head r k"], ...]
    """Those of W_Q, W_K, W_V and W_O."""

    @cached_property
    def qk(self) -> Float[Tensor, "head r1 r"]:
        """R_Q R_Kᵀ; the last row, that of b_Q, has no frame."""
        query, key, _, _ = self.roots
        return with_row(query, self.heads.b_Q) @ key.mT

    @cached_property
    def ov(self) -> Float[Tensor, "head r r"]:
        """R_V R_Oᵀ."""
        _, _, value, write = self.roots
        return value @ write.mT

    def profiles(self, offsets: Offsets) -> Float[Tensor, "n head window"]:
        """Scores by offset, centered over offsets."""
        query, key, _, _ = self.roots

        def through(
            x: Float[Tensor, "row d1"],
            frames: Float[Tensor, "n d r"],
            roots: Float[Tensor, "head r k"],
            biases: Float[Tensor, "head k"],
        ) -> Float[Tensor, "n head row k"]:
            return (x[:, :-1] @ frames)[:, None] @ roots + x[:, -1:] * biases[:, None]

        return offsets.scores(
            through(offsets.queried, self.query, query, self.heads.b_Q),
            through(offsets.keyed, self.key, key, self.heads.b_K),
        )

    def squares(
        self, tokens: Float[Tensor, "d d"], logits: Float[Tensor, "d d"]
    ) -> tuple[Float[Tensor, "n head"], Float[Tensor, "n head"]]:
        """⟨f, f⟩ of QK, without its profile, and of OV."""
        mean = self.heads.mean + self.heads.shift
        queries = _with_constant(_framed(self.query, tokens + mean.outer(mean)), mean @ self.query)
        keys = _framed(self.key, tokens)
        mean = self.heads.mean
        values = _framed(self.value, tokens + mean.outer(mean))
        effects = _framed(self.write, logits)

        def square(left: Tensor, core: Tensor, right: Tensor) -> Float[Tensor, "n head"]:
            return ((left[:, None] @ core) * (core @ right[:, None])).sum((-2, -1))

        return square(queries, self.qk, keys), square(values, self.ov, effects)

    def products(
        self, other: LayerHeads, tokens: Float[Tensor, "d e"], logits: Float[Tensor, "d e"]
    ) -> tuple[Float[Tensor, "n head other"], Float[Tensor, "n head other"]]:
        """⟨f, g⟩ of QK, without profiles, and of OV, with the heads of another layer."""
        mean = self.heads.mean + self.heads.shift
        queries = tokens @ other.W_Q + mean[:, None] * other.mean_queries[:, None]
        values = tokens @ other.W_V + self.heads.mean[:, None] * other.mean_values[:, None]
        seen = _seen(self.query, queries)
        row = other.mean_queries[:, None].expand(len(seen), -1, -1, -1)
        content = torch.cat((seen, row), -2) @ _seen(self.key, tokens @ other.W_K).mT
        moved = _seen(self.value, values) @ _seen(self.write, logits @ other.W_O).mT
        return _contracted(self.qk, content), _contracted(self.ov, moved)


def rotated_layers(
    heads: LayerHeads, others: int, draws: int, generator: torch.Generator
) -> Iterator[RotatedLayer]:
    """The heads of a layer, rotated `draws` times, for products with `others` heads."""
    head, d, k = heads.W_Q.shape
    r = min(d, k)
    placed = 0 if heads.places is None else 4 * head * len(heads.places) * k
    at_once = max(1, _NUMBERS_AT_ONCE // max(placed, 4 * d * r, 4 * others * r * k))
    roots = tuple(map(root, (heads.W_Q, heads.W_K, heads.W_V, heads.W_O)))
    for start in range(0, draws, at_once):
        number = min(at_once, draws - start)
        frames = (random_frames(number, d, r, generator) for _ in range(4))
        yield RotatedLayer(heads, *frames, roots=roots)


def _framed(
    frames: Float[Tensor, "n d r"], between: Float[Tensor, "d d"]
) -> Float[Tensor, "n r r"]:
    return frames.mT @ (between @ frames)


def _with_constant(
    moments: Float[Tensor, "n r r"], means: Float[Tensor, "n r"]
) -> Float[Tensor, "n r1 r1"]:
    """Second moments of x and 1, from those of x and its means."""
    rows = torch.cat((moments, means[..., None]), -1)
    last = torch.cat((means, torch.ones_like(means[:, :1])), -1)
    return torch.cat((rows, last[:, None]), -2)


def _seen(
    frames: Float[Tensor, "n d r"], reads: Float[Tensor, "head d k"]
) -> Float[Tensor, "n head r k"]:
    """Fᵀ W for every draw and head, as one product."""
    head, d, k = reads.shape
    found = frames.mT @ reads.transpose(0, 1).reshape(d, head * k)
    return found.unflatten(-1, (head, k)).transpose(1, 2)


def _contracted(
    cores: Float[Tensor, "head i j"], between: Float[Tensor, "n other i j"]
) -> Float[Tensor, "n head other"]:
    return cores.flatten(1) @ between.flatten(2).mT
