"""`pathsum bandwidth`: how the dimensions of the residual stream are used."""

from pathsum.cli.options import (
    AsJson,
    Device,
    Dtype,
    ModelName,
    Revision,
    open_model,
)
from pathsum.cli.view import progress, show


def bandwidth(
    model: ModelName,
    revision: Revision = None,
    device: Device = None,
    dtype: Dtype = None,
    as_json: AsJson = False,
) -> None:
    """Show which dimensions of the residual stream are written, read, free and deleted."""
    from pathsum.circuits import bandwidth as compute

    loaded = open_model(model, device, dtype, as_json, revision)
    with progress(as_json) as advance:
        found = compute(loaded, progress=advance)
    show(found, as_json)
