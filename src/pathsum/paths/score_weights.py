"""Attention along a straight line of scores: the contribution of one unit of each score.

A head with scores s over sources, A = softmax(s), moves v_j from source j. Along the line from
scores s⁰ and values v⁰ to s and v, at a share t of the way,

    Σ_j A_j v_j − Σ_j A⁰_j v⁰_j = Σ_j (s_j − s⁰_j) w_j + Σ_j (v_j − v⁰_j) Ā_j
    w_j = ∫₀¹ A_j(t) (v_j(t) − Σ_i A_i(t) v_i(t)) dt,    Ā_j = ∫₀¹ A_j(t) dt

which splits the change completely (integrated gradients). Without a reference run the line starts
at uniform attention to the same values: s⁰ = 0 and v⁰ = v.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from pathsum.base.options import batch_size

# Nodes of the first rule, doubled until the error is at most this share of the range of v.
_NODES = 16
_MOST_NODES = 1024
_TOLERANCE = 1e-6

Rows = Float[Tensor, "row src"]


@dataclass(frozen=True, eq=False)
class ScoreWeights:
    """`weights[row, j]` is the contribution of one unit of score j; they split `effect`.

    `uniform` is the contribution of uniform attention or, between two runs, of the change of
    values, Σ_j (v_j − v⁰_j) Ā_j. `pattern` is Ā. `sink` is the share of the sink's logit, if there
    is one. `error` is |Σ_j (s_j − s⁰_j) w_j + sink − effect|, in the unit of the values.
    """

    weights: Rows
    pattern: Rows
    uniform: Float[Tensor, " row"]
    effect: Float[Tensor, " row"]
    sink: Float[Tensor, " row"]
    error: Float[Tensor, " row"]


def integrate_scores(
    scores: Rows,
    values: Rows,
    visible: Bool[Tensor, "row src"] | None = None,
    cap: float | None = None,
    sink: float | None = None,
    start: tuple[Rows, Rows] | None = None,
) -> ScoreWeights:
    """The contribution of each score, for rows of attention over the `visible` sources of each.

    The Gauss–Legendre rule is refined until the split is complete. Computed in double precision.

    Args:
        scores: With a soft cap, scores before the cap; w_j then contains the cap's derivative.
        values: The values that attention moves.
        visible: The sources of each row, by default all.
        cap: The soft cap.
        sink: One more logit in the softmax, which moves nothing.
        start: The scores and values of a reference run.

    >>> split = integrate_scores(torch.tensor([[3.0, 0.0]]), torch.tensor([[1.0, 0.0]]))
    >>> shares = split.weights @ torch.tensor([3.0, 0.0]).double()
    >>> round(float(shares), 4), round(float(split.effect), 4)
    (0.4526, 0.4526)
    """
    visible = torch.ones_like(scores, dtype=torch.bool) if visible is None else visible
    length = scores.shape[1]
    ends = scores, values, *((torch.zeros_like(scores), values) if start is None else start)
    s, v, s0, v0 = (end.double().where(visible, 0.0) for end in ends)
    if sink is not None:
        first = 0.0 if start is None else sink
        padded = ((s, sink), (v, 0.0), (s0, first), (v0, 0.0))
        s, v, s0, v0 = (torch.nn.functional.pad(x, (0, 1), value=y) for x, y in padded)
        visible = torch.nn.functional.pad(visible, (0, 1), value=True)
    line = _Line(s, s - s0, v, v - v0, visible, cap, length)
    change = line.effect(1.0) - line.effect(0.0)
    weights, patterns = torch.zeros_like(s), torch.zeros_like(s)
    error, by_values, nodes = torch.zeros_like(change), torch.zeros_like(change), _NODES
    rest = torch.arange(len(s), device=s.device)
    while len(rest):
        for part in rest.split(batch_size(3 * 8 * nodes * s.shape[1])):
            weights[part], patterns[part] = line.rows(part).integrate(nodes)
        by_values[rest] = (patterns[rest] * line.dv[rest]).sum(-1)
        total = (weights[rest] * line.ds[rest]).sum(-1) + by_values[rest]
        error[rest] = (total - change[rest]).abs()
        unfinished = error[rest] > _TOLERANCE * line.spread[rest]
        rest = rest[unfinished] if nodes < _MOST_NODES else rest[:0]
        nodes *= 2
    return ScoreWeights(
        weights=weights[:, :length],
        pattern=patterns[:, :length],
        uniform=line.effect(0.0) if start is None else by_values,
        effect=change - by_values,
        sink=(weights * line.ds)[:, length:].sum(-1),
        error=error,
    )


@dataclass(frozen=True, eq=False)
class _Line:
    """Rows of scores `s` and values `v`, and their changes along the line that ends at them.

    The first `capped` scores have the cap; a sink does not.
    """

    s: Rows
    ds: Rows
    v: Rows
    dv: Rows
    visible: Bool[Tensor, "row src"]
    cap: float | None
    capped: int

    def rows(self, rows: Tensor) -> "_Line":
        """The line of some rows."""
        s, ds, v, dv = (tensor[rows] for tensor in (self.s, self.ds, self.v, self.dv))
        return _Line(s, ds, v, dv, self.visible[rows], self.cap, self.capped)

    @property
    def spread(self) -> Float[Tensor, " row"]:
        """The range of the visible values."""
        high = self.v.where(self.visible, -torch.inf).amax(-1)
        return high - self.v.where(self.visible, torch.inf).amin(-1)

    def effect(self, share: float) -> Float[Tensor, " row"]:
        """Σ_j A_j v_j at a fraction of the integration path."""
        back = share - 1
        pattern = softmax_of(self.s + back * self.ds, self.visible, self.cap, self.capped)[0]
        return (pattern * (self.v + back * self.dv)).sum(-1)

    def integrate(self, nodes: int) -> tuple[Rows, Rows]:
        """w and Ā by the Gauss–Legendre rule with this many nodes."""
        points, rule = (torch.from_numpy(x).to(self.s)[:, None, None] for x in _legendre(nodes))
        back = (points - 1) / 2
        s, v = self.s + back * self.ds, self.v + back * self.dv
        patterns, slopes = softmax_of(s, self.visible, self.cap, self.capped)
        gain = patterns * (v - (patterns * v).sum(-1, keepdim=True)) * slopes
        return (rule / 2 * gain).sum(0), (rule / 2 * patterns).sum(0)


@cache
def _legendre(nodes: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    return np.polynomial.legendre.leggauss(nodes)


def softmax_of(
    scores: Float[Tensor, "*rule row src"],
    visible: Bool[Tensor, "*#rows src"],
    cap: float | None,
    capped: int,
) -> tuple[Float[Tensor, "*rule row src"], Float[Tensor, "*rule row src"] | float]:
    """Attention, and the slope of the cap at each score; only the first `capped` have the cap."""
    slopes: Tensor | float = 1.0
    if cap is not None:
        has_cap = torch.arange(scores.shape[-1], device=scores.device) < capped
        saturation = torch.tanh(scores / cap)
        slopes = (1 - saturation.square()).where(has_cap, 1.0)
        scores = (cap * saturation).where(has_cap, scores)
    return scores.where(visible, -torch.inf).softmax(-1), slopes
