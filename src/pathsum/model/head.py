"""Head: an attention head and its QK and OV circuits, from weights alone; paths of several heads.

`Path.ov`, `Path.full_ov` and `Path.pattern` call `path_ov`, `path_full_ov` and `path_pattern`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.algebra import Factored
from pathsum.base import HeadId, Path, Source, find_head
from pathsum.base.errors import NotExactError, PathError
from pathsum.base.options import checked_methods
from pathsum.base.shapes import HeadPattern
from pathsum.base.site import LOGITS, Side, Site
from pathsum.model.config import Config
from pathsum.model.folding import (
    centered_unembedding,
    embed_through,
    embeddings_as_read,
    fold_read,
    token_basis_note,
    unembed_through,
    with_qk_gain,
)
from pathsum.model.rotary import rotate
from pathsum.model.weights import LayerWeights, Weights, kv_head

if TYPE_CHECKING:
    from pathsum.model.model import Model
    from pathsum.model.trace import Trace


@checked_methods
@dataclass(frozen=True, eq=False)
class Head:
    """One head of a model; obtained by `model.head("L1H4")` or `model.head(1, 4)`.

    The gain and centering of the preceding normalization are folded into the reads, so `ov` and
    `qk` act on the residual stream itself. The normalization scale (one number per position) is
    not a weight and is omitted.

    Example:
        >>> import pathsum as ps
        >>> head = ps.load("hand-built-induction").head("L1H0")
        >>> head.label, list(head.ov.shape), list(head.full_ov.shape)  # of the stream, of tokens
        ('L1H0', [145, 145], [27, 27])
    """

    model: "Model"
    id: HeadId

    def __repr__(self) -> str:
        return f"Head({self.model.name!r}, {self.id})"

    @property
    def label(self) -> HeadId:
        """Its name, `L1H4`."""
        return self.id

    @property
    def W_Q(self) -> Float[Tensor, "d k"]:
        """The query weights, normalization folded in."""
        layer, head = self._layer, self.id.head
        return with_qk_gain(self._read(layer.W_Q[head]), layer.q_norm_w, head)

    @property
    def W_K(self) -> Float[Tensor, "d k"]:
        """The key weights, normalization folded in (shared within a group of K/V heads)."""
        layer = self._layer
        return with_qk_gain(self._read(layer.W_K[self.kv]), layer.k_norm_w, self.kv)

    @property
    def W_V(self) -> Float[Tensor, "d k"]:
        """The value weights, normalization folded in."""
        return self._read(self._layer.W_V[self.kv])

    @property
    def W_O(self) -> Float[Tensor, "k d"]:
        """The output weights."""
        return self._layer.W_O[self.id.head]

    @property
    def kv(self) -> int:
        """The index of the key/value head that this head uses."""
        return kv_head(self.model.config, self.id.head)

    @property
    def ov(self) -> Factored:
        """OV = W_V W_O in the residual basis; rows are read at the source, columns are written."""
        return Factored(self.W_V, self.W_O)

    @property
    def qk(self) -> Factored:
        """QK = W_Q W_Kᵀ · score_scale; rows are the destination side, columns the source side."""
        if self.model.config.at(self.id.layer).positions == "rotary":
            raise NotExactError(
                f"{self.label} has no single QK matrix: positions are rotary, so it depends on the "
                "offset between destination and source; qk_at(offset) gives it for one offset"
            )
        return self.qk_at(0)

    def qk_at(self, offset: int) -> Factored:
        """QK for one offset, destination − source: W_Q R(offset) W_Kᵀ · score_scale.

        Without rotary positions, it is the same at every offset.
        """
        config = self.model.config
        if self.id in self.model.weights.edited_patterns:
            raise NotExactError(
                f"{self.label} attends by a given pattern in this edited model, not by its QK; use "
                "the model without that edit"
            )
        W_Q = self.W_Q
        if config.positions == "rotary":
            positions = torch.full((W_Q.shape[0],), offset, device=W_Q.device)
            W_Q = rotate(config.at(self.id.layer), W_Q, positions)
        return Factored(W_Q * config.score_scale, self.W_K.T)

    @property
    def full_ov(self) -> Factored:
        """Full OV in the token basis; rows are source tokens, columns predicted tokens.

        `W_E W_V W_O W_U` with W_U centered over the vocabulary; see `path_full_ov`.
        """
        return Path("embed", (self.id,)).full_ov(self.model)

    @property
    def full_qk(self) -> Factored:
        """Full QK in the token basis; rows are destination tokens, columns source tokens."""
        weights, qk = self.model.weights, self.qk
        embeddings = embeddings_as_read(weights, self.id.layer)
        reads = [Site(Source("embed"), self.id, side) for side in (Side.Q, Side.K)]
        if not weights.edited_edges.isdisjoint(reads):
            qk = _zeros_like(qk)  # one of the two sides is the same for every token
        return embeddings @ qk @ embeddings.T

    @property
    def basis(self) -> str:
        """A note on the terms omitted in the token basis; empty if the basis is exact."""
        return token_basis_note(self.model.weights, self.id.layer)

    @property
    def _layer(self) -> LayerWeights:
        return self.model.weights.attention[self.id.layer]

    def _read(self, W: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
        return fold_read(self.model.config.norm, W, self._layer.ln1_w)


def check_path(model: "Model | Weights", path: Path) -> None:
    """Raise PathError or HeadError if the path does not exist in this model."""
    config, source = model.config, path.source
    for head in path.heads:
        find_head(head, config.n_layers, config.n_heads)
    for lower, step in pairwise((source, *path.steps)):
        if isinstance(step, Source):
            _check_mlp_step(config, lower, step)
    if source.kind == "pos" and config.positions != "residual":
        raise PathError(
            f"no path of this model begins at positions: positions={config.positions!r}, so "
            "they are never in the residual stream"
        )
    if source.kind in ("mlp", "mlp_bias") and config.mlp == "none":
        raise PathError(f"no path begins at {source}: this model has no MLPs")
    if source.layer >= config.n_layers:
        raise PathError(
            f"no path begins at {source}: the model has {config.n_layers} layers, counted from 0"
        )


def _check_mlp_step(config: Config, lower: HeadId | Source, step: Source) -> None:
    if config.mlp == "none":
        raise PathError(f"no path goes through {step}: this model has no MLPs")
    if step.layer >= config.n_layers:
        raise PathError(
            f"no path goes through {step}: the model has {config.n_layers} layers, counted from 0"
        )
    if config.block == "parallel" and lower.layer == step.layer:
        raise PathError(
            f"{step} does not read {lower}: in a parallel block the MLP reads the stream before "
            "its layer's heads"
        )


def _check_only_heads(model: "Model", path: Path) -> None:
    check_path(model, path)
    if len(path.heads) < path.order:
        raise PathError(
            f"{path} goes through an MLP, which is linear only on a run, with gates held; use "
            "trace.paths(mlps='linear')"
        )


def path_ov(model: "Model", path: Path) -> Factored:
    """The product of a path's OVs in the residual basis (normalization scales omitted)."""
    _check_only_heads(model, path)
    if not path.heads:
        raise PathError(f"{path} goes through no head, so it has no OV; its full_ov is W_E W_U")
    product = model.head(path.heads[0]).ov
    for head in path.heads[1:]:
        product = product @ model.head(head).ov
    return product if carries_text(model, path.heads) else _zeros_like(product)


