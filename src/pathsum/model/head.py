"""Head: one attention head and its two circuits, from weights alone."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.algebra import Factored
from pathsum.errors import NotExactError
from pathsum.model.folding import embeddings_as_read, fold_read, token_basis_note, with_qk_gain
from pathsum.model.rotary import rotate
from pathsum.model.weights import LayerWeights
from pathsum.names import Edge, HeadId, HeadRead, Path, Side, Source

if TYPE_CHECKING:
    from pathsum.model.model import Model


@dataclass(frozen=True, eq=False)
class Head:
    """One head of a model; `model.head("L1H4")` or `model.head(1, 4)` gives it.

    Reads come with the gain and centering of the normalization before them folded in, so that
    `ov` and `qk` are what the head does to the stream itself; the scale (one number per position)
    is not a weight and is left out.
    """

    model: "Model"
    id: HeadId

    @property
    def label(self) -> HeadId:
        """Its name, `L1H4`."""
        return self.id

    @property
    def W_Q(self) -> Float[Tensor, "d k"]:
        """Its query read, folded."""
        layer, at = self._layer, self.id.head
        return with_qk_gain(self._read(layer.W_Q[at]), layer.q_norm_w, at)

    @property
    def W_K(self) -> Float[Tensor, "d k"]:
        """Its key read, folded (shared with its neighbors where K/V heads are grouped)."""
        layer = self._layer
        return with_qk_gain(self._read(layer.W_K[self.kv]), layer.k_norm_w, self.kv)

    @property
    def W_V(self) -> Float[Tensor, "d k"]:
        """Its value read, folded."""
        return self._read(self._layer.W_V[self.kv])

    @property
    def W_O(self) -> Float[Tensor, "k d"]:
        """Its write."""
        return self._layer.W_O[self.id.head]

    @property
    def kv(self) -> int:
        """Which key/value head of its layer it uses."""
        return self.id.head // self.model.config.heads_per_kv

    @property
    def ov(self) -> Factored:
        """OV = W_V W_O in the stream's basis: row side read at the source, column side written."""
        return Factored(self.W_V, self.W_O)

    @property
    def qk(self) -> Factored:
        """QK = W_Q W_Kᵀ · score_scale: row side the destination, column side the source."""
        if self.model.config.positions == "rotary":
            raise NotExactError(
                f"{self.label} has no single QK matrix: positions are rotary, so it depends on the "
                "offset between destination and source; qk_at(offset) gives it for one offset"
            )
        return self.qk_at(0)

    def qk_at(self, offset: int) -> Factored:
        """QK for one offset, destination − source: W_Q R(offset) W_Kᵀ · score_scale.

        The same at every offset on a model without rotary positions.
        """
        config = self.model.config
        if self.id in self.model.weights.edited_patterns:
            raise NotExactError(
                f"{self.label} attends by a given pattern in this edited model, not by its QK; use "
                "the model without that edit"
            )
        W_Q = self.W_Q
        if config.positions == "rotary":
            places = torch.full((W_Q.shape[0],), offset, device=W_Q.device)
            W_Q = rotate(config.at(self.id.layer), W_Q, places)
        return Factored(W_Q * config.score_scale, self.W_K.T)

    @property
    def full_ov(self) -> Factored:
        """Full OV in the token basis: row the source token, column the predicted token."""
        return Path("embed", (self.id,)).full_ov(self.model)

    @property
    def full_qk(self) -> Factored:
        """Full QK in the token basis: row the destination token, column the source token."""
        return self._between_tokens(self.qk)

    def full_qk_at(self, offset: int) -> Factored:
        """Full QK for one offset."""
        return self._between_tokens(self.qk_at(offset))

    @property
    def basis(self) -> str:
        """What the token basis leaves out, in words; empty if nothing."""
        return token_basis_note(self.model.weights, self.id.layer)

    def _between_tokens(self, qk: Factored) -> Factored:
        weights = self.model.weights
        embeddings = embeddings_as_read(weights, self.id.layer)
        reads = [Edge(Source("embed"), HeadRead(self.id, side)) for side in (Side.Q, Side.K)]
        if not weights.edited_edges.isdisjoint(reads):
            # One of the two sides is the same for every token.
            qk = Factored(torch.zeros_like(qk.A), qk.B)
        return embeddings @ qk @ embeddings.T

    @property
    def _layer(self) -> LayerWeights:
        return self.model.weights.attention[self.id.layer]

    def _read(self, W: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
        return fold_read(self.model.config.norm, W, self._layer.ln1_w)
