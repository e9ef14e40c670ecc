"""`pathsum induction`: induction heads, their partners and their mechanism, tested."""

from pathsum.cli.options import (
    AsJson,
    Device,
    Draws,
    Dtype,
    ModelName,
    ProbeSequences,
    Revision,
    Seed,
    open_model,
)
from pathsum.cli.view import console, progress, show


def induction(
    model: ModelName,
    sequences: ProbeSequences = 10,
    draws: Draws = 200,
    seed: Seed = 0,
    revision: Revision = None,
    device: Device = None,
    dtype: Dtype = None,
    as_json: AsJson = False,
) -> None:
    """Find induction heads and test how they work by cutting edges and replacing patterns."""
    from pathsum.heads import induction as find_induction

    loaded = open_model(model, device, dtype, as_json, revision)
    with progress(as_json) as advance:
        found = find_induction(
            loaded, sequences=sequences, draws=draws, seed=seed, progress=advance
        )
    show(found, as_json)
    if not as_json:
        for head in found.heads:
            console().print()
            console().print(head)
