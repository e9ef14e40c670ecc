"""`pathsum composition`: which heads read the output of which other heads."""

from dataclasses import replace
from typing import Annotated, Literal

import typer

from pathsum.base import Side
from pathsum.base.errors import InputError
from pathsum.cli.options import Offset, Session, analysis


@analysis
def composition(
    session: Session,
    kind: Annotated[
        list[Side] | None, typer.Option(help="Only Q-, K- or V-composition; may be repeated.")
    ] = None,
    min_z: Annotated[float | None, typer.Option(help="Only edges with at least this z.")] = None,
    max_p: Annotated[float | None, typer.Option(help="Only edges with at most this p.")] = None,
    k: Annotated[int, typer.Option("--k", "-k", help="Show at most this many edges.")] = 20,
    pair: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="WRITER READER", help="Show one pair of heads, direction by direction."
        ),
    ] = None,
    nulls: Annotated[
        bool,
        typer.Option(
            "--nulls",
            help="Also compare with permuted heads and untrained twins; score single directions.",
        ),
    ] = False,
    center: Annotated[
        Literal["auto", "on", "off"],
        typer.Option(help="Center what heads write; auto: where the model's norm does."),
    ] = "auto",
    offset: Offset = None,
) -> None:
    """Rank Q-, K- and V-composition between heads against chance.

    The score is ‖OV¹ M‖ / (‖OV¹‖ ‖M‖) with M the QK, QKᵀ or OV of the reading head. z and p compare
    score² with random rotations of the stream: a small p means that the two heads share more
    directions than random heads would. It does not show that the model uses the edge.
    """
    from pathsum.circuits import composition as compute
    from pathsum.circuits import empirical_composition
    from pathsum.circuits.composition_pairs import compare_pair
    from pathsum.circuits.reads_and_writes import KINDS, CompositionKind
    from pathsum.model.processes import join_world

    loaded = session.open()
    wanted = {one.value for one in kind or ()}
    kinds: list[CompositionKind] = [one for one in KINDS if not wanted or one in wanted]
    if nulls:
        if offset is not None or pair is not None:
            raise InputError("--nulls goes with neither --offset nor --pair; leave one of them out")
        with session.progress() as advance:
            against = empirical_composition(loaded, center=center, progress=advance)
        edges = against.composed.edges(kinds, min_z=min_z, max_p=max_p, k=k)
        session.show(replace(against, shown=edges.edges))
        return
    if pair is not None:
        session.show(compare_pair(loaded, *pair, kinds, center=center, offset=offset))
        return
    with join_world() as world:
        with session.progress(quiet=not world.is_first) as advance:
            every = compute(loaded, center=center, offset=offset, progress=advance)
        if world.is_first:
            session.show(every.edges(kinds, min_z=min_z, max_p=max_p, k=k))
