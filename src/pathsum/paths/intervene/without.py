"""A run with heads and edges switched off, at all positions or at single ones.

    L0H3                  the head writes nothing
    L0H3@4                it writes nothing at position 4
    L0H3→L1H0.k           L1H0's keys do not read it
    L0H3@4→L1H0@9.k       L1H0's keys, as position 9 sees them, do not read it at position 4

Everything after is recomputed: a patch by zero, of what has a switch.
"""

from collections.abc import Sequence

from pathsum.errors import InputError, NotExactError, PathError
from pathsum.model import Trace
from pathsum.model.sites import find_site
from pathsum.names import (
    Edge,
    HeadId,
    HeadRead,
    LogitsRead,
    Node,
    NodeEdge,
    Site,
    Source,
    Writer,
)
from pathsum.names.path import split_arrows
from pathsum.paths.intervene.patching import patch


def without(trace: Trace, names: Sequence[str]) -> Trace:
    """A run of one sequence without some heads and edges, everything after them recomputed.

    >>> from pathsum.model import construct
    >>> trace = construct.induction().trace("a b c d a")
    >>> cut = without(trace, ["L0H0@2→L1H0@5.k"])
    >>> b = trace.model.token_id("b")
    >>> [round(float(run.logits[0, -1, b])) for run in (trace, cut)]
    [10, 0]
    """
    if trace.edits:
        raise NotExactError("this run was edited already; switch things off in the unedited run")
    if len(trace.tokens) != 1:
        raise InputError(
            f"the trace has {len(trace.tokens)} sequences; switch things off in a run of one"
        )
    return patch(trace, {parse_switch(trace, name): "zero" for name in names})


def parse_switch(trace: Trace, name: str) -> Site:
    """The site that a name switches off; raises an error if the run does not have it."""
    if "@" not in name:
        return find_site(trace.model, name)
    if len(split_arrows(name)) == 1:
        node = Node.parse(name)
        _check_position(trace, node)
        if node.head is None:
            raise PathError(f"{name!r} is not a head; at single positions only heads have a switch")
        trace.model.head(node.head)
        return find_site(trace.model, node)
    edge = NodeEdge.parse(name)
    _check_position(trace, edge.writer)
    _check_position(trace, edge.reader)
    # The same edge without positions has the same reasons not to exist.
    head = edge.reader.head
    find_site(trace.model, Edge(_writer(edge), HeadRead(head, edge.side) if head else LogitsRead()))
    return find_site(trace.model, edge)


def _writer(edge: NodeEdge) -> Writer:
    component = edge.writer.component
    if isinstance(component, HeadId | Source):
        return component
    raise PathError(
        f"{edge} cannot be cut: positions and biases are part of the read itself; cut what a head, "
        "'embed' or an MLP wrote"
    )


def _check_position(trace: Trace, node: Node) -> None:
    length = int(trace.lengths[0])
    if node.position >= length:
        raise InputError(f"{node} is out of range: the text has positions 0 to {length - 1}")
