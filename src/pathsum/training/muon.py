"""Muon: momentum whose step is orthogonalized, one head's matrix at a time.

The step of a matrix with momentum M = U S Vᵀ is close to U Vᵀ: every direction moves equally far.
Heads share nothing but storage, so each head's own d_model × d_head matrix is orthogonalized; all
heads of all layers in one batched Newton–Schulz iteration.

torch.optim.Muon takes whole matrices only, one after another, in bfloat16, which processors
without a bfloat16 unit emulate. This one is blockwise, batched and in float32.
"""

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, overload

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

# The quintic a x + b x³ + c x⁵, iterated, sends singular values in (0, 1] close to 1. Its slope at
# zero is steep, so five rounds suffice: they end between 0.7 and 1.2, which works as well as 1.
_QUINTIC = (3.4445, -4.7750, 2.0315)
_ROUNDS = 5
_TINY = 1e-7
# Up to this many weights the products are too small to split over threads.
_SMALL = 1 << 20


@dataclass(frozen=True)
class Blocks:
    """The layout of blocks in a matrix: next to each other (`columns`) or stacked (`rows`)."""

    side: Literal["columns", "rows"]
    width: int

    def split(self, matrix: Float[Tensor, "m n"]) -> Float[Tensor, "block width length"]:
        """The blocks, [block, width, length]."""
        m, n = matrix.shape
        if self.side == "columns":
            return matrix.view(m, n // self.width, self.width).permute(1, 2, 0)
        return matrix.view(m // self.width, self.width, n)

    def join(self, blocks: Float[Tensor, "block width length"]) -> Float[Tensor, "m n"]:
        """The matrix of these blocks."""
        if self.side == "columns":
            return blocks.permute(2, 0, 1).flatten(1)
        return blocks.flatten(0, 1)


def orthogonalize(
    x: Float[Tensor, "block width length"],
) -> Float[Tensor, "block width length"]:
    """Each block with its singular values brought near 1 (Newton–Schulz).

    A round is x ← M x with M = a + b G + c G² and G = x xᵀ. Every M is a polynomial of the first G,
    so they commute, and G ← M G M: rounds are width × width products, and the larger x takes part
    in two products instead of ten.
    """
    gram = x @ x.mT
    # ‖x‖² is the trace of G: dividing G by it, and M by its root, avoids dividing the larger x.
    square_norm = gram.diagonal(0, -2, -1).sum(-1)[:, None, None].clamp(min=_TINY**2)
    gram = gram / square_norm
    factor = product = _polynomial(gram)
    for _ in range(_ROUNDS - 1):
        gram = factor @ gram @ factor
        factor = _polynomial(gram)
        product = factor @ product
    return (product / square_norm.sqrt()) @ x


def _polynomial(gram: Float[Tensor, "block width width"]) -> Float[Tensor, "block width width"]:
    a, b, c = _QUINTIC
    factor = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
    factor.diagonal(0, -2, -1).add_(a)
    return factor


class Muon(Optimizer):
    """Nesterov momentum, orthogonalized block by block, with decoupled decay.

    Each group has `blocks`, a `Blocks` that describes its matrices. Under FSDP a matrix is
    gathered, and every process computes the same step and keeps its own part of it.
    """

    def __init__(
        self, groups: Iterable[dict[str, Any]], *, lr: float, momentum: float, decay: float = 0.0
    ) -> None:
        super().__init__(groups, {"lr": lr, "momentum": momentum, "decay": decay})

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take one step; a closure, if given, is called first and its loss returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        weights = sum(one.numel() for group in self.param_groups for one in group["params"])
        with _threads_for(weights):
            self._update()
        return loss

    def _update(self) -> None:
        by_shape: dict[torch.Size, list[tuple[Parameter, dict[str, Any], Tensor]]] = {}
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    direction = gather(self._nesterov(parameter, float(group["momentum"])))
                    split = group["blocks"].split(direction)
                    by_shape.setdefault(split.shape[1:], []).append((parameter, group, split))
        for same_shape in by_shape.values():
            steps = orthogonalize(torch.cat([split for _, _, split in same_shape]))
            parts = steps.split([len(split) for _, _, split in same_shape])
            for (parameter, group, _), part in zip(same_shape, parts, strict=True):
                if group["decay"]:
                    parameter.mul_(1 - group["lr"] * group["decay"])
                if dist.is_initialized():
                    step = distribute_like(parameter, group["blocks"].join(part))
                    parameter.add_(step, alpha=-group["lr"])
                else:
                    group["blocks"].split(parameter).add_(part, alpha=-group["lr"])

    def _nesterov(self, parameter: Parameter, momentum: float) -> Tensor:
        assert parameter.grad is not None
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        state["momentum"].lerp_(parameter.grad, 1 - momentum)
        return parameter.grad.lerp(state["momentum"], momentum)


@contextmanager
def _threads_for(weights: int) -> Generator[None]:
    before = torch.get_num_threads()
    if weights > _SMALL or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def gather(tensor: Tensor) -> Tensor:
    """A tensor gathered from all processes, or itself if it is not distributed."""
    if not dist.is_initialized():
        return tensor
    from torch.distributed.tensor import DTensor  # takes a second to import

    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def distribute_like(parameter: Tensor, whole: Tensor) -> Tensor:
    """A whole tensor, distributed over processes as a parameter is."""
    if not dist.is_initialized():
        return whole
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(parameter, DTensor):
        return whole
    # Every process holds the same whole tensor, so nothing has to be sent.
    mesh, placements = parameter.device_mesh, parameter.placements
    return distribute_tensor(whole, mesh, placements, src_data_rank=None)
