"""A path in a model: its OV, its full OV, and its pattern on a run.

`Path.ov`, `Path.full_ov` and `Path.pattern` call these.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import torch

from pathsum.algebra import Factored
from pathsum.errors import PathError
from pathsum.model.folding import embed_through, embeddings_as_read, folded_unembedding, unembed
from pathsum.model.weights import Weights
from pathsum.names import Edge, HeadId, HeadRead, LogitsRead, Path, Side, Source, find_head
from pathsum.shapes import HeadPattern

if TYPE_CHECKING:
    from pathsum.model.model import Model
    from pathsum.model.trace import Trace


def check_path(model: "Model | Weights", path: Path) -> None:
    """Raises PathError or HeadError if no run of this model takes this path."""
    config, source = model.config, path.source
    for head in path.heads:
        find_head(head, config.n_layers, config.n_heads)
    if source.kind == "pos" and config.positions != "residual":
        raise PathError(
            f"no path of this model begins at positions: positions={config.positions!r}, so "
            "they are never in the residual stream"
        )
    if source.kind == "mlp" and config.mlp == "none":
        raise PathError(f"no path begins at {source}: this model has no MLPs")
    if source.layer >= config.n_layers:
        raise PathError(
            f"no path begins at {source}: the model has {config.n_layers} layers, counted from 0"
        )


def path_ov(model: "Model", path: Path) -> Factored:
    """The product of a path's OVs in the residual basis (normalization scales omitted)."""
    check_path(model, path)
    if not path.heads:
        raise PathError(f"{path} goes through no head, so it has no OV; its full_ov is W_E W_U")
    product = model.head(path.heads[0]).ov
    for head in path.heads[1:]:
        product = product @ model.head(head).ov
    return product if carries_text(model, path.heads) else _nothing(product)


def carries_text(model: "Model", steps: Sequence[HeadId | Source | LogitsRead]) -> bool:
    """Whether what one step writes reaches the next one's values (or the logits) at every step.

    An edited edge carries the same for every text, so a path along it carries nothing.
    """
    edges = model.weights.edited_edges
    for writer, reader in pairwise(steps):
        assert not isinstance(writer, LogitsRead)
        assert not isinstance(reader, Source)
        read = HeadRead(reader, Side.V) if isinstance(reader, HeadId) else reader
        if Edge(writer, read) in edges:
            return False
    return True


def _nothing(product: Factored) -> Factored:
    return Factored(torch.zeros_like(product.A), product.B)


def path_full_ov(model: "Model", path: Path) -> Factored:
    """From tokens (`embed`) or positions (`pos`) through a path's heads to predicted tokens."""
    check_path(model, path)
    if path.source.kind not in ("embed", "pos"):
        raise PathError(
            f"{path.source} is computed on a run, so it has no fixed rows to tabulate; use a path "
            "from 'embed' or 'pos'"
        )
    weights, W_pos = model.weights, model.weights.W_pos if path.source.kind == "pos" else None
    if path.heads:
        ov = path_ov(model, path)
        placed = None if W_pos is None else W_pos @ ov.A
        left = embed_through(weights, path.heads[0].layer, ov.A) if placed is None else placed
        found = Factored(left, unembed(weights, ov.B))
    else:
        rows = embeddings_as_read(weights, model.config.n_layers) if W_pos is None else W_pos
        found = Factored(rows, folded_unembedding(weights)[0])
    steps = (path.source, *path.heads, LogitsRead())
    return found if carries_text(model, steps) else _nothing(found)


def path_pattern(trace: "Trace", path: Path) -> HeadPattern:
    """diag(s_final)·A[top]·diag(s)·…·A[bottom]·diag(s): a path's pattern on a run.

    On a model without normalization the rows sum to 1. `pattern @ rows of the source @ ov @ W_U`
    is the path's part of the logits.
    """
    check_path(trace.model, path)
    if path.source.kind == "unembed_bias":
        raise PathError("bias_U is added to the logits themselves, so it has no pattern")
    scales = trace.scales
    length = trace.tokens.shape[1]
    product = torch.eye(length, dtype=trace.weights.dtype, device=trace.weights.device)
    product = product.expand(trace.tokens.shape[0], -1, -1)
    for head in path.heads:
        scaled = trace.pattern(head) * scales.attention[head.layer][:, None]
        product = scales.write[head.layer][..., None] * scaled @ product
    return product * scales.final[:, :, None]
