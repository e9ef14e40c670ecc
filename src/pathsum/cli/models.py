"""`pathsum models`: the models that can be loaded by name."""

from pathsum.cli.options import AsJson
from pathsum.cli.view import show


def models(as_json: AsJson = False) -> None:
    """List the bundled models, trained and hand-built."""
    from pathsum.sources import named_models

    show(named_models(), as_json)