def carries_text(model: "Model", steps: Sequence[HeadId | Source]) -> bool:
    """Whether each head's output reaches the values of the next head (or the logits).

    An edited edge carries the same vector for every text, so a path along it is zero.
    """
    edges = model.weights.edited_edges
    return not any(
        Site(writer, reader, Side.V if isinstance(reader, HeadId) else None) in edges
        for writer, reader in pairwise(steps)
    )


def _zeros_like(product: Factored) -> Factored:
    return Factored(torch.zeros_like(product.A), product.B)


def path_full_ov(model: "Model", path: Path) -> Factored:
    """From tokens (`embed`) or positions (`pos`) through a path's heads to predicted tokens.

    W_U is centered over the vocabulary, so entries are logits relative to the mean logit. Adding a
    constant to all logits does not change the prediction.
    """
    _check_only_heads(model, path)
    if path.source.kind not in ("embed", "pos"):
        raise PathError(
            f"{path.source} is computed on a run, so it has no fixed rows to tabulate; use a path "
            "from 'embed' or 'pos'"
        )
    weights, W_pos = model.weights, model.weights.W_pos if path.source.kind == "pos" else None
    if path.heads:
        ov = path_ov(model, path)
        positions = None if W_pos is None else W_pos @ ov.A
        rows = embed_through(weights, path.heads[0].layer, ov.A) if positions is None else positions
        full_ov = Factored(rows, unembed_through(weights, ov.B))
    else:
        rows = embeddings_as_read(weights, model.config.n_layers) if W_pos is None else W_pos
        full_ov = Factored(rows, centered_unembedding(weights))
    steps = (path.source, *path.heads, LOGITS)
    return full_ov if carries_text(model, steps) else _zeros_like(full_ov)


def path_pattern(trace: "Trace", path: Path) -> HeadPattern:
    """diag(s_final)·A[top]·diag(s)·…·A[bottom]·diag(s): a path's pattern on a run.

    On a model without normalization the rows sum to 1. `pattern @ rows of the source @ ov @ W_U`
    is the path's contribution to the logits.
    """
    _check_only_heads(trace.model, path)
    if path.source.kind == "unembed_bias":
        raise PathError("bias_U is added to the logits themselves, so it has no pattern")
    scales, product = trace.scales, None
    for head in path.heads:
        scaled = trace.pattern(head) * scales.attention[head.layer][:, None]
        scaled = scaled * scales.write[head.layer][..., None]
        product = scaled if product is None else scaled @ product
    if product is None:
        batch, length = trace.tokens.shape
        product = torch.eye(length).to(trace.weights.W_E).expand(batch, -1, -1)
    return product * scales.final[:, :, None]
