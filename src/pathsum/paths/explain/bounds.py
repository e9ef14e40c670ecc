"""How much a single path can bring to a head's values: the bounds that prove a search."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.model import Source
from pathsum.paths.frozen import Frozen, FrozenLayer


@dataclass(frozen=True, eq=False)
class Reach:
    """What single paths bring to the values of each layer.

    `values[l]` are the values that the sources readable by layer l give, exactly;
    `through_heads[l]` bounds the norm of any value that came through at least one head.
    """

    sources: tuple[tuple[Source, ...], ...]
    values: tuple[Float[Tensor, "_ batch kv pos k"], ...]
    through_heads: tuple[Float[Tensor, "batch kv pos"], ...]


def reach(frozen: Frozen, layers: list[FrozenLayer]) -> Reach:
    """Values and bounds for every layer, from the bottom up."""
    sources: list[tuple[Source, ...]] = []
    values: list[Tensor] = []
    through: list[Tensor] = []
    # For each head below: the largest norm of what a single path can make it mix, by destination.
    mixed: list[Float[Tensor, "batch head pos"]] = []
    for index, layer in enumerate(layers):
        readable = tuple(source for source in frozen.sources if source.layer < index)
        streams = torch.stack([frozen.source(source) for source in readable])
        read = layer.read(streams)
        straight = torch.linalg.vector_norm(read, dim=-1).amax(0)
        further = torch.zeros_like(straight)
        for lower, norms in enumerate(mixed):
            gain = _gains(layers[lower], layer)
            carried = (norms[:, :, None] * gain[:, :, None]).amax(1)
            further = torch.maximum(further, carried * layer.scale[:, None].abs())
        largest = torch.maximum(straight, further)
        mixed.append((layer.pattern @ layer.per_head(largest[..., None]))[..., 0])
        sources.append(readable)
        values.append(read)
        through.append(further)
    return Reach(tuple(sources), tuple(values), tuple(through))


def _gains(lower: FrozenLayer, upper: FrozenLayer) -> Float[Tensor, "head kv"]:
    """‖W_O W_V‖₂, or a little more, for each head of a layer and each value read of another."""
    products = torch.einsum("hkd,vdj->hvkj", lower.W_O, upper.W_V)
    return spectral_norm_bound(products)


def spectral_norm_bound(
    matrices: Float[Tensor, "*batch m n"], squarings: int = 5
) -> Float[Tensor, "*batch"]:
    """At least the spectral norm, and at most n^(1/64) times it, by matrix products alone.

    (tr (MᵀM)^p)^(1/2p) is the 2p-norm of the singular values, which is never below the largest.

    >>> float(spectral_norm_bound(torch.diag(torch.tensor([3.0, 4.0]))))
    4.0...
    """
    gram = matrices.mT @ matrices
    tiny = torch.finfo(gram.dtype).tiny
    log_size = torch.zeros_like(gram[..., 0, 0])
    weight = 1.0
    for _ in range(squarings):
        size = gram.diagonal(dim1=-2, dim2=-1).sum(-1).clamp_min(tiny)
        log_size = log_size + weight * size.log()
        gram = gram / size[..., None, None]
        gram = gram @ gram
        weight /= 2
    trace = gram.diagonal(dim1=-2, dim2=-1).sum(-1).clamp_min(tiny)
    bound = (0.5 * (log_size + weight * trace.log())).exp()
    zero = matrices.abs().amax((-2, -1)) == 0
    return torch.where(zero, torch.zeros_like(bound), bound * (1 + 1e-5))
