"""`pathsum bandwidth`: how the dimensions of the residual stream are used."""

from pathsum.cli.options import Session, analysis


@analysis
def bandwidth(session: Session) -> None:
    """Show which stream dimensions are written, read and free.

    Also the heads that delete what others wrote.
    """
    from pathsum.circuits import bandwidth as compute

    loaded = session.open()
    with session.progress() as advance:
        found = compute(loaded, progress=advance)
    session.show(found)
