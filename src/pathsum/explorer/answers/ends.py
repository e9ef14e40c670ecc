"""`ends`: what heads read straight from the embedding and write straight into the logits."""

from collections.abc import Iterator
from dataclasses import dataclass

from pathsum.base import Record
from pathsum.base.errors import InputError, NotExactError
from pathsum.circuits import ScoredEdge, virtual_weights
from pathsum.circuits.token_basis import joined
from pathsum.explorer.params import ModelParams
from pathsum.explorer.workbench import Workbench
from pathsum.model import Model


@dataclass(frozen=True, eq=False)
class EndEdges(Record, kind="page-ends"):
    """Both ends of the graph of heads, the strongest edges first; `note` says what is left out.

    An edge leads from the embedding to a head, or from a head to the logits; its score is that of
    `pathsum.circuits.virtual_weights`, comparable with those between two heads.
    """

    edges: tuple[ScoredEdge, ...]
    note: str


# Four products with a whole vocabulary per head would keep the page of a larger model waiting.
MAX_END_HEADS = 48


def ends(bench: Workbench, params: ModelParams) -> EndEdges:
    """The embedding read by every query, key and value, and the logits written by every head."""
    return bench.result(params, "ends", _ends)


def _ends(model: Model) -> EndEdges:
    if len(model.heads) > MAX_END_HEADS:
        return EndEdges(
            (), f"The embedding and the logits are left out above {MAX_END_HEADS} heads."
        )
    found: list[ScoredEdge] = []
    notes: list[str] = []
    for write, read in _pairs(model):
        try:
            weights = virtual_weights(model, write, read)
        except (InputError, NotExactError) as error:
            notes.append(str(error))
            continue
        found.append(ScoredEdge(weights.edge, weights.score, weights.excess, weights.z, weights.p))
    found.sort(key=lambda edge: -edge.z)
    return EndEdges(tuple(found), joined(tuple(dict.fromkeys(notes))))


def _pairs(model: Model) -> Iterator[tuple[str, str]]:
    for head in model.heads:
        for side in "qkv":
            yield "embed", f"{head.label}.{side}"
        yield head.label, "logits"
