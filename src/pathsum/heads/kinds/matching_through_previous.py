"""Matching through a previous-token head: the vertical axis of the paper's induction scatter.

Score: Σλ / Σ|λ|, λ the eigenvalues of W_E QK (OV)ᵀ W_Eᵀ, with the OV of the best previous-token
head below and keys centered over tokens. Threshold 0: any excess of positive eigenvalues that
chance does not explain means that a token attends to where the token before is the same. Weights
alone; the probe only decides which head is the previous-token head. It supports induction and names
no kind.
"""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.algebra.rotations import DRAWS, sequential_p
from pathsum.algebra.spectrum import positivity
from pathsum.base import Progress, silent
from pathsum.circuits.matching import embedding_product, matching_cores, matching_spectra, qk_values
from pathsum.heads.kinds.kind import PAPER, ScoreInfo
from pathsum.heads.score import HeadScores, Score, against_rotations
from pathsum.model import HeadId, Model
from pathsum.model.processes import threaded_map

MATCHING_THROUGH_PREVIOUS = ScoreInfo(
    name="matching_through_previous",
    title="matching through previous token",
    about="Whether the head attends to where the token before is the current one, as induction "
    "heads do, by what its keys read of a previous-token head.",
    evidence="weights",
    formula="Σλ / Σ|λ|, λ the eigenvalues of W_E QK (OV)ᵀ W_Eᵀ, OV the best previous-token head's "
    "below, keys centered over tokens",
    probe="none: weights alone; the probe only decides which head is the previous-token head",
    ceiling=1.0,
    null="this head's queries and keys, rotated at random; the previous-token head stays as it is",
    threshold=0.0,
    reason="any excess of positive eigenvalues that chance does not explain: same matches same, "
    "one token on",
    citation=PAPER,
)


class MatchingNull:
    """What the readers of a model share: products of embeddings, and random rotations.

    Both depend on the head that is read through, or on the depth where there is none.
    """

    def __init__(self, model: Model, draws: int, seed: int) -> None:
        self.model, self.draws, self._seed = model, draws, seed
        self._products: dict[tuple[bool, bool], Float[Tensor, "d d"]] = {}
        self._cores: dict[HeadId | bool, list[Float[Tensor, "half r r"]]] = {}

    def product(self, layer: int, writer: HeadId | None) -> Float[Tensor, "d d"]:
        """`embedding_product` of a reader in this layer."""
        # Layer 0 reads normalized embeddings; all deeper layers read the same unscaled ones.
        keys = layer if writer is None else writer.layer
        key = (keys == 0, layer == 0)
        if key not in self._products:
            self._products[key] = embedding_product(self.model, keys, layer)
        return self._products[key]

    def cores(self, layer: int, writer: HeadId | None) -> list[Float[Tensor, "half r r"]]:
        """`matching_cores` of a reader in this layer."""
        key = layer == 0 if writer is None else writer
        if key not in self._cores:
            product = self.product(layer, writer)
            self._cores[key] = matching_cores(
                self.model, writer, product, draws=self.draws, seed=self._seed
            )
        return self._cores[key]

    def scores(
        self, layers: Sequence[tuple[int, HeadId | None]], progress: Progress, what: str
    ) -> dict[HeadId, Score]:
        """Σλ / Σ|λ| of each QK of layers, through a writer or not, against its reads rotated."""
        for number, (layer, writer) in enumerate(layers):
            progress(number, len(layers), f"chance for {what}")
            self.cores(layer, writer)  # what layers share, before threads share the layers
        found = threaded_map(layers, self._layer_scores, progress, what)
        return {head: score for part in found for head, score in part.items()}

    def _layer_scores(self, through: tuple[int, HeadId | None]) -> dict[HeadId, Score]:
        (layer, writer), model = through, self.model
        readers = [HeadId(layer, head) for head in range(model.config.n_heads)]
        spectra = matching_spectra(model, readers, writer, self.product(layer, writer))
        values = positivity(spectra).cpu()
        own = torch.stack([qk_values(model.head(reader)) for reader in readers])
        p = sequential_p(values, self.cores(layer, writer), [own])
        return dict(zip(readers, against_rotations(values, p, self.draws, writer), strict=True))


def through_previous(
    model: Model,
    previous: Mapping[HeadId, float],
    seed: int = 0,
    draws: int = DRAWS,
    progress: Progress = silent,
) -> HeadScores:
    """How every head matches tokens through the best previous-token head below it.

    `previous` maps previous-token heads to their scores; the best below a layer is the one with the
    largest. Layers with none below have no such score. Costs one product of embeddings per depth
    of such a head, and d_head × d_head products per draw.
    """
    config = model.config
    if config.n_layers == 1:
        return HeadScores({}, "one layer of heads has no layer below it to read")
    if not previous:
        return HeadScores({}, "no head is a previous-token head, so there is none to read")
    null = MatchingNull(model, draws, seed)
    through: list[tuple[int, HeadId]] = []
    for layer in range(1, config.n_layers):
        below = {head: score for head, score in previous.items() if head.layer < layer}
        if below:
            through.append((layer, max(below, key=lambda head: below[head])))
    found = null.scores(through, progress, "matching through previous-token heads")
    return HeadScores(found, "" if found else "no head is above a previous-token head")
