"""`pathsum head`: one head or virtual head from weights alone, and the places it affects most."""

from typing import Annotated

import typer

from pathsum.base.errors import InputError
from pathsum.cli.options import Offset, Session, analysis


@analysis
def head(
    session: Session,
    name: Annotated[
        str,
        typer.Argument(metavar="HEAD", help="A head (L1H4), or a virtual head (L0H7,L1H4)."),
    ],
    token: Annotated[
        str | None,
        typer.Option(
            "--token",
            help="Show what attends to this token, and which logits it raises and lowers.",
        ),
    ] = None,
    offset: Offset = None,
    places: Annotated[
        bool,
        typer.Option(
            "--places", help="Show where in the model's held-out text the head does most."
        ),
    ] = False,
    k: Annotated[
        int | None,
        typer.Option(
            "--k", "-k", help="How many tokens with --token, or places with --places (default 10)."
        ),
    ] = None,
) -> None:
    """Show what a head does: copying, token clusters, offsets.

    With --token, its circuits at one token; with --places, where in a text it does most.
    """
    from pathsum.base import ARROW, Path
    from pathsum.base.path import split_arrows
    from pathsum.circuits import head_card, token_card

    circuit = Path("embed", split_arrows(name.replace(",", ARROW)))
    loaded = session.open()
    if token is not None and places:
        raise InputError("--token reads weights and --places reads a text; give one of them")
    if token is not None:
        session.show(token_card(loaded, circuit, token, k, offset=offset))
        return
    if places:
        from pathsum.heads.contexts import K, top_contexts

        with session.progress() as advance:
            strongest = top_contexts(loaded, name, k=K if k is None else k, progress=advance)
        session.show(strongest)
        return
    if offset is not None:
        raise InputError("--offset applies to the attention of one token; give --token with it")
    with session.progress() as advance:
        found = head_card(loaded, circuit, progress=advance)
    session.show(found)
