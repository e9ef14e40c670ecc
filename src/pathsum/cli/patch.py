"""`pathsum patch`: exchange an edge or a node of a run and recompute everything after it."""

from typing import Annotated, Any, TypeAlias

import typer

from pathsum.base.errors import InputError
from pathsum.cli.inputs import parse_ids, read_input
from pathsum.cli.options import (
    InputText,
    Position,
    Session,
    TargetToken,
    TokenIds,
    Versus,
    analysis,
    parse_versus,
)

OtherText: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--with",
        metavar="OTHER_TEXT",
        help="Text of the other run, or its ids with --tokens; same length.",
    ),
]
By: TypeAlias = Annotated[
    str | None,
    typer.Option("--by", help="Ablate instead of patching: replace by 'zero' or by the 'mean'."),
]
Edges: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--edge",
        help="Patch this edge, for example 'L0H0->L1H0.k' or, at positions, 'L0H0@2->L1H0@5.k'; "
        "may be repeated.",
    ),
]
Nodes: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--node",
        help="Patch everything that a head, embed or mlp0 writes, or only at one position: "
        "'L0H0@2'; may be repeated.",
    ),
]
Into: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--into", help="Without --edge and --node: only edges into this head; may be repeated."
    ),
]
Sweep: TypeAlias = Annotated[
    bool, typer.Option("--sweep", help="Patch every head (or each --node) at every position.")
]
PatchedRun: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--patched-run",
        help="With --sweep and --with: patch OTHER_TEXT's run ('corrupted', the default) or TEXT's "
        "('clean').",
    ),
]


@analysis
def patch(
    session: Session,
    text: InputText = None,
    other_text: OtherText = None,
    tokens: TokenIds = None,
    by: By = None,
    edge: Edges = None,
    node: Nodes = None,
    into: Into = None,
    sweep: Sweep = False,
    patched_run: PatchedRun = None,
    position: Position = -1,
    token: TargetToken = None,
    versus: Versus = "mean",
) -> None:
    """Patch nodes and edges: what does the prediction lose?

    With none named, all edges are ranked. TEXT is the run whose prediction is measured, OTHER_TEXT
    the one that parts are taken from.
    """
    from pathsum.paths import causal_effects, patch_effect, patch_sweep

    names = [*(edge or []), *(node or [])]
    _check_options(other_text, by, names, edge, into, sweep, patched_run)
    loaded = session.open()
    given = read_input(text, tokens)
    there: Any = other_text
    if other_text is not None and tokens is not None:
        there = parse_ids([other_text], "--with")[0]
    target: dict[str, Any] = {"position": position, "token": token, "versus": parse_versus(versus)}
    if sweep:
        with session.progress() as advance:
            swept = patch_sweep(
                loaded,
                given,
                there,
                **target,
                by=by,
                nodes=node or None,
                into=patched_run,
                progress=advance,
            )
        session.show(swept)
        return
    trace = loaded.trace(given)
    other: Any = by if there is None else loaded.trace(there)
    if names:
        session.show(patch_effect(trace, dict.fromkeys(names, other), **target))
        return
    with session.progress() as advance:
        ranked = causal_effects(trace, other, **target, into=into or None, progress=advance)
    session.show(ranked)


def _check_options(
    other_text: str | None,
    by: str | None,
    names: list[str],
    edges: list[str] | None,
    into: list[str] | None,
    sweep: bool,
    patched_run: str | None,
) -> None:
    """Raise InputError if the options do not say one thing, or if one of them would be ignored."""
    if (other_text is None) == (by is None):
        raise InputError(
            "say what replaces the patched parts: --with OTHER_TEXT takes them from that run, "
            "--by zero or --by mean ablates them; give one of the two"
        )
    if names and into:
        raise InputError("--into ranks edges, and --edge and --node patch named ones; give one")
    if by is not None and not names and not sweep:
        raise InputError("--by replaces nodes and edges; give --node or --edge, or --sweep for all")
    if sweep and (edges or into):
        option = "--edge" if edges else "--into"
        raise InputError(f"--sweep goes over nodes at all positions; leave {option} out")
    if patched_run is not None and (not sweep or by is not None):
        raise InputError(
            "--patched-run says which of two runs a --sweep patches; give --sweep and --with, or "
            "leave --patched-run out"
        )
