"""What cutting an edge between two nodes does to a prediction, everything after it recomputed."""

from collections.abc import Iterator, Sequence

from jaxtyping import Float
from torch import Tensor

from pathsum.errors import InputError
from pathsum.model import Trace
from pathsum.model.edits import CutEdges, Writes
from pathsum.model.node_reads import kept_logits
from pathsum.model.run import run_logits
from pathsum.names import HeadId, Node, NodeEdge, Source
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
    check_other(trace, other)
    here = target.rows(slice(sequence, sequence + 1))
    length = int(here.positions[0]) + 1
    start = one_sequence(trace, sequence, length)
    own = Writes.of(start)
    there = own.scaled(0.0) if other is None else Writes.of(one_sequence(other, sequence, length))
    before = float(here.of(start.logits)[0])
    cuttable = [number for number, edge in enumerate(edges) if is_written(edge.writer)]
    found: list[float | None] = [None] * len(edges)
    together = max(1, _NUMBERS // (length * trace.model.config.d_model))
    done = 0
    for part in _by_layer(edges, cuttable, together):
        progress(done, len(cuttable), "cutting edges")
        without = cut_values(start, here, [[edges[number]] for number in part], there)
        for number, value in zip(part, without.tolist(), strict=True):
            found[number] = before - value
        done += len(part)
    progress(len(cuttable), len(cuttable), "cutting edges")
    return found


def check_other(trace: Trace, other: Trace | None) -> None:
    """Raises InputError if edges cannot be taken from the other run."""
    if other is not None and other.tokens.shape[1] != trace.tokens.shape[1]:
        raise InputError(
            f"the other run has {other.tokens.shape[1]} tokens and this one "
            f"{trace.tokens.shape[1]}; edges can only be taken from a run of the same length"
        )


def one_sequence(trace: Trace, sequence: int, length: int) -> Trace:
    """The unedited run of one sequence, up to a length; a batch of one is that of all."""
    row = sequence if len(trace.tokens) > 1 else 0
    tokens = trace.tokens[row : row + 1, :length]
    return trace if tokens.shape == trace.tokens.shape else trace.model.trace(tokens)


def cut_values(
    start: Trace, target: Target, rows: Sequence[Sequence[NodeEdge]], reference: Writes
) -> Float[Tensor, " row"]:
    """The target with some edges taken from the reference, for each of several lists of edges."""
    edit = CutEdges(tuple(tuple(row) for row in rows), reference)
    positions = target.positions.expand(len(rows))
    logits = run_logits(start.weights, start.tokens, [edit], start, positions)
    return values_at(target, logits[:, 0])


def kept_values(
    start: Trace, target: Target, rows: Sequence[Sequence[NodeEdge]], reference: Writes
) -> Float[Tensor, " row"]:
    """The target with all but some edges taken from the reference, for each of several lists."""
    return values_at(target, kept_logits(start, rows, reference, int(target.positions[0])))


def values_at(target: Target, logits: Float[Tensor, "row vocab"]) -> Float[Tensor, " row"]:
    """The number that a target of one sequence means, of each row of logits at its position."""
    count = len(logits)
    versus = target.versus
    repeated = Target(
        positions=target.positions.new_zeros(count),
        tokens=target.tokens.expand(count),
        versus=versus.expand(count) if isinstance(versus, Tensor) else versus,
    )
    return repeated.of(logits[:, None])


def is_written(node: Node) -> bool:
    """Whether a component writes it into the stream: not positions, not biases."""
    component = node.component
    if isinstance(component, Source):
        return component.kind in ("embed", "mlp")
    return isinstance(component, HeadId)


def _by_layer(
    edges: Sequence[NodeEdge], numbers: Sequence[int], most: int
) -> Iterator[Sequence[int]]:
    """Edges into one layer together: everything below it is taken from the unedited run."""
    layers: dict[int, list[int]] = {}
    for number in numbers:
        head = edges[number].reader.head
        layers.setdefault(-1 if head is None else head.layer, []).append(number)
    for group in layers.values():
        yield from (group[begin : begin + most] for begin in range(0, len(group), most))
