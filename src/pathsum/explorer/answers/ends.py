"""`ends`: what heads read straight from the embedding and write straight into the logits."""

from collections.abc import Iterator
from dataclasses import dataclass

from pathsum.circuits import virtual_weights
from pathsum.circuits.tokens.token import joined
from pathsum.errors import InputError, NotExactError
from pathsum.explorer.params import ModelParams
from pathsum.explorer.workbench import Workbench
from pathsum.model import Model
from pathsum.names import Edge
from pathsum.result import Record


@dataclass(frozen=True)
class EndEdge:
    """An edge from the embedding to a head, or from a head to the logits, compared with chance.

    `score` is ‖write · read‖ / (‖write‖ ‖read‖), as between two heads; `z` and `p` compare it with
    random rotations of the stream (`pathsum.circuits.virtual_weights`).
    """

    edge: Edge
    score: float
    excess: float
    z: float
    p: float


@dataclass(frozen=True, eq=False)
class EndEdges(Record, kind="page-ends"):
    """Both ends of the graph of heads, the strongest edges first; `note` says what is left out."""

    edges: tuple[EndEdge, ...]
    note: str


# Four products with a whole vocabulary per head would keep the page of a larger model waiting.
MAX_END_HEADS = 48


def ends(bench: Workbench, params: ModelParams) -> EndEdges:
    """The embedding read by every query, key and value, and the logits written by every head."""
    return bench.result(params, "ends", _ends)


def _ends(model: Model) -> EndEdges:
    if len(model.heads) > MAX_END_HEADS:
        return EndEdges((), f"embedding and logits are left out above {MAX_END_HEADS} heads")
    found: list[EndEdge] = []
    notes: list[str] = []
    for write, read in _pairs(model):
        try:
            weights = virtual_weights(model, write, read)
        except (InputError, NotExactError) as error:
            notes.append(str(error))
            continue
        found.append(EndEdge(weights.edge, weights.score, weights.excess, weights.z, weights.p))
    found.sort(key=lambda edge: -edge.z)
    return EndEdges(tuple(found), joined(tuple(dict.fromkeys(notes))))


def _pairs(model: Model) -> Iterator[tuple[str, str]]:
    for head in model.heads:
        for side in "qkv":
            yield "embed", f"{head.label}.{side}"
        yield head.label, "logits"
