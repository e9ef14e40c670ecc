"""`pathsum bandwidth`: how the dimensions of the residual stream are used."""

from pathsum.cli.options import AsJson, ModelName
from pathsum.cli.view import progress, show


def bandwidth(model: ModelName, as_json: AsJson = False) -> None:
    """Show which dimensions of the residual stream are written, read, free and deleted."""
    from pathsum.circuits import bandwidth as compute
    from pathsum.sources import load

    loaded = load(model)
    with progress(as_json) as advance:
        found = compute(loaded, progress=advance)
    show(found, as_json)
