"""How many threads a command computes with."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathsum.explorer.open_models import OpenModel

SMALL = 20_000_000


def one_thread_if_small(served: "OpenModel") -> None:
    """Small matrices gain nothing from a second thread, and lose much on a busy machine.

    Answers about a small model are thousands of tiny products; threads that wait for each other at
    each of them made a page several times slower.
    """
    import torch

    if served.model.weights.n_parameters < SMALL:
        torch.set_num_threads(1)
