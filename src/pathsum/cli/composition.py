"""`pathsum composition`: which heads read what which heads write."""

from enum import StrEnum
from typing import Annotated

import typer

from pathsum.cli.options import AsJson, ModelName
from pathsum.cli.view import progress, show


class Kind(StrEnum):
    """Which side of the reader."""

    q = "q"
    k = "k"
    v = "v"


class Center(StrEnum):
    """Whether the mean is taken out of the stream."""

    auto = "auto"
    on = "on"
    off = "off"


def composition(
    model: ModelName,
    kind: Annotated[
        list[Kind] | None, typer.Option(help="Only this side of the reader; may be repeated.")
    ] = None,
    min_z: Annotated[float | None, typer.Option(help="Only edges with at least this z.")] = None,
    max_p: Annotated[float | None, typer.Option(help="Only edges with at most this p.")] = None,
    k: Annotated[int, typer.Option("-k", help="Show at most this many edges.")] = 20,
    pair: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="WRITER READER", help="One pair, direction by direction, as in L0H0 L1H0."
        ),
    ] = None,
    center: Annotated[
        Center,
        typer.Option(help="Take the mean out of writes; auto does where the model's norm does."),
    ] = Center.auto,
    offset: Annotated[
        int | None,
        typer.Option(help="Rotary models: QK at this offset instead of the mean over all."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Rank Q-, K- and V-composition between heads, beside what chance would give.

    The score is ‖OV¹ M‖ / (‖OV¹‖ ‖M‖) with M the QK, QKᵀ or OV of the head that reads. z and p
    compare score² with random rotations of the stream.
    """
    from pathsum.circuits import composition as compute
    from pathsum.circuits.composition.pair_components import compare_pair
    from pathsum.circuits.composition.reads_and_writes import KINDS, CompositionKind
    from pathsum.sources import load

    loaded = load(model)
    asked = {one.value for one in kind or ()}
    kinds: list[CompositionKind] = [one for one in KINDS if not asked or one in asked]
    if pair is not None:
        found = compare_pair(loaded, *pair, kinds, center=center.value, offset=offset)
        show(found, as_json)
        return
    with progress(as_json) as advance:
        every = compute(loaded, center=center.value, offset=offset, progress=advance)
    show(every.edges(kinds, min_z=min_z, max_p=max_p, k=k), as_json)
