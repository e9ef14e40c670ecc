"""Optimizers: which one updates which parameter, and the learning rate of each step."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from pathsum.base.errors import InputError
from pathsum.model import Config
from pathsum.training.muon import Blocks, Muon, distribute_like, gather
from pathsum.training.recipe import Recipe


class Optimizers:
    """AdamW for embedding tables and gains, Muon or AdamW for matrices, with one schedule."""

    def __init__(self, recipe: Recipe, network: nn.Module) -> None:
        self.recipe = recipe
        self.names: dict[Tensor, str] = {
            parameter: name for name, parameter in network.named_parameters()
        }
        self.parameters = list(self.names)
        settings = recipe.optimizer
        plain: list[dict[str, Any]] = []
        matrices: list[dict[str, Any]] = []
        for parameter, name in self.names.items():
            blocks = matrix_blocks(recipe.config, name)
            if blocks is None:
                rate = _table_rate(recipe, name)
                plain.append({"params": [parameter], "lr": rate, "weight_decay": 0.0})
            elif settings.matrices == "muon":
                matrices.append({"params": [parameter], "blocks": blocks})
            else:
                decay = settings.matrix_decay
                plain.append(
                    {"params": [parameter], "lr": settings.matrix_lr, "weight_decay": decay}
                )
        betas = (settings.beta1, settings.beta2)
        self.all: list[Optimizer] = [AdamW(_merge_groups(plain), betas=betas, fused=True)]
        if matrices:
            self.all.append(
                Muon(
                    matrices,
                    lr=settings.matrix_lr,
                    momentum=settings.momentum,
                    decay=settings.matrix_decay,
                )
            )
        self.rates = [[float(group["lr"]) for group in one.param_groups] for one in self.all]

    def step(self, step: int) -> None:
        """Clip, set this step's learning rates, update every parameter, clear the gradients."""
        if self.recipe.optimizer.clip:
            nn.utils.clip_grad_norm_(self.parameters, self.recipe.optimizer.clip)
        factor = self.recipe.schedule.factor(step, self.recipe.steps)
        for optimizer, rates in zip(self.all, self.rates, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def state(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor of every optimizer, gathered, named `parameter/kind`."""
        for optimizer in self.all:
            for parameter, state in optimizer.state.items():
                for kind, tensor in state.items():
                    yield f"{self.names[parameter]}/{kind}", gather(tensor)

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Restore what `state` returned."""
        for optimizer in self.all:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    prefix = f"{self.names[parameter]}/"
                    for key, tensor in tensors.items():
                        if key.startswith(prefix):
                            self._restore(optimizer, parameter, key.removeprefix(prefix), tensor)

    def _restore(self, optimizer: Optimizer, parameter: Tensor, kind: str, tensor: Tensor) -> None:
        if tensor.ndim == 0:  # AdamW's step count
            optimizer.state[parameter][kind] = tensor.clone().to(parameter.device)
        elif tensor.shape != parameter.shape:
            raise InputError(
                f"the checkpoint's {kind} of {self.names[parameter]} has shape "
                f"{list(tensor.shape)}, but the parameter has {list(parameter.shape)}; resume with "
                "the recipe that wrote it"
            )
        else:
            optimizer.state[parameter][kind] = distribute_like(
                parameter, tensor.clone().to(parameter.device)
            )


def matrix_blocks(config: Config, name: str) -> Blocks | None:
    """The blocks of a parameter that reads or writes the stream; None for tables and gains."""
    bare = name.rpartition(".")[2]
    if bare == "W_QKV":
        return Blocks("columns", config.d_head)
    if bare == "W_O":
        return Blocks("rows", config.d_head)
    if bare in ("W_in", "W_gate"):
        return Blocks("rows", config.d_model)
    return Blocks("columns", config.d_model) if bare == "W_out" else None


def _table_rate(recipe: Recipe, name: str) -> float:
    bare = name.rpartition(".")[2]
    if bare == "W_pos":
        return recipe.optimizer.position_lr
    return recipe.optimizer.unembedding_lr if bare == "W_U" else recipe.optimizer.embedding_lr


def _merge_groups(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge groups with equal settings, so that one fused kernel updates them."""
    merged: dict[tuple[float, float], dict[str, Any]] = {}
    for group in groups:
        same = merged.setdefault((group["lr"], group["weight_decay"]), {**group, "params": []})
        same["params"] += group["params"]
    return list(merged.values())
