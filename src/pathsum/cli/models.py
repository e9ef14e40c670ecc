"""`pathsum models`: what there is to load by name."""

from pathsum.cli.options import AsJson
from pathsum.cli.view import show


def models(as_json: AsJson = False) -> None:
    """List the models that come with pathsum, trained or built by hand."""
    from pathsum.sources import named_models

    show(named_models(), as_json)
