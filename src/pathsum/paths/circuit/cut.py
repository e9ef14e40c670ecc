"""What cutting an edge between two nodes does to a prediction, everything after it recomputed."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.errors import InputError
from pathsum.model import Trace
from pathsum.model.edits import Message
from pathsum.model.run import run_logits
from pathsum.names import Edge, HeadId, HeadRead, LogitsRead, NodeEdge, Reader, Source, Writer
from pathsum.paths.intervene.patching import written_by
from pathsum.paths.target import Target
from pathsum.result import Progress, silent

# Numbers in the residual streams of the runs that are computed together: 16 MB in float32.
_NUMBERS = 1 << 22


def cut_effects(
    trace: Trace,
    target: Target,
    edges: Sequence[NodeEdge],
    sequence: int = 0,
    other: Trace | None = None,
    progress: Progress = silent,
) -> list[float | None]:
    """How much of the target is lost without each edge, cut one at a time.

    A cut edge carries nothing, or what its writer wrote in `other`, a run of as many tokens. Only
    the reading node is affected: the writer is seen by all its other readers, and by this head at
    other destinations, as it was. None for parts that no component writes: positions inside Q and
    K, biases.
    """
    if other is not None and other.tokens.shape[1] != trace.tokens.shape[1]:
        raise InputError(
            f"the other run has {other.tokens.shape[1]} tokens and this one "
            f"{trace.tokens.shape[1]}; edges can only be taken from a run of the same length"
        )
    here = target.rows(slice(sequence, sequence + 1))
    length = int(here.positions[0]) + 1
    tokens = trace.tokens[sequence : sequence + 1, :length]
    start = trace if tokens.shape == trace.tokens.shape else trace.model.trace(tokens)
    before = float(here.of(start.logits)[0])
    cuttable = [number for number, edge in enumerate(edges) if _writer(edge) is not None]
    found: list[float | None] = [None] * len(edges)
    together = max(1, _NUMBERS // (length * trace.model.config.d_model))
    done = 0
    for part in _parts(cuttable, together):
        progress(done, len(cuttable), "cutting edges")
        messages = _messages(start, [edges[number] for number in part], other, sequence)
        positions = here.positions.expand(len(part))
        logits = run_logits(trace.weights, tokens, messages, start, positions)
        at_target = replace(
            here,
            positions=torch.zeros_like(positions),
            tokens=here.tokens.expand(len(part)),
            versus=here.versus.expand(len(part))
            if isinstance(here.versus, Tensor)
            else here.versus,
        )
        for number, value in zip(part, at_target.of(logits).tolist(), strict=True):
            found[number] = before - value
        done += len(part)
    progress(len(cuttable), len(cuttable), "cutting edges")
    return found


def _messages(
    start: Trace, edges: Sequence[NodeEdge], other: Trace | None, sequence: int
) -> list[Message]:
    """One message per edge, each acting in its own copy of the sequence."""
    count, length = len(edges), start.tokens.shape[1]
    messages: list[Message] = []
    for row, edge in enumerate(edges):
        writer = _writer(edge)
        assert writer is not None
        own = written_by(start, writer)
        written = own.expand(count, -1, -1).clone()
        at = edge.writer.position
        instead: Float[Tensor, " d"] | float = 0.0
        if other is not None:
            instead = written_by(other, writer)[sequence, at]
        written[row, at] = instead
        where = torch.zeros(count, length, dtype=torch.bool, device=own.device)
        where[row, edge.reader.position] = True
        messages.append(Message(Edge(writer, _reader(edge)), written, where))
    return messages


def _writer(edge: NodeEdge) -> Writer | None:
    component = edge.writer.component
    if isinstance(component, HeadId):
        return component
    if isinstance(component, Source) and component.kind in ("embed", "mlp"):
        return component
    return None


def _reader(edge: NodeEdge) -> Reader:
    head = edge.reader.head
    return LogitsRead() if head is None else HeadRead(head, edge.side)


def _parts(numbers: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    for begin in range(0, len(numbers), size):
        yield numbers[begin : begin + size]
