"""Removing one part of a head's scores: the drop in the sum of values that it moves.

With scores s and values v a head moves f = Σ_j A_j v_j. Without a writer's part δ of the key at j,
only s_j changes, so A_j becomes A_j′ = σ(logit A_j − δ), and

    f − f′ = (A_j − A_j′) (v_j − mean of the others)

Without a writer's part of the query all scores change, and f′ is computed again. Both are exact for
the head, with everything above it linear. A share is an edge's part of an integral over all parts
at once, so it is 0 if neurons or sources cancel, although the removal of the edge matters. Drops do
not add up. An edge belongs to a circuit if its share or its drop is large enough.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.base.site import Side
from pathsum.paths.attention import Inputs, NodeAttention
from pathsum.paths.score_weights import integrate_scores

Rows = Float[Tensor, "node src"]


def removal_inputs(attention: NodeAttention) -> Iterator[Inputs]:
    """The drops by removing each writer from the keys and from the queries of head nodes."""
    yield _key_removals(attention)
    yield _query_removals(attention)


def _key_removals(attention: NodeAttention) -> Inputs:
    parts = attention.key_scores(attention.queries, attention.visible)
    cap, scores = attention.config.score_cap, attention.scores[:, None]
    odds, others = _odds(attention)
    score_change = _capped(scores, cap) - _capped(scores - parts.double(), cap)
    weight_change = odds.sigmoid()[:, None] - (odds[:, None] - score_change).sigmoid()
    drops = weight_change * (attention.values - others).where(attention.visible, 0.0)[:, None]
    drops = drops.to(parts)

    def along(nodes: Tensor, writers: Tensor, positions: Tensor) -> Tensor:
        slopes = drops[nodes, writers, positions] / parts[nodes, writers, positions]
        return attention.key.adjoint(attention.queries[nodes], positions) * slopes[:, None]

    return Inputs(Side.K, attention.carried.writers(2 * attention.head.layer), drops, drops, along)


def _odds(attention: NodeAttention) -> tuple[Rows, Rows]:
    """Each source's log odds against all others, and the mean value of the others."""
    scores = _capped(attention.scores, attention.config.score_cap).where(
        attention.visible, -torch.inf
    )
    values = attention.values.where(attention.visible, 0.0)
    if attention.sink is not None:
        scores = torch.nn.functional.pad(scores, (0, 1), value=attention.sink)
        values = torch.nn.functional.pad(values, (0, 1))
    top = scores.argmax(-1, keepdim=True)
    # Without the largest, whose complement would lose all digits as 1 − A.
    rest = scores.scatter(-1, top, -torch.inf)
    pattern, rest_pattern = scores.softmax(-1), rest.softmax(-1).nan_to_num()
    complement = (1 - pattern).scatter(-1, top, 1.0)
    moved = (pattern * values).sum(-1, keepdim=True) - pattern * values
    others = (moved / complement).scatter(-1, top, (rest_pattern * values).sum(-1, keepdim=True))
    logsum_others = scores.logsumexp(-1, keepdim=True) + complement.log()
    odds = scores - logsum_others.scatter(-1, top, rest.logsumexp(-1, keepdim=True))
    length = attention.scores.shape[1]
    return odds[:, :length], others[:, :length]


def _query_removals(attention: NodeAttention) -> Inputs:
    positions, length = attention.positions, attention.scores.shape[1]
    keys = attention.keys.repeat(len(positions), 1) * attention.config.score_scale
    reads = attention.query.adjoint(keys, positions.repeat_interleave(length)).unflatten(
        0, (-1, length)
    )
    level, cap = 2 * attention.head.layer, attention.config.score_cap
    parts = torch.einsum("nwd,nsd->nws", attention.carried.vectors_at(level, positions), reads)
    without = attention.scores[:, None] - parts.double()
    drops = (_moved(attention, attention.scores[:, None]) - _moved(attention, without)).to(parts)[
        ..., None
    ]

    def along(nodes: Tensor, columns: Tensor, _: Tensor) -> Tensor:
        ends = (attention.scores[nodes], attention.values[nodes], attention.visible[nodes])
        start = without[nodes, columns], attention.values[nodes]
        weights = integrate_scores(*ends, cap, attention.sink, start).weights.to(parts)
        return attention.query.adjoint(
            weights @ attention.keys * attention.config.score_scale, positions[nodes]
        )

    writers = attention.carried.writers(level)
    return Inputs(Side.Q, writers, drops, drops, along, positions=tuple(positions.tolist()))


def _moved(
    attention: NodeAttention, scores: Float[Tensor, "node writer src"]
) -> Float[Tensor, "node writer"]:
    """Σ_j A_j v_j for scores before the cap."""
    pattern = attention.attend(scores)
    return (pattern * attention.values.where(attention.visible, 0.0)[:, None]).sum(-1)


def _capped(scores: Tensor, cap: float | None) -> Tensor:
    return scores if cap is None else cap * torch.tanh(scores / cap)
