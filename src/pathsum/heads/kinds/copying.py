"""Copying heads raise the logit of the token that they attend to.

Score from data: for each token of the probe's first copy, attended alone, the share of the raised
logits that lands on that token, ReLU(own logit) / Σ ReLU(logits) among the probe's tokens, with the
vocabulary's mean removed. Threshold 0.1 and twice what random heads give, because chance is one
over the number of tokens, 0.04 for 25. Score from weights: Σλ / Σ|λ|, λ the eigenvalues of
W_E OV W_U; the weights agree if it is positive beyond chance. Both depend on OV, hence the higher
bar on data.
"""

from jaxtyping import Float
from torch import Tensor

from pathsum.base import Progress
from pathsum.circuits.copying import LEAST_DRAWS, CopyingNull
from pathsum.heads.kinds.kind import (
    PAPER_2022,
    Kind,
    WeightScore,
    data_score,
    positive_score,
    score_layers,
    weight_info,
)
from pathsum.heads.layer_view import LayerView
from pathsum.heads.score import Score, against_rotations
from pathsum.model import HeadId, Model, Path


def measure(view: LayerView) -> Float[Tensor, "sequence head"]:
    """The share of raised logits, among the probe's own tokens, that is the attended token's."""
    block = slice(view.probe.first, view.probe.first + view.probe.length)
    raised = view.logits_alone(block, view.probe.tokens[:, block]).clamp_min(0)
    own = raised.diagonal(dim1=-2, dim2=-1)
    return (own / raised.sum(-1).clamp_min(1e-30)).mean(-1)


COPYING_BY_DATA = data_score(
    measure,
    name="copying",
    title="copying (data)",
    about="When the head attends to a token, how much of what it raises is that very token.",
    formula="mean over probe tokens t of ReLU(logit of t) / Σ over probe tokens of ReLU(logit)",
    threshold=0.1,
    reason="chance is one over the number of the probe's tokens, 0.04 for 25: twice as much, "
    "and twice what random heads give",
    citation=PAPER_2022,
)


def measure_weights(model: Model, draws: int, seed: int, progress: Progress) -> dict[HeadId, Score]:
    """Eigenvalue positivity of every head's full OV, against its own reads and writes rotated."""
    null = CopyingNull(model, draws=max(draws, LEAST_DRAWS), seed=seed)
    for layer in range(model.config.n_layers):
        progress(layer, model.config.n_layers, "chance for copying")
        null.cores(Path("embed", [(layer, 0)]))  # shared by the layers, which run in threads

    def layer_scores(layer: int) -> list[Score]:
        return against_rotations(*null.layer(layer), null.draws)

    return score_layers(model, layer_scores, progress, "copying")


COPYING_BY_WEIGHTS = WeightScore(
    weight_info(
        name="copying_weights",
        title="copying (weights)",
        about="Whether attending to a token raises that same token, for all tokens at once.",
        formula="Σλ / Σ|λ|, λ the eigenvalues of W_E OV W_U, W_U centered",
        null="this head's reads and writes, rotated at random between this model's embeddings",
        reason="any excess of positive eigenvalues that chance does not explain",
    ),
    measure_weights,
)
KIND = Kind(
    "copying",
    COPYING_BY_DATA.info,
    positive_score(COPYING_BY_WEIGHTS.info, "OV eigenvalue ratio"),
    times_chance=2.0,
)
