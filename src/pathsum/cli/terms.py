"""`pathsum terms`: what paths of each order do for the loss."""

from typing import TYPE_CHECKING, Annotated

import typer

from pathsum.cli.options import AsJson, ModelName
from pathsum.cli.sequences import Block, Copies, Draws, Seed, TextFile, sequences
from pathsum.cli.view import progress, show

if TYPE_CHECKING:
    from pathsum.model import Model
    from pathsum.paths import TermSet


def terms(
    model: ModelName,
    text: TextFile = None,
    split: Annotated[
        str, typer.Option(help="Split an order further: `layers`, `heads`, `virtual`, or `none`.")
    ] = "layers",
    recompute_scales: Annotated[
        bool,
        typer.Option(
            "--recompute-scales",
            help="Normalize truncated streams by their own size (no path sum).",
        ),
    ] = False,
    recompute_mlps: Annotated[
        bool,
        typer.Option("--recompute-mlps", help="Let MLPs read truncated streams (no path sum)."),
    ] = False,
    draws: Draws = 10,
    block: Block = None,
    copies: Copies = 4,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Term importance: the loss of paths through at most 0, 1, 2, … heads, order by order."""
    from pathsum.paths import MlpOutputs, Scales, term_importance
    from pathsum.sources import load

    loaded = load(model)
    tokens = sequences(loaded, text, block, copies, draws, seed)
    with progress(as_json) as advance:
        found = term_importance(
            loaded,
            tokens,
            sets=_sets(loaded, split),
            scale=Scales.RECOMPUTED if recompute_scales else Scales.FROZEN,
            mlps=MlpOutputs.RECOMPUTED if recompute_mlps else MlpOutputs.FROZEN,
            progress=advance,
        )
    show(found, as_json)


def _sets(model: "Model", split: str) -> "list[TermSet]":
    from pathsum.errors import InputError, near_misses
    from pathsum.paths import by_head, by_layer, by_virtual_head

    known = {"layers": by_layer, "heads": by_head, "virtual": by_virtual_head}
    if split == "none":
        return []
    if split not in known:
        raise InputError(
            f"terms cannot be split by {split!r}{near_misses(split, known)}; "
            "'layers', 'heads', 'virtual' or 'none' would be right"
        )
    return known[split](model)
