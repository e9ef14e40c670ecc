"""The effect of cutting edges between nodes on a prediction, with everything recomputed."""

from collections.abc import Iterator, Sequence

from jaxtyping import Float
from torch import Tensor

from pathsum.base import HeadId, Node, NodeEdge, Progress, Source, silent
from pathsum.model import Trace
from pathsum.model.cut_logits import can_cut_by_changes, cut_logits
from pathsum.model.edits import CutEdges, Writes
from pathsum.model.forward import run_logits
from pathsum.model.node_reads import kept_logits
from pathsum.paths.intervene.patching import check_runs
from pathsum.paths.target import Target

# Numbers in the keys of the runs that are computed together: 16 MB in float32.
CUT_TOGETHER = 1 << 22
# Numbers in the streams that a run may compute needlessly if that saves another run.
NEEDLESS = 1 << 17


def cut_effects(
    trace: Trace,
    target: Target,
    edges: Sequence[NodeEdge],
    sequence: int = 0,
    other: Trace | None = None,
    progress: Progress = silent,
) -> list[float | None]:
    """The drop of the target when each edge is cut, one at a time.

    A cut edge carries nothing, or the output of its writer in `other`, a run of the same length.
    Only the reading node is affected: all other readers, and this head at other destinations, see
    the writer unchanged. None for parts that no component writes: positions inside Q and K, biases.
    """
    return cut_groups(trace, target, [[edge] for edge in edges], sequence, other, progress)


def cut_groups(
    trace: Trace,
    target: Target,
    groups: Sequence[Sequence[NodeEdge]],
    sequence: int = 0,
    other: Trace | None = None,
    progress: Progress = silent,
) -> list[float | None]:
    """`cut_effects` for groups of edges cut together; None for a group that nothing writes."""
    if other is not None:
        check_runs(trace, other)
    here = target.rows(slice(sequence, sequence + 1))
    length = int(here.positions[0]) + 1
    start = one_sequence(trace, sequence, length)
    there = (
        Writes.zero(start) if other is None else Writes.of(one_sequence(other, sequence, length))
    )
    written = [[edge for edge in group if is_written(edge.writer)] for group in groups]
    numbers = [number for number, group in enumerate(written) if group]
    values = cut_in_parts(start, here, [written[number] for number in numbers], there, progress)
    before = float(here.of_rows(start.logits_at(here.positions))[0])
    found: list[float | None] = [None] * len(groups)
    for number, value in zip(numbers, values.tolist(), strict=True):
        found[number] = before - value
    return found


def one_sequence(trace: Trace, sequence: int, length: int) -> Trace:
    """The unedited run of one sequence, up to a length; a batch of one is that of all."""
    row = sequence if len(trace.tokens) > 1 else 0
    whole = trace.tokens[row : row + 1, :length].shape == trace.tokens.shape
    return trace if whole else trace.prefix(row, length)


def cut_in_parts(
    start: Trace,
    target: Target,
    rows: Sequence[Sequence[NodeEdge]],
    reference: Writes,
    progress: Progress = silent,
) -> Float[Tensor, " row"]:
    """`cut_values` of many lists of edges, as many at a time as fit in memory."""
    found, done = start.streams[0].new_zeros(len(rows)), 0
    for part in _parts(start, rows):
        progress(done, len(rows), "cutting edges")
        found[part] = cut_values(start, target, [rows[number] for number in part], reference)
        done += len(part)
    progress(len(rows), len(rows), "cutting edges")
    return found


def cut_values(
    start: Trace, target: Target, rows: Sequence[Sequence[NodeEdge]], reference: Writes
) -> Float[Tensor, " row"]:
    """The target with some edges taken from the reference, for each of several lists of edges.

    Layers below the lowest reader and positions before the first are as in the unedited run.
    """
    last = int(target.positions[0])
    if all(can_cut_by_changes(start.weights, row) for row in rows):
        return values_at(target, cut_logits(start, rows, reference, last))
    edit = CutEdges(tuple(tuple(row) for row in rows), reference)
    positions = target.positions.expand(len(rows))
    first = min((edge.reader.position for row in rows for edge in row), default=last)
    logits = run_logits(
        start.weights, start.tokens, [edit], start, positions, from_position=min(first, last)
    )
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


def _parts(start: Trace, rows: Sequence[Sequence[NodeEdge]]) -> Iterator[list[int]]:
    """Numbers of rows that are run together, since they compute nearly the same."""

    def reads_from(number: int) -> tuple[int, int]:
        layers = (edge.reader.head.layer if edge.reader.head else n_layers for edge in rows[number])
        places = (edge.reader.position for edge in rows[number])
        return min(layers, default=n_layers), min(places, default=length)

    config, length = start.model.config, start.tokens.shape[1]
    n_layers = config.n_layers
    # Keys and values are needed at all positions.
    most = max(1, CUT_TOGETHER // (length * config.d_model))
    by_changes = [n for n, row in enumerate(rows) if can_cut_by_changes(start.weights, row)]
    yield from (by_changes[begin : begin + most] for begin in range(0, len(by_changes), most))
    others = sorted(set(range(len(rows))).difference(by_changes))
    part: list[int] = []
    needed, lowest, first = 0, n_layers, length
    starts = {number: reads_from(number) for number in others}
    for number in sorted(others, key=starts.__getitem__, reverse=True):
        layer, place = starts[number]
        # A run begins at the lowest layer and the first place of its rows: others repeat what they
        # know.
        lowest, first = min(lowest, layer), min(first, place)
        own = (n_layers - layer) * (length - place)
        together = (len(part) + 1) * (n_layers - lowest) * (length - first)
        needless = (together - needed - own) * config.d_model
        if part and (needless > NEEDLESS or len(part) == most):
            yield part
            part, needed, lowest, first = [], 0, layer, place
        part.append(number)
        needed += own
    if part:
        yield part
