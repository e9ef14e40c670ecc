"""The writes of a frozen run, projected on directions: the one direct attribution.

A writer is a source or a head. Its write at a position along the gradient of the logits is its
direct contribution to the prediction; along a head's query, key or value read it is the writer's
part of that read. `FrozenRow` has the writes of one sequence, which circuits are grown from.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.base.shapes import PerHead
from pathsum.model import HeadId, Source, Trace
from pathsum.model.folding import Reads, layer_reads
from pathsum.paths.frozen import Frozen, FrozenLayer, UpSweep


def direct_shares(
    frozen: Frozen,
    gradient: Float[Tensor, "batch some d"],
    positions: Int[Tensor, "batch some"] | None = None,
    z: Sequence[PerHead] | None = None,
) -> Float[Tensor, "batch writer some"]:
    """The write of every source and every head at some positions, along a gradient at each.

    Without `positions` they are all positions, in order. `z` are the heads' outputs before W_O, if
    a sweep has computed them already. The writers are `frozen.sources`, then all heads.
    """

    def at(values: Float[Tensor, "batch *head pos k"]) -> Float[Tensor, "batch *head some k"]:
        if positions is None:
            return values
        index = positions.view(len(positions), *(1,) * (values.ndim - 3), -1, 1)
        return values.gather(-2, index.expand(*values.shape[:-2], -1, values.shape[-1]))

    found = [(at(frozen.source(each)) * gradient).sum(-1)[:, None] for each in frozen.sources]
    if z is None:
        steps = ((step.layer, step.z[0]) for step in UpSweep(frozen))
    else:
        steps = ((frozen.layer(index), each) for index, each in enumerate(z))
    for layer, mixed in steps:
        found.append((at(mixed) * layer.write_adjoint(gradient[None])[0]).sum(-1))
    return torch.cat(found, 1)


@dataclass(frozen=True, eq=False)
class FrozenRow:
    """One sequence of a frozen run, up to a length: what every component writes and reads."""

    trace: Trace
    row: int
    length: int
    frozen: Frozen
    layers: tuple[FrozenLayer, ...]
    z: tuple[Float[Tensor, "head pos k"], ...]
    streams: tuple[Float[Tensor, "pos d"], ...]
    sources: tuple[tuple[Source, Float[Tensor, "pos d"]], ...]

    @classmethod
    def of(cls, trace: Trace, row: int, length: int) -> "FrozenRow":
        """The first positions of one sequence of a run."""
        frozen = Frozen(trace, slice(row, row + 1), length)
        layers, z, streams = list[FrozenLayer](), list[Tensor](), list[Tensor]()
        sweep = UpSweep(frozen)
        for step in sweep:
            layers.append(step.layer)
            z.append(step.z[0, 0])
            streams.append(sweep.streams[0, 0].clone())
        sources = tuple((source, frozen.source(source)[0]) for source in frozen.sources)
        return cls(trace, row, length, frozen, tuple(layers), tuple(z), tuple(streams), sources)

    @property
    def rows(self) -> slice:
        """The sequence, as a slice of the batch."""
        return slice(self.row, self.row + 1)

    def writers(self, layer: int) -> tuple[Source | HeadId, ...]:
        """Everything that a layer's heads can read: sources, then heads."""
        n_heads = self.trace.model.config.n_heads
        heads = (HeadId(below, head) for below in range(layer) for head in range(n_heads))
        return (*(source for source, _ in self.sources if source.layer < layer), *heads)

    def writes_everywhere(
        self, layer: int, directions: Float[Tensor, "node d"], length: int
    ) -> Float[Tensor, "node writer src"]:
        """Writes below a layer at the first positions, projected on each direction."""
        rows = [
            (directions @ stream[:length].T)[:, None]
            for source, stream in self.sources
            if source.layer < layer
        ]
        for below in range(layer):
            back = self._through_W_O(below, directions)
            rows.append((back.transpose(0, 1) @ self.z[below][:, :length].mT).transpose(0, 1))
        return torch.cat(rows, 1)

    def writes_at(
        self, layer: int, directions: Float[Tensor, "read d"], places: Int[Tensor, " read"]
    ) -> Float[Tensor, "read writer"]:
        """Writes below a layer, each direction at its own position."""
        rows = [
            (stream[places] * directions).sum(-1)[:, None]
            for source, stream in self.sources
            if source.layer < layer
        ]
        for below in range(layer):
            z = self.z[below][:, places].transpose(0, 1)
            rows.append((z * self._through_W_O(below, directions)).sum(-1))
        return torch.cat(rows, 1)

    def reads(self, layer: int) -> Reads:
        """The folded reads of a layer's heads."""
        return layer_reads(self.trace.model.weights, layer)

    def _through_W_O(
        self, layer: int, directions: Float[Tensor, "read d"]
    ) -> Float[Tensor, "read head k"]:
        W_O = self.layers[layer].W_O
        return (directions @ W_O.flatten(0, 1).T).unflatten(1, (-1, W_O.shape[1]))
