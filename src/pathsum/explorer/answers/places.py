"""`places`: where in a text a head does most."""

from dataclasses import replace

import torch

from pathsum.circuits.tokens.token import joined
from pathsum.explorer.params import HeadParams
from pathsum.explorer.workbench import Workbench
from pathsum.heads.contexts import TopContexts, read_contexts

# Places in each order on a page, and sequences that are read: fewer than the library's, so that a
# page does not keep its reader waiting.
PLACES, PLACE_SEQUENCES = 8, 24
# The most heads of a model whose text is read for all of them at once.
SHARED_HEADS = 16


def places(bench: Workbench, params: HeadParams) -> TopContexts:
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
    # In a small model the pages of all heads share one reading of the text.
    shared = len(model.heads) <= SHARED_HEADS
    labels = [head.label for head in model.heads] if shared else [model.head(params.head).label]
    read = bench.slow_result(
        params,
        "contexts" if shared else f"contexts of {labels[0]}",
        lambda model, report: read_contexts(
            model, labels, text, sequences=PLACE_SEQUENCES, progress=report
        ),
    )
    found = read.top(params.head, PLACES)
    return replace(found, note=joined((f"on {found.sequences} sequences of {name}", found.note)))
