"""A run with heads and edges switched off, at all positions or at single ones.

    L0H3                  the head writes nothing
    L0H3@4                it writes nothing at position 4
    L0H3→L1H0.k           L1H0's keys do not read it
    L0H3@4→L1H0@9.k       L1H0's keys, as position 9 sees them, do not read it at position 4

Everything after is recomputed. A `Message` replaces what a writer wrote in the run that the edits
make, so edits at single positions are made layer by layer, each from the run below it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.errors import InputError, NotExactError, PathError
from pathsum.model import Trace, trace_run
from pathsum.model.edits import Attend, Edit, HeadOutput, Message, SourceOutput
from pathsum.names import (
    Edge,
    HeadId,
    HeadRead,
    LogitsRead,
    Node,
    NodeEdge,
    Side,
    Source,
    Writer,
)
from pathsum.names.printed import split_arrows
from pathsum.paths.intervene.patching import parse_patch, written_by


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
    found = dict.fromkeys(parse_switch(trace, name) for name in names)
    plan = _Plan()
    for one in found:
        # An edge that is off everywhere is off at each position.
        if not (isinstance(one, NodeEdge) and Edge.parse(_whole(one)) in found):
            plan.add(trace, one)
    return plan.run(trace)


def parse_switch(trace: Trace, name: str) -> Edge | Writer | Node | NodeEdge:
    """What a name switches off; raises an error if the run has no such thing."""
    if "@" not in name:
        return parse_patch(trace.model, name)
    if len(split_arrows(name)) == 1:
        node = Node.parse(name)
        _check_position(trace, node)
        if node.head is None:
            raise PathError(f"{name!r} is not a head; at single positions only heads have a switch")
        trace.model.head(node.head)
        return node
    edge = NodeEdge.parse(name)
    _check_position(trace, edge.writer)
    _check_position(trace, edge.reader)
    # The same edge without positions has the same reasons not to exist.
    parse_patch(trace.model, _whole(edge))
    if edge.reader.position < edge.writer.position or (
        edge.reader.position != edge.writer.position
        and (edge.side is Side.Q or edge.reader.head is None)
    ):
        raise PathError(
            f"{name!r} does not exist: queries and logits read their own position, keys and values "
            "that of any earlier one"
        )
    return edge


@dataclass
class _Plan:
    """What is off: everywhere, and at single positions by the layer of the head it touches."""

    everywhere: list[Edit] = field(default_factory=list[Edit])
    nodes: list[Node] = field(default_factory=list[Node])
    edges: list[NodeEdge] = field(default_factory=list[NodeEdge])

    def add(self, trace: Trace, found: Edge | Writer | Node | NodeEdge) -> None:
        stream = torch.zeros_like(trace.streams[0])
        if isinstance(found, Edge):
            self.everywhere.append(Message(found, stream))
        elif isinstance(found, HeadId):
            z = trace.z(found.layer)[:, found.head]
            self.everywhere.append(HeadOutput(found, torch.zeros_like(z)))
        elif isinstance(found, Source):
            self.everywhere.append(SourceOutput(found, stream))
        elif isinstance(found, Node):
            self.nodes.append(found)
        elif found.reader.head is None:
            where = torch.zeros(trace.tokens.shape, dtype=torch.bool, device=stream.device)
            where[0, found.reader.position] = True
            whole = Edge(_writer(found), LogitsRead())
            self.everywhere.append(Message(whole, stream, where))
        else:
            self.edges.append(found)

    def run(self, trace: Trace) -> Trace:
        edits = list(self.everywhere)
        heads = {node.head for node in self.nodes} | {edge.reader.head for edge in self.edges}
        current = _again(trace, edits)
        for layer in sorted({head.layer for head in heads if head is not None}):
            changed = [
                self._changed(trace, current, edits, head)
                for head in sorted(h for h in heads if h is not None and h.layer == layer)
            ]
            # A head's z, given in full, hides what messages to it would change.
            edits += [edit for pair in changed for edit in pair]
            current = _again(trace, edits)
        return current

    def _changed(
        self, trace: Trace, current: Trace, edits: list[Edit], head: HeadId
    ) -> tuple[Attend, HeadOutput]:
        """A head with some of its destinations changed, each as if it were the only one."""
        pattern = current.patterns[head.layer][:, head.head].clone()
        z = current.z(head.layer)[:, head.head].clone()
        mine = [edge for edge in self.edges if edge.reader.head == head]
        off = any(isinstance(edit, HeadOutput) and edit.head == head for edit in edits)
        for dest in sorted({edge.reader.position for edge in mine}):
            here = [edge for edge in mine if edge.reader.position == dest]
            there = _again(trace, [*edits, *_messages(current, here)])
            pattern[:, dest] = there.patterns[head.layer][:, head.head, dest]
            if not off:
                z[:, dest] = there.z(head.layer)[:, head.head, dest]
        for node in self.nodes:
            if node.head == head:
                z[:, node.position] = 0
        return Attend(head, pattern), HeadOutput(head, z)


def _messages(current: Trace, edges: Sequence[NodeEdge]) -> list[Message]:
    """One message per writer and read: what the writer wrote, without some positions."""
    places: dict[tuple[Writer, Side], list[int]] = {}
    for edge in edges:
        places.setdefault((_writer(edge), edge.side), []).append(edge.writer.position)
    reader = edges[0].reader.head
    assert reader is not None
    messages: list[Message] = []
    for (writer, side), positions in places.items():
        written: Float[Tensor, "batch pos d"] = written_by(current, writer).clone()
        written[:, positions] = 0
        messages.append(Message(Edge(writer, HeadRead(reader, side)), written))
    return messages


def _again(trace: Trace, edits: Sequence[Edit]) -> Trace:
    return trace_run(trace.model, trace.tokens, edits, trace, trace.lengths) if edits else trace


def _writer(edge: NodeEdge) -> Writer:
    component = edge.writer.component
    if isinstance(component, HeadId | Source):
        return component
    raise PathError(
        f"{edge} cannot be cut: positions and biases are part of the read itself; cut what a head, "
        "'embed' or an MLP wrote"
    )


def _whole(edge: NodeEdge) -> str:
    reader = "logits" if edge.reader.head is None else f"{edge.reader.head}.{edge.side.value}"
    return f"{_writer(edge)}→{reader}"


def _check_position(trace: Trace, node: Node) -> None:
    length = int(trace.lengths[0])
    if node.position >= length:
        raise InputError(f"{node} is out of range: the text has positions 0 to {length - 1}")
