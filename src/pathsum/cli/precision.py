"""`pathsum precision`: a forward pass in low precision against the float32 one."""

from typing import Annotated, Literal

import typer

from pathsum.cli.inputs import measured_sequences
from pathsum.cli.options import (
    AsJson,
    Device,
    ModelName,
    Revision,
    Seed,
    Sequences,
    TextFile,
    TokenIds,
    open_model,
)
from pathsum.cli.view import show


def precision(
    model: ModelName,
    low: Annotated[
        Literal["bfloat16", "float16"] | None,
        typer.Option("--low", help="The low precision; default: what the checkpoint is stored in."),
    ] = None,
    text: TextFile = None,
    tokens: TokenIds = None,
    sequences: Sequences = 4,
    seed: Seed = 0,
    revision: Revision = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Compare a bfloat16 or float16 forward pass with float32.

    Decompositions add up to the float32 numbers, no matter how a checkpoint is stored.
    """
    from pathsum.model.precision import precision_gap

    loaded = open_model(model, device, None, as_json, revision)
    measured = measured_sequences(loaded, text, tokens, sequences, None, 4, seed)
    show(precision_gap(loaded, measured, low), as_json)
