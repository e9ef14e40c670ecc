"""What many commands take, said once. Imports nothing heavy: `--help` must be quick."""

from typing import Annotated, TypeAlias

import typer

ModelName: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A name from `pathsum models`, a folder that a model was saved to, or a hub id.",
    ),
]
AsJson: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print JSON for machines instead of tables for people.")
]
