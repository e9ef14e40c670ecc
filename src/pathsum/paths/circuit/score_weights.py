"""The worth of each attention score, by integrated gradients through the softmax.

A head with scores s over sources, A = softmax(s), moves v_j from source j (v in the unit of the
number explained), so its effect is Σ_j A_j v_j. Scale all scores by t: at t = 0 attention is
uniform, at t = 1 it is the head's own. Then

    Σ_j A_j v_j − mean_j v_j = Σ_j s_j w_j,    w_j = ∫₀¹ A_j(t) (v_j − Σ_i A_i(t) v_i) dt

which splits the effect of attending over the scores, completely, and so over whatever adds up to
the scores. The weights sum to 0, so a constant added to all scores changes nothing.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

# Nodes of the first rule, doubled until the split is complete to this share of the range of v.
_NODES = 16
_MOST_NODES = 1024
_TOLERANCE = 1e-6


@dataclass(frozen=True, eq=False)
class ScoreWeights:
    """`weights[j]` is the worth of one unit of score j; `effect` is the total that they split.

    `uniform` is what equal scores would be worth. `sink` is the share of the sink's logit, if there
    is one. `error` is how far Σ_j s_j w_j + sink is from `effect`, in the unit of the values.
    """

    weights: Float[Tensor, " src"]
    uniform: float
    effect: float
    sink: float
    error: float


def score_weights(
    scores: Float[Tensor, " src"],
    values: Float[Tensor, " src"],
    cap: float | None = None,
    sink: float | None = None,
) -> ScoreWeights:
    """The worth of each score, for attention over sources with these scores and values.

    With a soft cap, scores are those before the cap, and w_j holds the cap's derivative. A `sink`
    is one more logit in the softmax, which moves nothing. The Gauss–Legendre rule is refined until
    the split is complete.

    >>> found = score_weights(torch.tensor([3.0, 0.0]), torch.tensor([1.0, 0.0]))
    >>> round(float(found.weights @ torch.tensor([3.0, 0.0])), 4), round(found.effect, 4)
    (0.4526, 0.4526)
    """
    # In numpy, whose operations on a few hundred numbers take a tenth of the time.
    s, v = (given.detach().double().cpu().numpy() for given in (scores, values))
    if sink is not None:
        s, v = np.append(s, sink), np.append(v, 0.0)
    capped = np.arange(len(s)) < len(scores)
    uniform = float(v.mean())
    effect = float(_softmax(s, cap, capped)[0] @ v) - uniform
    enough = _TOLERANCE * float(v.max() - v.min())
    nodes = _NODES
    while True:
        points, rule = _gauss_legendre(nodes)
        patterns, slopes = _softmax(points[:, None] * s, cap, capped)
        gain = patterns * (v - (patterns @ v)[:, None]) * slopes
        weights = rule @ gain
        error = abs(float(weights @ s) - effect)
        if error <= enough or nodes >= _MOST_NODES:
            rest = float(weights[len(scores) :] @ s[len(scores) :])
            own = torch.from_numpy(weights[: len(scores)]).to(scores)
            return ScoreWeights(own, uniform, effect, rest, error)
        nodes *= 2


def _softmax(
    scores: NDArray[np.float64], cap: float | None, capped: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64] | float]:
    """Attention, and the slope of the cap at each score; a sink's logit has no cap."""
    slopes: NDArray[np.float64] | float = 1.0
    if cap is not None:
        bent = np.tanh(scores / cap)
        slopes = np.where(capped, 1 - bent * bent, 1.0)
        scores = np.where(capped, cap * bent, scores)
    parts = np.exp(scores - scores.max(-1, keepdims=True))
    return parts / parts.sum(-1, keepdims=True), slopes


@lru_cache(maxsize=16)
def _gauss_legendre(nodes: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    points, rule = np.polynomial.legendre.leggauss(nodes)
    return (points + 1) / 2, rule / 2
