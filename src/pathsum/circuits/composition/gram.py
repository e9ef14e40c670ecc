"""Many symmetric forms of low rank, any columns of their factors at a time.

A form is `Xᵀ A X` with X [k, d] and A [k, k] positive semidefinite: what a head writes (`OVᵀ OV`,
with X = W_O and A = W_Vᵀ W_V) or what it reads with (`M Mᵀ`). The squared norm of a write followed
by a read is the inner product of their forms,

    ‖OV M‖² = tr(OVᵀ OV · M Mᵀ) = tr(P G).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pathsum.circuits.composition.composition_null import Moments


class Outer:
    """The outer factors X of one layer's forms, any range of their columns at a time.

    Holds the stored weights as they are and applies what normalization does to a read (gain,
    centering) to the columns asked for, so that a model is not copied. Each factor is scaled by its
    largest entry, which no score sees and which keeps squares of it finite.
    """

    def __init__(
        self,
        stored: Float[Tensor, "n k d"],
        *,
        gain: Float[Tensor, " d"] | None = None,
        centered: bool = False,
        copies: int = 1,
    ) -> None:
        self._stored = stored
        self._copies = copies
        whole = stored if gain is None else stored * gain
        peak = _largest(whole)
        mean = whole.mean(-1, keepdim=True) if centered else torch.zeros_like(whole[..., :1])
        if centered:
            left = _largest(whole - mean)
            rounding = 4 * torch.finfo(whole.dtype).eps * peak
            peak = torch.where(left > rounding, left, torch.zeros_like(left))
        # A factor that is zero, or only rounding once centered, stays zero.
        scale = torch.where(peak > 0, 1 / peak, torch.zeros_like(peak))
        # X = shift + stored · factor, in one pass over what is asked for.
        self._shift = -mean * scale
        self._factor = scale if gain is None else scale * gain
        sums = torch.zeros_like(mean) if centered else whole.sum(-1, keepdim=True)
        self._sums = (sums * scale)[..., 0]

    def __len__(self) -> int:
        return self._stored.shape[0] * self._copies

    @property
    def d(self) -> int:
        """The width of the stream."""
        return self._stored.shape[-1]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        return self._stored.dtype

    def space(self, n: int, width: int) -> Float[Tensor, "n k b"]:
        """Room for columns of n factors, laid out as the weights are: that makes filling quick."""
        k = self._stored.shape[1]
        if self._stored.stride(-1) == 1:
            return self._stored.new_empty(n, k, width)
        return self._stored.new_empty(n, width, k).mT

    def columns(self, start: int, stop: int, out: Float[Tensor, "n k b"]) -> None:
        """Columns start … stop − 1 of every factor, written to `out`."""
        wide = self._factor.shape[-1] > 1
        factor = self._factor[..., start:stop] if wide else self._factor
        stored = self._stored[..., start:stop]
        if self._copies == 1:
            torch.addcmul(self._shift, stored, factor, out=out)
        else:
            part = torch.addcmul(self._shift, stored, factor)
            out.unflatten(0, (-1, self._copies)).copy_(part[:, None])

    def sums(self) -> Float[Tensor, "n k"]:
        """X times the ones-vector, in float64."""
        return self._sums.double().repeat_interleave(self._copies, 0)

    def gram(self) -> Float[Tensor, "n k k"]:
        """X Xᵀ of every factor, in float64."""
        whole = self.space(len(self), self.d)
        self.columns(0, self.d, whole)
        return (whole @ whole.mT).double()


def _largest(factors: Float[Tensor, "n k d"]) -> Float[Tensor, "n 1 1"]:
    """The largest magnitude in each factor."""
    return torch.linalg.vector_norm(factors, torch.inf, dim=(-2, -1), keepdim=True)


@dataclass(frozen=True, eq=False)
class Forms:
    """One form `Xᵀ A X` of trace 1 for each of n heads, layer by layer.

    `moments` are those of the forms; `empty` marks heads whose form is zero, which has no trace to
    divide by.
    """

    layers: tuple[Outer, ...]
    inner: Float[Tensor, "n k k"]
    moments: Moments
    empty: Bool[Tensor, " n"]

    @classmethod
    def of(
        cls, outer: Outer, inner: Float[Tensor, "n k k"], gram: Float[Tensor, "n k k"]
    ) -> "Forms":
        """The forms of one layer's outer and inner factors, in float64; `gram` is X Xᵀ.

        Traces need k × k products only: `tr(Xᵀ A X) = tr(A X Xᵀ)`, and its powers likewise.
        """
        product = inner @ gram
        trace = product.diagonal(dim1=-2, dim2=-1).sum(-1)
        empty = ~(trace > 0)
        safe = torch.where(empty, torch.ones_like(trace), trace)
        product = product / safe[:, None, None]
        square = product @ product
        moments = Moments(
            square.diagonal(dim1=-2, dim2=-1).sum(-1), (square * product.mT).sum((-2, -1))
        )
        # Where a head is empty the form is zero, and whoever reports on it says so.
        scale = torch.where(empty, torch.zeros_like(trace), 1 / safe)
        # Thousands of inner factors are kept, in the dtype that they are multiplied in.
        return cls((outer,), (inner * scale[:, None, None]).to(outer.dtype), moments, empty)

    @classmethod
    def join(cls, parts: Sequence["Forms"]) -> "Forms":
        """The forms of several layers, one after another."""
        square = torch.cat([part.moments.square for part in parts])
        cube = torch.cat([part.moments.cube for part in parts])
        return cls(
            tuple(layer for part in parts for layer in part.layers),
            torch.cat([part.inner for part in parts]),
            Moments(square, cube),
            torch.cat([part.empty for part in parts]),
        )

    def layer(self, index: int, heads: int) -> "Forms":
        """The forms of one layer alone."""
        part = slice(index * heads, (index + 1) * heads)
        moments = Moments(self.moments.square[part], self.moments.cube[part])
        return Forms((self.layers[index],), self.inner[part], moments, self.empty[part])

    def __len__(self) -> int:
        return self.inner.shape[0]

    @property
    def d(self) -> int:
        """The width of the stream."""
        return self.layers[0].d

    @property
    def dtype(self) -> torch.dtype:
        """What products are computed in: the dtype of the weights."""
        return self.layers[0].dtype

    def columns(
        self, start: int, stop: int, out: Float[Tensor, "n k b"] | None = None
    ) -> Float[Tensor, "n k b"]:
        """Columns start … stop − 1 of X of every form."""
        whole = self.layers[0].space(len(self), stop - start) if out is None else out
        for layer, out in zip(self.layers, whole.split([len(x) for x in self.layers]), strict=True):
            layer.columns(start, stop, out)
        return whole

    def along_ones(self) -> Float[Tensor, " n"]:
        """The share of each form that lies along the ones-vector; by chance it is 1/d."""
        sums = torch.cat([layer.sums() for layer in self.layers])
        return (sums[:, None] @ self.inner.double() @ sums[..., None]).flatten() / self.d

    def roots(self) -> Float[Tensor, "n k d"]:
        """Y with `Yᵀ Y = Xᵀ A X`: the whole outer factors, times a root of A."""
        values, vectors = torch.linalg.eigh(self.inner.double())
        root = values.clamp(min=0).sqrt()[..., :, None] * vectors.mT
        return root.to(self.dtype) @ self.columns(0, self.d)
