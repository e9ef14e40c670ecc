"""Bounds on the contributions of single paths, for the search of the strongest ones (`search`).

For head h and position j (s = scales), the largest norm of a value of h that comes by a single path
is at most

    u_h[j] = max( max over sources ‖x[j] s_j W_V^h‖,
                  max over heads h' below: s_j ‖W_O^h' W_V^h‖₂ Σ_i A^h'[j, i] u_h'[i] )

so with the gradient g at these values no path contributes more than Σ_j ‖g[j]‖ u_h[j].

An MLP with held gates at position j is the matrix J = W_in diag(gate) W_out. Its norm is bounded
by the smaller of Σ_i |gate_i| ‖w_in,i‖ ‖w_out,i‖ and max_i of these terms times the spectral norms
of W_in and W_out with their rows of neurons normalized. The largest norm that a single path writes
through the MLP is at most the larger of its output on sources, which is exact, and ‖J‖ times the
largest output of a step below.
"""

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.base import Source
from pathsum.base.path import level_of
from pathsum.model import Weights
from pathsum.paths.frozen import Frozen, FrozenLayer, FrozenMlp


class Reach:
    """Contributions of single paths to the reads of each layer.

    `streams` are the sources, from the bottom up; `values[l]` are the exact values of those that
    the heads of layer l can read. `through_heads[l]` bounds the norm of any of their values that
    came through at least one step below, `through_mlps[l]` the norm of any stream that reaches the
    MLP so. They are 0 unless `bounded`.
    """

    def __init__(self, frozen: Frozen, bounded: bool) -> None:
        self.frozen, self.sources = frozen, frozen.sources
        layers = range(frozen.n_layers)
        self.layers = [frozen.layer(index) for index in layers]
        self.mlps = [mlp for mlp in map(frozen.mlp, layers) if mlp is not None]
        self.streams: Float[Tensor, "source batch pos d"] = torch.stack(
            [frozen.source(source) for source in self.sources]
        )
        self.values = [self.layers[i].read(self.readable_streams(2 * i)) for i in layers]
        zero = torch.zeros_like(self.streams[0, :, :, 0])
        self.through_heads: list[Float[Tensor, "batch kv pos"]] = [
            zero[:, None].expand(-1, len(layer.W_V), -1) for layer in self.layers
        ]
        self.through_mlps: list[Float[Tensor, "batch pos"]] = [zero] * len(self.mlps)
        if bounded:
            self._bound()

    def readable(self, reads_below: int) -> tuple[Source, ...]:
        """The sources written below a level."""
        return tuple(source for source in self.sources if level_of(source) < reads_below)

    def readable_streams(self, reads_below: int) -> Float[Tensor, "source batch pos d"]:
        """The streams of the sources written below a level."""
        return self.streams[: len(self.readable(reads_below))]

    def _bound(self) -> None:
        """Bound the norms that reach heads and MLPs through steps below, from the bottom up."""
        norms = weight_norms(self.frozen.run.weights)
        # The norms of z of the heads of each layer below, at their destinations; the largest norm
        # of a head's output, by layer; the norm of each MLP's output.
        z_norms: list[Float[Tensor, "batch head pos"]] = []
        head_norms: list[Float[Tensor, "batch pos"]] = []
        mlp_norms: list[Float[Tensor, "batch pos"]] = []
        for index, layer in enumerate(self.layers):
            scale, bound = layer.scale[:, None].abs(), self.through_heads[index]
            for lower, z in enumerate(z_norms):
                gain = norms.gain(self.layers, lower, index)
                carried = (z[:, :, None] * gain[:, :, None]).amax(1)
                bound = torch.maximum(bound, carried * scale)
            if mlp_norms:
                largest, reads = torch.stack(mlp_norms).amax(0), spectral_norm_bound(layer.W_V)
                bound = torch.maximum(bound, largest[:, None] * reads[:, None] * scale)
            self.through_heads[index] = bound
            straight = torch.linalg.vector_norm(self.values[index], dim=-1).amax(0)
            values = torch.maximum(straight, bound)
            z = (layer.pattern @ layer.per_head(values[..., None]))[..., 0]
            z_norms.append(z)
            if not self.mlps:
                continue
            outputs = (z * spectral_norm_bound(layer.W_O.mT)[:, None]).amax(1)
            below = [*head_norms, *mlp_norms, *([] if self.frozen.parallel else [outputs])]
            head_norms.append(outputs)
            bound = torch.stack([self.through_mlps[index], *below]).amax(0)
            self.through_mlps[index] = bound
            mlp = self.mlps[index]
            sources = self.readable_streams(self.frozen.reads_below(Source("mlp", index)))
            straight = torch.linalg.vector_norm(mlp.apply(sources), dim=-1).amax(0)
            factor = mlp_norm_bound(mlp, norms.spread(index, mlp))
            mlp_norms.append(torch.maximum(straight, bound * factor))


class WeightNorms:
    """Bounds on norms of products of weights, computed on first use."""

    def __init__(self) -> None:
        self._gains: dict[tuple[int, int], Float[Tensor, "head kv"]] = {}
        self._spreads: dict[int, float] = {}

    def gain(
        self, layers: Sequence[FrozenLayer], lower: int, upper: int
    ) -> Float[Tensor, "head kv"]:
        """‖W_O W_V‖₂, or slightly more, for each head of a layer and each value read of another."""
        if (lower, upper) not in self._gains:
            products = torch.einsum("hkd,vdj->hvkj", layers[lower].W_O, layers[upper].W_V)
            self._gains[lower, upper] = spectral_norm_bound(products)
        return self._gains[lower, upper]

    def spread(self, layer: int, mlp: FrozenMlp) -> float:
        """`mlp_spread` of a layer."""
        if layer not in self._spreads:
            self._spreads[layer] = mlp_spread(mlp)
        return self._spreads[layer]


# All searches in a model share these norms, which take seconds on a model of 30 layers.
_WEIGHT_NORMS: WeakKeyDictionary[Weights, WeightNorms] = WeakKeyDictionary()


def weight_norms(weights: Weights) -> WeightNorms:
    """The norms of these weights."""
    return _WEIGHT_NORMS.setdefault(weights, WeightNorms())


def mlp_norm_bound(mlp: FrozenMlp, spread: float) -> Float[Tensor, "batch pos"]:
    """At least the spectral norm of W_in diag(gate) W_out at each position; see `mlp_spread`."""
    terms = mlp.gate.abs() * mlp.W_in.norm(dim=0) * mlp.W_out.norm(dim=1)
    return torch.minimum(terms.sum(-1), terms.amax(-1) * spread)


def mlp_spread(mlp: FrozenMlp) -> float:
    """The product of the spectral norms of W_in and W_out, with each neuron's rows normalized."""
    reads, writes = (torch.nn.functional.normalize(W, dim=1) for W in (mlp.W_in.T, mlp.W_out))
    return float(spectral_norm_bound(reads) * spectral_norm_bound(writes))


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
