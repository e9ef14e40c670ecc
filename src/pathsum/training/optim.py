"""Optimizers of a run: AdamW for tables and gains, Muon or AdamW for matrices, one schedule.

Muon orthogonalizes the momentum of each matrix. For momentum M = U S Vᵀ, the step is close to U Vᵀ,
so every direction moves equally far. The d_model × d_head matrix of each head is orthogonalized
separately, all heads of all layers in one batched Newton–Schulz iteration.

torch.optim.Muon orthogonalizes whole matrices, one after another, in bfloat16, which many CPUs
emulate. This version is blockwise, batched and in float32.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import AdamW, Optimizer

from pathsum.model import Config
from pathsum.training.recipe import Recipe

# Iterating the quintic a x + b x³ + c x⁵ brings singular values in (0, 1] close to 1. Its slope at
# zero is steep, so five rounds suffice: values end between 0.7 and 1.2, which works as well as 1.
_QUINTIC = (3.4445, -4.7750, 2.0315)
_ROUNDS = 5
_TINY = 1e-7


class Optimizers:
    """AdamW for embedding tables and gains, Muon or AdamW for matrices, with one schedule."""

    def __init__(self, recipe: Recipe, network: nn.Module) -> None:
        self.recipe = recipe
        self.names: dict[Tensor, str] = {
            parameter: name for name, parameter in network.named_parameters()
        }
        settings = recipe.optimizer
        adamw: dict[tuple[float, float], list[Tensor]] = {}
        matrices: list[dict[str, Any]] = []
        for parameter, name in self.names.items():
            blocks = matrix_blocks(recipe.config, name)
            if blocks is not None and settings.matrices == "muon":
                matrices.append({"params": [parameter], "blocks": blocks})
                continue
            decay = 0.0 if blocks is None else settings.matrix_decay
            rate = _table_rate(recipe, name) if blocks is None else settings.matrix_lr
            # Parameters with equal settings are updated by one fused kernel.
            adamw.setdefault((rate, decay), []).append(parameter)
        groups = [
            {"params": params, "lr": rate, "weight_decay": decay}
            for (rate, decay), params in adamw.items()
        ]
        betas = (settings.beta1, settings.beta2)
        self.all: list[Optimizer] = [AdamW(groups, betas=betas, fused=True)]
        if matrices:
            lr, decay = settings.matrix_lr, settings.matrix_decay
            self.all.append(Muon(matrices, lr=lr, momentum=settings.momentum, decay=decay))
        self.rates = [
            [float(group["lr"]) for group in optimizer.param_groups] for optimizer in self.all
        ]

    def step(self, step: int) -> None:
        """Clip gradients, set the learning rates of a step, and update every parameter."""
        if self.recipe.optimizer.clip:
            nn.utils.clip_grad_norm_(list(self.names), self.recipe.optimizer.clip)
        factor = self.recipe.schedule.factor(step, self.recipe.steps)
        for optimizer, rates in zip(self.all, self.rates, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def state(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor of every optimizer, named `parameter/kind`."""
        for optimizer in self.all:
            for parameter, state in optimizer.state.items():
                for kind, tensor in state.items():
                    yield f"{self.names[parameter]}/{kind}", tensor

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Restore the tensors of `state`."""
        owners = {
            self.names[parameter]: (optimizer, parameter)
            for optimizer in self.all
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        for key, tensor in tensors.items():
            name, _, kind = key.rpartition("/")
            if name in owners:
                optimizer, parameter = owners[name]
                optimizer.state[parameter][kind] = tensor.clone().to(parameter.device)


def matrix_blocks(config: Config, name: str) -> "MatrixBlocks | None":
    """The blocks of a matrix that reads or writes the stream; None for tables and gains."""
    blocks = {
        "W_QKV": MatrixBlocks("columns", config.d_head),
        "W_O": MatrixBlocks("rows", config.d_head),
        "W_in": MatrixBlocks("rows", config.d_model),
        "W_gate": MatrixBlocks("rows", config.d_model),
        "W_out": MatrixBlocks("columns", config.d_model),
    }
    return blocks.get(name.rpartition(".")[2])


def _table_rate(recipe: Recipe, name: str) -> float:
    settings = recipe.optimizer
    rates = {"W_pos": settings.position_lr, "W_U": settings.unembedding_lr}
    return rates.get(name.rpartition(".")[2], settings.embedding_lr)


@dataclass(frozen=True)
class MatrixBlocks:
    """The layout of blocks in a matrix: side by side (`columns`) or stacked (`rows`)."""

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
    """Each block with singular values close to 1, by Newton–Schulz iteration.

    A round is x ← M x with M = a + b G + c G² and G = x xᵀ. Every M is a polynomial of the first G,
    so they commute, and G ← M G M. Rounds are width × width products, and only two products instead
    of ten involve the larger x.
    """
    gram = x @ x.mT
    # ‖x‖² = tr G. Dividing G by it and M by its root is cheaper than dividing the larger x.
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
    """Nesterov momentum, orthogonalized by block, with decoupled weight decay.

    Each parameter group has `blocks`, the `MatrixBlocks` of its matrices.
    """

    def __init__(
        self, groups: Iterable[dict[str, Any]], *, lr: float, momentum: float, decay: float = 0.0
    ) -> None:
        super().__init__(groups, {"lr": lr, "momentum": momentum, "decay": decay})

    @torch.no_grad()
    def step(self, _closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Take one step; closures are not supported."""
        by_shape: dict[torch.Size, list[tuple[Parameter, dict[str, Any], Tensor]]] = {}
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    direction = self._nesterov(parameter, float(group["momentum"]))
                    split = group["blocks"].split(direction)
                    by_shape.setdefault(split.shape[1:], []).append((parameter, group, split))
        for entries in by_shape.values():
            steps = orthogonalize(torch.cat([split for _, _, split in entries]))
            parts = steps.split([len(split) for _, _, split in entries])
            for (parameter, group, _), part in zip(entries, parts, strict=True):
                if group["decay"]:
                    parameter.mul_(1 - group["lr"] * group["decay"])
                group["blocks"].split(parameter).add_(part, alpha=-group["lr"])

    def _nesterov(self, parameter: Parameter, momentum: float) -> Tensor:
        assert parameter.grad is not None
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        state["momentum"].lerp_(parameter.grad, 1 - momentum)
        return parameter.grad.lerp(state["momentum"], momentum)
