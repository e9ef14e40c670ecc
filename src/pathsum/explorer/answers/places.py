"""`places`: where in a text a head does most."""

from dataclasses import replace

import torch

from pathsum.circuits.token_basis import joined
from pathsum.explorer.params import HeadParams
from pathsum.explorer.workbench import Workbench
from pathsum.heads.places import HeadPlaces, head_places, read_places

# Places in each order on a page, and sequences that are read: fewer than the library's, so that a
# page does not keep its reader waiting.
PLACES, PLACE_SEQUENCES = 8, 24
# The most heads of a model whose text is read for all of them at once.
SHARED_HEADS = 16


def places(bench: Workbench, params: HeadParams) -> HeadPlaces:
    """A head's places in the held-out text that comes with its model, else in example texts."""
    model = bench.model(params)
    if model.held_out is not None:
        text, name = model.held_out, "held-out text"
    else:
        text, name = (
            [
                torch.tensor(example.ids)
                for example in bench.examples(params)
                if len(example.ids) > 1
            ],
            "the example texts",
        )
    reading = None
    if len(model.heads) <= SHARED_HEADS:
        # The pages of all heads share what was read.
        reading = bench.slow_result(
            params,
            "places",
            lambda model, report: read_places(
                model,
                [head.label for head in model.heads],
                text,
                sequences=PLACE_SEQUENCES,
                progress=report,
            ),
        )
    found = head_places(
        model,
        params.head,
        text,
        k=PLACES,
        sequences=PLACE_SEQUENCES,
        reading=reading,
        progress=bench.progress,
    )
    read = f"{found.sequences} sequences of {name}"
    return replace(found, note=joined((f"on {read}", found.note)))
