"""`atlas`: every head with every score against chance, and its eigenvalues for a thumbnail."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pathsum.base import Progress, Record
from pathsum.circuits.copying import layer_eigenvalues
from pathsum.circuits.tokens.token_basis import token_product
from pathsum.explorer.params import ModelParams
from pathsum.explorer.workbench import Workbench
from pathsum.heads.atlas import Atlas
from pathsum.heads.atlas import atlas as make_atlas
from pathsum.model import Model


@dataclass(frozen=True, eq=False)
class AtlasAnswer(Record, kind="page-atlas"):
    """The atlas of a model; `eigenvalues` [head, n, 2] of full OV, divided by the largest."""

    atlas: Atlas
    eigenvalues: Tensor


# Eigenvalues per thumbnail, the largest first.
MAX_EIGENVALUES = 64


def atlas(bench: Workbench, params: ModelParams) -> AtlasAnswer:
    """Every head's scores against chance, its kind, and its eigenvalues for a thumbnail."""
    return AtlasAnswer(
        whole_atlas(bench, params), bench.slow_result(params, "thumbnails", _thumbnail_eigenvalues)
    )


def whole_atlas(bench: Workbench, params: ModelParams) -> Atlas:
    """The library's atlas of a model, cached."""
    return bench.slow_result(params, "atlas", lambda model, to: make_atlas(model, progress=to))


def _thumbnail_eigenvalues(model: Model, progress: Progress) -> Tensor:
    """Eigenvalues of full OV, each head's divided by its largest, [head, n, 2]."""
    weights = model.weights
    rows: list[Tensor] = []
    product = None
    for layer in range(model.config.n_layers):
        progress(layer, model.config.n_layers, "eigenvalues")
        if product is None or layer == 1:
            product = token_product(weights, layer)
        values = layer_eigenvalues(weights, layer, product)
        order = values.abs().argsort(-1, descending=True)
        values = values.gather(-1, order)[:, :MAX_EIGENVALUES]
        largest = values.abs().amax(-1, keepdim=True)
        rows.append(torch.where(largest > 0, values / largest, values))
    return torch.view_as_real(torch.cat(rows)).float()
