"""`pathsum terms`: how much paths of each order reduce the loss."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pathsum.cli.inputs import given_sequences, parse_targets, repeated_sequences
from pathsum.cli.options import (
    Length,
    MeasuredText,
    MetricOption,
    Repeats,
    Seed,
    Sequences,
    Session,
    Targets,
    TokenIds,
    analysis,
)

if TYPE_CHECKING:
    from pathsum.model import Model
    from pathsum.paths import TermSet


@analysis
def terms(
    session: Session,
    text: MeasuredText = None,
    tokens: TokenIds = None,
    targets: Targets = None,
    metric: MetricOption = "loss",
    repeated: Annotated[
        bool, typer.Option("--repeated", help="Measure on repeated random tokens instead.")
    ] = False,
    split: Annotated[
        Literal["layers", "heads", "virtual", "none"],
        typer.Option("--split", help="Split orders by layer, head or virtual head."),
    ] = "layers",
    recompute_scales: Annotated[
        bool,
        typer.Option(
            "--recompute-scales",
            help="Normalize truncated streams by their own scale (no longer a sum over paths).",
        ),
    ] = False,
    recompute_mlps: Annotated[
        bool,
        typer.Option(
            "--recompute-mlps", help="Run MLPs on truncated streams (no longer a sum over paths)."
        ),
    ] = False,
    sequences: Sequences = 10,
    length: Length = None,
    repeats: Repeats = 4,
    seed: Seed = 0,
) -> None:
    """Measure how much paths of each order reduce the loss.

    Term importance: the loss of paths through at most 0, 1, 2, … heads.
    """
    from pathsum.model.processes import join_world
    from pathsum.paths import term_importance
    from pathsum.text.shards import spaced

    loaded = session.open()
    given = given_sequences(loaded, text, tokens)
    wanted = parse_targets(targets, tokens)
    measured_on = "the given tokens"
    if given is None and loaded.held_out is not None and not repeated:
        given = loaded.held_out[spaced(len(loaded.held_out), sequences)]
        measured_on = "held-out text"
    elif given is None:
        given = repeated_sequences(loaded, length, repeats, sequences, seed)
        measured_on = "repeated random tokens"
    with join_world() as world:
        with session.progress(quiet=not world.is_first) as advance:
            found = term_importance(
                loaded,
                given,
                sets=_sets(loaded, split),
                targets=wanted,
                metric=metric,
                scale="recomputed" if recompute_scales else "frozen",
                mlps="recomputed" if recompute_mlps else "frozen",
                progress=advance,
            )
        if world.is_first:
            note = f"measured on {measured_on}\n{found.note}"
            session.show(replace(found, note=note))


def _sets(model: "Model", split: str) -> "list[TermSet]":
    from pathsum.paths import by_head, by_layer, by_virtual_head

    by = {"layers": by_layer, "heads": by_head, "virtual": by_virtual_head}
    return [] if split == "none" else by[split](model)
