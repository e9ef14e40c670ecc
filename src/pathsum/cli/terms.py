"""`pathsum terms`: what paths of each order are worth in loss."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from pathsum.cli.options import (
    AsJson,
    Device,
    Dtype,
    Length,
    ModelName,
    Repeats,
    Seed,
    Sequences,
    TextFile,
    open_model,
)
from pathsum.cli.sequences import measured_sequences
from pathsum.cli.view import progress, show

if TYPE_CHECKING:
    from pathsum.model import Model
    from pathsum.paths import TermSet


class Split(StrEnum):
    """What the paths of an order are grouped by."""

    LAYERS = "layers"
    HEADS = "heads"
    VIRTUAL = "virtual"
    NONE = "none"


def terms(
    model: ModelName,
    text: TextFile = None,
    split: Annotated[
        Split, typer.Option("--split", help="Split orders by layer, head or virtual head.")
    ] = Split.LAYERS,
    recompute_scales: Annotated[
        bool,
        typer.Option(
            "--recompute-scales",
            help="Normalize truncated streams by their own scale (not a sum over paths).",
        ),
    ] = False,
    recompute_mlps: Annotated[
        bool,
        typer.Option(
            "--recompute-mlps", help="Run MLPs on truncated streams (not a sum over paths)."
        ),
    ] = False,
    sequences: Sequences = 10,
    length: Length = None,
    repeats: Repeats = 4,
    seed: Seed = 0,
    device: Device = None,
    dtype: Dtype = None,
    as_json: AsJson = False,
) -> None:
    """Term importance: the loss of paths through at most 0, 1, 2, … heads, order by order."""
    from pathsum.model.processes import join_world
    from pathsum.paths import term_importance

    loaded = open_model(model, device, dtype, as_json)
    tokens = measured_sequences(loaded, text, sequences, length, repeats, seed)
    with join_world() as world:
        with progress(as_json or not world.is_first) as advance:
            found = term_importance(
                loaded,
                tokens,
                sets=_sets(loaded, split),
                scale="recomputed" if recompute_scales else "frozen",
                mlps="recomputed" if recompute_mlps else "frozen",
                progress=advance,
            )
        if world.is_first:
            show(found, as_json)


def _sets(model: "Model", split: Split) -> "list[TermSet]":
    from pathsum.paths import by_head, by_layer, by_virtual_head

    if split is Split.NONE:
        return []
    by = {Split.LAYERS: by_layer, Split.HEADS: by_head, Split.VIRTUAL: by_virtual_head}
    return by[split](model)
