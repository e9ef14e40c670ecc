"""Grouped-query attention: which key/value head each query head uses.

Query heads `kv * heads_per_kv … (kv + 1) * heads_per_kv − 1` share key/value head `kv`. In a model
without grouping, `heads_per_kv` is 1 and each query head has its own.
"""

from typing import TypeVar

from jaxtyping import Int
from torch import Tensor

from pathsum.model.config import Config

Number = TypeVar("Number", int, Int[Tensor, " n"])


def kv_head(config: Config, head: Number) -> Number:
    """The key/value head of a query head, both counted within their layer."""
    return head // config.heads_per_kv


def for_query_heads(shared: Tensor, n_heads: int, dim: int = -3) -> Tensor:
    """One entry along `dim` per query head, from one per key/value head."""
    copies = n_heads // shared.shape[dim]
    return shared if copies == 1 else shared.repeat_interleave(copies, dim=dim)
