"""`places`: where in a text a head does most."""

from dataclasses import replace

import torch

from pathsum.circuits.tokens.token import joined
from pathsum.explorer.params import HeadParams
from pathsum.explorer.workbench import Workbench
from pathsum.heads.places import HeadPlaces, head_places

# Places in each order on a page, and sequences that are read: fewer than the library's, so that a
# page does not keep its reader waiting.
PLACES, PLACE_SEQUENCES = 8, 24


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
    found = head_places(model, params.head, text, k=PLACES, sequences=PLACE_SEQUENCES)
    read = f"{found.sequences} sequences of {name}"
    return replace(found, note=joined((f"on {read}", found.note)))
