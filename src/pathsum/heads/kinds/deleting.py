"""Deleting heads remove from the residual stream what is already in it.

Score from data: mean over i ≥ 1 of −⟨write at i, stream at i⟩ / |stream at i|² on repeated random
tokens; 1 removes everything, 0 leaves it, and a head that overshoots exceeds 1. Threshold 0.1: a
tenth of the stream, while random heads give 0 on average. Score from weights: −Σλ / Σ|λ| of OV in
the stream's basis; the weights agree if it is positive beyond chance.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.algebra import Factored
from pathsum.algebra.centering import remove_mean
from pathsum.algebra.rotations import rotated_cores, sequential_p, significant_values
from pathsum.algebra.spectrum import positivity
from pathsum.base import Progress
from pathsum.circuits.copying import eigenvalues_above_noise
from pathsum.heads.kinds.kind import (
    PAPER,
    Kind,
    WeightScore,
    data_score,
    positive_score,
    score_layers,
    weight_info,
)
from pathsum.heads.layer_view import LayerView
from pathsum.heads.score import Score, against_rotations
from pathsum.model import HeadId, Model
from pathsum.model.folding import value_reads


def measure(view: LayerView) -> Float[Tensor, "sequence head"]:
    """The share of the stream that a head subtracts where it writes."""
    size = view.stream.square().sum(-1).clamp_min(1e-30)
    return (-view.written_along_stream() / size[:, None])[..., 1:].mean(-1)


DELETING = data_score(
    measure,
    name="deleting",
    title="deleting (data)",
    about="How much of what is in the stream the head takes out again.",
    formula="mean over i ≥ 1 of −⟨write at i, stream at i⟩ / |stream at i|²",
    threshold=0.1,
    reason="a tenth of what is in the stream; random heads give 0 on average",
    citation=PAPER,
    # No ceiling: a head can overshoot and write the negative of what it read.
    ceiling=None,
)


def measure_weights(model: Model, draws: int, seed: int, progress: Progress) -> dict[HeadId, Score]:
    """Eigenvalue negativity of every head's OV, against its own reads and writes rotated."""
    config, centered = model.config, model.config.norm == "layer"
    d = config.d_model - centered
    r = min(config.d_head, d)
    progress(0, config.n_layers, "chance for deleting")
    cores = rotated_cores([torch.ones(d)], d, r, draws=draws, seed=seed)

    def layer_scores(layer: int) -> list[Score]:
        W_V = value_reads(model.weights, layer)
        W_O = remove_mean(model.weights.attention[layer].W_O, centered)
        size = W_O.norm(dim=(1, 2)) * W_V.norm(dim=(1, 2))
        values = -positivity(eigenvalues_above_noise(W_O @ W_V, size)).cpu()
        own = significant_values(Factored(W_V, W_O))
        return against_rotations(values, sequential_p(values, cores, [own]), draws)

    return score_layers(model, layer_scores, progress, "deleting")


DELETING_BY_WEIGHTS = WeightScore(
    weight_info(
        name="deleting_weights",
        title="deleting (weights)",
        about="Whether the head writes the negative of what it reads.",
        formula="−Σλ / Σ|λ|, λ the eigenvalues of OV in the stream's basis",
        null="this head's reads and writes, rotated at random",
        reason="any excess of negative eigenvalues that chance does not explain",
    ),
    measure_weights,
)
KIND = Kind(
    "deleting",
    DELETING.info,
    positive_score(DELETING_BY_WEIGHTS.info, "OV eigenvalue ratio, negated,"),
)
