"""Edges between nodes of a run: names, orders in which they join a circuit, and runs without them.

A node is a component at a position, an edge is one node read by another. The first n edges of an
order are its circuit of size n; all orders start at the logits and only take edges into nodes that
are in the circuit already.

    best_first     by any strength, from the top down
    random_order   random walks from the logits down to the tokens

Cut edges carry a reference (zero, a mean, another run), and everything after them is recomputed;
only the reading node is affected. Conversely, some edges carry their own value, and all others the
reference.

    values_without     the prediction with some edges cut
    values_with_only   the prediction with all others cut
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.base import HeadId, Progress, Source, silent
from pathsum.base.errors import InputError
from pathsum.base.options import batch_size, batched
from pathsum.base.site import HEAD_SIDES, LOGITS, MLP_SIDES, Component, Side, Site, Writer
from pathsum.model import Config, Model, Trace
from pathsum.model.edit import Writes, cut_edges, keep_edges
from pathsum.model.forward import run, run_logits
from pathsum.model.gating import has_gates
from pathsum.model.losses import split_by_memory
from pathsum.model.recording import LAST_STREAM, KeyValues, Prefix
from pathsum.model.reference import Reference, reference_text
from pathsum.model.sequences import TokenBatches
from pathsum.model.sites import writers_into
from pathsum.paths.patching import check_runs
from pathsum.paths.target import PredictionRun, Target, one_sequence

Edges = Sequence[Site]

# Walks in a row that add no edge before edges are drawn one by one.
_IDLE_WALKS = 20
# Positions of all rows of a batch: more are no faster, and their rows start at different layers.
_POSITIONS = 1024


def edge_between(writer: Component, at: int, reader: Site, side: Side) -> Site:
    """The edge from a component at a position to a node; the logits have one side only."""
    return Site.edge(Site(writer, at=at), reader, None if reader.writer == LOGITS else side)


def side_of(edge: Site) -> Side:
    """The input of the reader that an edge feeds; the logits read values."""
    return Side.V if edge.side is None else edge.side


def node_position(node: Site) -> int:
    """The position of a node."""
    assert node.at is not None, f"{node} has no position"
    return node.at


def component_of(node: Site) -> Writer:
    """The component of a node that reads."""
    assert isinstance(node.writer, HeadId | Source), f"{node} does not read"
    return node.writer


def is_inner(node: Site) -> bool:
    """Whether a node reads others: a head or an MLP."""
    writer = node.writer
    return isinstance(writer, HeadId) or (isinstance(writer, Source) and writer.kind == "mlp")


def best_first(
    top: Site,
    inputs: Callable[[Site], Iterable[tuple[Site, float]]],
    count: int | None = None,
) -> list[Site]:
    """Edges in greedy order from the top down: always the strongest into a node already reached.

    `inputs` gives the edges into a node and how strong each is.
    """
    reached, found = {top}, list[Site]()
    waiting = [(-strength, str(edge), edge) for edge, strength in inputs(top)]
    heapq.heapify(waiting)
    while waiting and (count is None or len(found) < count):
        _, _, edge = heapq.heappop(waiting)
        found.append(edge)
        if is_inner(edge.start) and edge.start not in reached:
            reached.add(edge.start)
            for below, strength in inputs(edge.start):
                heapq.heappush(waiting, (-strength, str(below), below))
    return found


def random_order(
    config: Config, position: int, length: int, count: int, generator: torch.Generator
) -> list[Site]:
    """Edges of random walks from the logits down to a token, one walk after another.

    A walk chooses one of a node's reads, a position and a writer, each uniformly. Where walks find
    nothing more to add, edges into the circuit are drawn one by one.
    """
    found: dict[Site, None] = {}
    top, idle = Site(LOGITS, at=position), 0
    while len(found) < count and idle < _IDLE_WALKS:
        before, node = len(found), top
        while True:
            edge = _random_edge(config, node, length, generator)
            found[edge] = None
            if not sides_of(config, edge.start):
                break
            node = edge.start
        idle = idle + 1 if len(found) == before else 0
    while len(found) < count:
        inside = dict.fromkeys([top, *(edge.start for edge in found if is_inner(edge.start))])
        rest = [e for node in inside for e in edges_into(config, node, length) if e not in found]
        if not rest:
            break
        found[rest[_draw(len(rest), generator)]] = None
    return list(found)[:count]


def edges_into(config: Config, node: Site, length: int) -> Iterator[Site]:
    """Every edge into a node, in a text of this length."""
    for side in sides_of(config, node):
        for place in read_positions(config, node, side, length):
            for writer in writers_into(config, component_of(node)):
                yield edge_between(writer, place, node, side)


def sides_of(config: Config, node: Site) -> tuple[Side, ...]:
    """The inputs of a node, empty for a node that does not read; the logits read values.

    An MLP that is not a value times a gate is a leaf of circuits.
    """
    if node.writer == LOGITS:
        return (Side.V,)
    if not is_inner(node):
        return ()
    return HEAD_SIDES if node.head is not None else MLP_SIDES if has_gates(config) else ()


def read_positions(config: Config, node: Site, side: Side, length: int) -> range:
    """The positions that a node's read sees, in a text of this length."""
    last = node_position(node)
    if node.head is None or side is Side.Q:
        return range(last, last + 1)
    return config.sources(node.head.layer, last, length)


