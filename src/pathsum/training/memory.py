"""Estimates of the memory and disk space of a run, checked before anything is allocated."""

import os
import shutil
from pathlib import Path

import torch

from pathsum.base.errors import InputError
from pathsum.model import Config
from pathsum.training.recipe import Recipe
from pathsum.training.snapshots import snapshot_steps

_FLOAT = 4
# Covers the tokenizer, the config and the log of a run.
_OVERHEAD = 1 << 20


def layer_parameters(config: Config) -> int:
    """The number of weights of one layer's matrices."""
    c = config
    mlp = (3 if c.gated else 2) * c.d_model * c.d_mlp
    return 2 * c.d_model * (c.n_heads + c.n_kv_heads) * c.d_head + mlp


def n_parameters(config: Config) -> int:
    """The number of trained parameters."""
    c = config
    tables = c.d_model * c.d_vocab * (1 if c.tied else 2)
    positions = c.n_ctx * c.d_model * (max(1, c.n_layers) if c.positions != "none" else 0)
    return tables + positions + c.n_layers * layer_parameters(c)


def estimated_bytes(recipe: Recipe, processes: int = 1) -> int:
    """About what one process needs: weights, gradients, two moments, activations of one step."""
    c = recipe.config
    tokens = recipe.batch * c.n_ctx // processes
    # Logits, probabilities and their gradient; about ten residual streams per layer.
    activations = tokens * (3 * c.d_vocab + c.n_layers * (10 * c.d_model + 3 * c.d_mlp))
    return _FLOAT * (4 * n_parameters(c) + activations)


def available_bytes(device: torch.device) -> int | None:
    """Free memory, or None where the system does not report it."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def check_memory(recipe: Recipe, device: torch.device, processes: int = 1) -> None:
    """Raise, before anything is allocated, if a run needs more memory than is free."""
    needed, free = estimated_bytes(recipe, processes), available_bytes(device)
    if free is not None and needed > free:
        raise InputError(
            f"training needs about {needed / 1e9:.1f} GB ({n_parameters(recipe.config):,} "
            f"parameters, {recipe.batch} × {recipe.config.n_ctx} tokens per step, a vocabulary of "
            f"{recipe.config.d_vocab:,}), and {free / 1e9:.1f} GB are free; lower batch, "
            "data.vocabulary or the model's sizes"
        )


def estimated_disk_bytes(recipe: Recipe) -> int:
    """About what a run's folder takes at its fullest.

    The model, a model per snapshot, and two checkpoints, because one is written before the previous
    one is removed. A checkpoint holds the weights and up to two moments of each.
    """
    models = 1 + len(snapshot_steps(recipe.steps, recipe.watching.snapshots))
    weights = _FLOAT * n_parameters(recipe.config)
    return models * (weights + _OVERHEAD) + 2 * 3 * weights


def check_disk(recipe: Recipe, folder: Path) -> None:
    """Raise, before training starts, if a run would fill the disk."""
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    needed, free = estimated_disk_bytes(recipe), shutil.disk_usage(there).free
    if needed > free:
        raise InputError(
            f"the run needs about {needed / 1e9:.2f} GB in {folder} "
            f"({recipe.watching.snapshots} snapshots of {n_parameters(recipe.config):,} "
            f"parameters, a checkpoint), and {free / 1e9:.2f} GB are free there; name a folder on "
            "another disk with --out, or lower watching.snapshots"
        )
