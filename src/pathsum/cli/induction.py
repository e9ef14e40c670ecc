"""`pathsum induction`: induction heads, their partners and their mechanism, tested."""

from pathsum.cli.options import Draws, ProbeSequences, Seed, Session, analysis
from pathsum.cli.view import console


@analysis
def induction(
    session: Session,
    sequences: ProbeSequences = 10,
    draws: Draws = 200,
    seed: Seed = 0,
) -> None:
    """Find induction heads and test how they work.

    By cutting edges into them and replacing their patterns.
    """
    from pathsum.heads import induction as find_induction

    loaded = session.open()
    with session.progress() as advance:
        found = find_induction(
            loaded, sequences=sequences, draws=draws, seed=seed, progress=advance
        )
    session.show(found)
    if not session.as_json:
        for head in found.heads:
            console().print()
            console().print(head)