def _random_edge(config: Config, node: Site, length: int, generator: torch.Generator) -> Site:
    sides, writers = sides_of(config, node), writers_into(config, component_of(node))
    side = sides[_draw(len(sides), generator)]
    places = read_positions(config, node, side, length)
    writer = writers[_draw(len(writers), generator)]
    return edge_between(writer, places[_draw(len(places), generator)], node, side)


def _draw(below: int, generator: torch.Generator) -> int:
    return int(torch.randint(below, (), generator=generator))


def values_without(
    of: PredictionRun,
    rows: Sequence[Edges],
    reference: Reference | Trace | Writes = Reference.ZERO,
    progress: Progress = silent,
) -> Float[Tensor, " row"]:
    """The prediction with the edges of each row cut, row by row, everything after recomputed."""
    start, target = of.alone()
    writes = reference_writes(of, reference)
    values, done = start.streams[0].new_zeros(len(rows)), 0
    config, length = start.model.config, start.tokens.shape[1]
    # Copies of a run share the positions before their edits, and there the layers below.
    groups: dict[int, list[int]] = {}
    same = _same_tokens(start, reference)
    for number, row in enumerate(rows):
        groups.setdefault(_first_changed(start, row, same), []).append(number)
    keys, own = KeyValues(), None
    if any(groups):
        own = Writes.of(start)
        run_logits(start.weights, start.tokens, (), target.positions, past=keys)

    def layer(number: int) -> int:
        readers = [e.reader.layer for e in rows[number] if e.reader and e.reader != LOGITS]
        return min(readers, default=config.n_layers)

    for first, numbers in groups.items():
        numbers.sort(key=layer)
        size = min(batch_size(4 * start.streams[0].nbytes), -(-_POSITIONS // (length - first)))
        for part in (numbers[at : at + size] for at in range(0, len(numbers), size)):
            progress(done, len(rows), "cutting edges")
            prefix = Prefix(keys, start, own, first) if own is not None else None
            cut = [rows[number] for number in part]
            values[part] = prediction_without(start, cut, writes, target, prefix)
            done += len(part)
    progress(done, len(rows), "cutting edges")
    return values


def _same_tokens(start: Trace, reference: object) -> int:
    """The number of first positions at which a reference run writes the same, all but the last."""
    if not isinstance(reference, Trace) or reference.every_edit:
        return 0
    length = start.tokens.shape[1]
    differ = (start.tokens != reference.tokens[:, :length]).any(0).nonzero()
    return int(differ[0]) if len(differ) else length - 1


def _first_changed(start: Trace, row: Edges, same: int) -> int:
    """The first position that changes when the edges are cut; 0 in runs that are edited already."""
    if not start.model.config.causal or start.every_edit:
        return 0
    whole = [0 if isinstance(edge.reader, HeadId) else same for edge in row]
    first = (at if e.to is None else e.to for e, at in zip(row, whole, strict=True))
    return min(first, default=0)


def values_with_only(
    of: PredictionRun,
    rows: Sequence[Edges],
    reference: Reference | Trace | Writes = Reference.ZERO,
    progress: Progress = silent,
    hold_mlps: bool = False,
) -> Float[Tensor, " row"]:
    """The prediction with all but the edges of each row taken from the reference, row by row."""
    start, target = of.alone()
    writes = reference_writes(of, reference)
    widest = max(1, *(len(row) for row in rows))
    keys = start.tokens.shape[1] * start.model.config.d_head * start.streams[0].element_size()
    values = start.streams[0].new_zeros(len(rows))
    for part in batched(range(len(rows)), 4 * widest * keys):
        progress(part[0], len(rows), "keeping edges")
        kept = [rows[number] for number in part]
        values[list(part)] = prediction_with_only(start, kept, writes, target, hold_mlps)
    return values


def prediction_without(
    start: Trace,
    rows: Sequence[Edges],
    reference: Writes,
    target: Target,
    prefix: Prefix | None = None,
) -> Float[Tensor, " row"]:
    """The prediction with the edges of each row taken from the reference.

    With a `prefix`, only the positions after it are run.
    """
    edits, first = cut_edges(rows, reference), 0 if prefix is None else prefix.length
    past = prefix if first else None
    found = run(
        *(start.weights, start.tokens[:, first:], edits, LAST_STREAM), copies=len(rows), past=past
    )
    return target.of_copies(found, first)


def prediction_with_only(
    start: Trace,
    rows: Sequence[Edges],
    reference: Writes,
    target: Target,
    hold_mlps: bool = False,
) -> Float[Tensor, " row"]:
    """The prediction with all other edges taken from the reference.

    With `hold_mlps`, and on models whose MLPs are leaves, an edge from an MLP carries the output of
    the unedited run.
    """
    hold = hold_mlps or not has_gates(start.weights.config)
    edits = keep_edges(rows, Writes.of(start), reference, hold)
    return target.of_copies(run(start.weights, start.tokens, edits, LAST_STREAM, copies=len(rows)))


def is_written(node: Site) -> bool:
    """Whether a node writes into the stream; false for positions and biases."""
    component = node.writer
    if isinstance(component, Source):
        return component.kind in ("embed", "mlp")
    return isinstance(component, HeadId)


def reference_writes(of: PredictionRun, reference: Reference | Trace | Writes) -> Writes:
    """The reference's replacement for each write of a run."""
    if isinstance(reference, Writes):
        return reference
    start, other = of.alone()[0], reference
    if other is Reference.OTHER:
        if of.other is None:
            raise InputError(
                "reference is 'other', but the circuit was found without another run; pass other= "
                "to trace.circuit, corrupted= to a Prompt, --other on the command line, or a trace"
            )
        other = of.other
    if isinstance(other, Trace):
        length = start.tokens.shape[1]
        if other.tokens.shape[1] < length:
            raise InputError(
                f"the reference has {other.tokens.shape[1]} tokens, but the prediction is after "
                f"{length}; edges can only be taken from a run of the same length"
            )
        there = one_sequence(other, of.sequence, length)
        check_runs(start, there)
        return Writes.of(there)
    if reference is Reference.ZERO:
        return Writes.zero(start)
    over = reference_text(start.model, own=[start.tokens])
    return mean_writes(start.model, over.batches).expand_as(Writes.of(start))


def mean_writes(model: Model, batches: TokenBatches) -> Writes:
    """The mean output of each writer over positions ≥ 1, with batch and position of size 1."""
    sums: list[Tensor] = []
    count = 0
    for batch in batches:
        for tokens in split_by_memory(model, batch):
            here = Writes.of(model.trace(tokens))
            # The batch is the first axis, positions the last but one.
            added = [one[..., 1:, :].double().sum((0, -2)) for one in here.tensors]
            sums = [old + one for old, one in zip(sums, added, strict=True)] if sums else added
            count += tokens[:, 1:].numel()
    embed, *rest = ((total / count).to(model.weights.W_E)[None, ..., None, :] for total in sums)
    layers = model.config.n_layers
    return Writes(embed, tuple(rest[:layers]), tuple(rest[layers:]))
