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
# Numbers in the patterns of several heads, at all nodes of a rule, that are held at a time.
_NUMBERS = 1 << 18


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
    s, v = (given.detach().double().cpu().numpy()[None] for given in (scores, values))
    found = weights_of_rows(s, v, np.ones_like(s, dtype=np.bool_), cap, sink)
    numbers = (found.uniform, found.effect, found.sink, found.error)
    return ScoreWeights(
        torch.from_numpy(found.weights[0]).to(scores), *(float(number[0]) for number in numbers)
    )


@dataclass(frozen=True, eq=False)
class ScoreWeightRows:
    """`ScoreWeights` of several rows of scores."""

    weights: NDArray[np.float64]
    uniform: NDArray[np.float64]
    effect: NDArray[np.float64]
    sink: NDArray[np.float64]
    error: NDArray[np.float64]


def weights_of_rows(
    scores: NDArray[np.float64],
    values: NDArray[np.float64],
    seen: NDArray[np.bool_],
    cap: float | None = None,
    sink: float | None = None,
) -> ScoreWeightRows:
    """`score_weights` of several rows [row, src], each over the sources that it has `seen`.

    In numpy, whose operations on a few hundred numbers take a tenth of the time.
    """
    count, length = scores.shape
    s, v = np.where(seen, scores, 0.0), np.where(seen, values, 0.0)
    if sink is not None:
        s = np.pad(s, ((0, 0), (0, 1)), constant_values=sink)
        v, seen = np.pad(v, ((0, 0), (0, 1))), np.pad(seen, ((0, 0), (0, 1)), constant_values=True)
    capped = np.arange(s.shape[1]) < length
    uniform = v.sum(-1) / seen.sum(-1)
    effect = (_softmax(s, seen, cap, capped)[0] * v).sum(-1) - uniform
    highest, lowest = np.where(seen, v, -np.inf).max(-1), np.where(seen, v, np.inf).min(-1)
    enough = _TOLERANCE * (highest - lowest)
    weights, error = np.zeros_like(s), np.zeros(count)
    rest, nodes = np.arange(count), _NODES
    while len(rest):
        at_once = max(1, _NUMBERS // (nodes * s.shape[1]))
        for first in range(0, len(rest), at_once):
            part = rest[first : first + at_once]
            weights[part] = _integrated(s[part], v[part], seen[part], cap, capped, nodes)
        error[rest] = np.abs((weights[rest] * s[rest]).sum(-1) - effect[rest])
        rest = rest[error[rest] > enough[rest]] if nodes < _MOST_NODES else rest[:0]
        nodes *= 2
    share = (weights * s)[:, length:].sum(-1)
    return ScoreWeightRows(weights[:, :length], uniform, effect, share, error)


def _integrated(
    s: NDArray[np.float64],
    v: NDArray[np.float64],
    seen: NDArray[np.bool_],
    cap: float | None,
    capped: NDArray[np.bool_],
    nodes: int,
) -> NDArray[np.float64]:
    """The integral of each row by the rule with so many nodes."""
    points, rule = _gauss_legendre(nodes)
    patterns, slopes = _softmax(points[:, None, None] * s, seen, cap, capped)
    gain = patterns * (v - (patterns * v).sum(-1, keepdims=True)) * slopes
    return (rule[:, None, None] * gain).sum(0)


def _softmax(
    scores: NDArray[np.float64],
    seen: NDArray[np.bool_],
    cap: float | None,
    capped: NDArray[np.bool_],
) -> tuple[NDArray[np.float64], NDArray[np.float64] | float]:
    """Attention, and the slope of the cap at each score; a sink's logit has no cap."""
    slopes: NDArray[np.float64] | float = 1.0
    if cap is not None:
        bent = np.tanh(scores / cap)
        slopes = np.where(capped, 1 - bent * bent, 1.0)
        scores = np.where(capped, cap * bent, scores)
    scores = np.where(seen, scores, -np.inf)
    parts = np.exp(scores - scores.max(-1, keepdims=True))
    return parts / parts.sum(-1, keepdims=True), slopes


@lru_cache(maxsize=16)
def _gauss_legendre(nodes: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    points, rule = np.polynomial.legendre.leggauss(nodes)
    return (points + 1) / 2, rule / 2
