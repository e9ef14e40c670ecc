"""Runs in which some edges carry a reference: cut edges, and everything but some edges.

Cut edges carry the reference and everything after them is recomputed; only the reading node is
affected. The other way round, only some edges carry what the run wrote, and all others the
reference.
"""

import enum
from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from pathsum.base import HeadId, NodeEdge, Progress, Source, silent
from pathsum.base.batching import batched
from pathsum.base.errors import InputError
from pathsum.base.site import Site
from pathsum.model import Model, Trace
from pathsum.model.edits import CutEdges, Writes
from pathsum.model.forward import run_logits
from pathsum.model.losses import split_by_memory
from pathsum.model.node_reads import kept_logits
from pathsum.model.sequences import TextOrTokens, TokenBatches, token_batches
from pathsum.paths.graph import Prediction, one_sequence
from pathsum.paths.intervene.patching import check_runs
from pathsum.paths.target import Target

Edges = Sequence[Site]


class Reference(enum.StrEnum):
    """The content of edges that are cut; another run is given as its trace.

    `ZERO`   nothing
    `MEAN`   the mean of what its writer writes, over a text and its positions
    `OTHER`  what it carries in the run to which the circuit's edges were cut (`other`, `corrupted`)
    """

    ZERO = "zero"
    MEAN = "mean"
    OTHER = "other"


def values_without(
    of: Prediction,
    rows: Sequence[Edges],
    reference: Reference | Trace = Reference.ZERO,
    text: TextOrTokens | None = None,
    progress: Progress = silent,
) -> Float[Tensor, " row"]:
    """The prediction with the edges of each row cut, row by row, everything after recomputed."""
    start, target = of.alone()
    writes = reference_writes(of, reference, text)
    layers = start.model.config.n_layers

    def lowest(row: Edges) -> int:
        return min(
            (e.reader.layer if isinstance(e.reader, HeadId) else layers for e in row),
            default=layers,
        )

    values, done = start.streams[0].new_zeros(len(rows)), 0
    # Rows that change the same layers are run together: layers below are not computed again.
    by_layer: dict[int, list[int]] = {}
    for number, row in enumerate(rows):
        by_layer.setdefault(lowest(row), []).append(number)
    for numbers in by_layer.values():
        for part in batched(numbers, 4 * start.streams[0].nbytes):
            progress(done, len(rows), "cutting edges")
            logits = logits_without(start, [rows[number] for number in part], writes, target)
            values[list(part)] = target.of_runs(logits)
            done += len(part)
    progress(done, len(rows), "cutting edges")
    return values


def values_with_only(
    of: Prediction,
    rows: Sequence[Edges],
    reference: Reference | Trace = Reference.ZERO,
    text: TextOrTokens | None = None,
    progress: Progress = silent,
) -> Float[Tensor, " row"]:
    """The prediction with all but the edges of each row taken from the reference, row by row."""
    start, target = of.alone()
    writes = reference_writes(of, reference, text)
    widest = max(1, *(len(row) for row in rows))
    keys = start.tokens.shape[1] * start.model.config.d_head * start.streams[0].element_size()
    values = start.streams[0].new_zeros(len(rows))
    for part in batched(range(len(rows)), 4 * widest * keys):
        progress(part[0], len(rows), "keeping edges")
        logits = logits_with_only(start, [rows[number] for number in part], writes, target)
        values[list(part)] = target.of_runs(logits)
    return values


def logits_without(
    start: Trace, rows: Sequence[Edges], reference: Writes, target: Target
) -> Float[Tensor, "row vocab"]:
    """The logits at the target's position with the edges of each row taken from the reference."""
    edit = CutEdges(tuple(tuple(_names(row)) for row in rows), reference)
    positions = target.positions.expand(len(rows))
    return run_logits(start.weights, start.tokens, [edit], start, positions)[:, 0]


def logits_with_only(
    start: Trace, rows: Sequence[Edges], reference: Writes, target: Target
) -> Float[Tensor, "row vocab"]:
    """The logits at the target's position with all other edges taken from the reference."""
    return kept_logits(start, [_names(row) for row in rows], reference, int(target.positions[0]))


def _names(row: Edges) -> list[NodeEdge]:
    return [NodeEdge.parse(str(edge)) for edge in row]


def is_written(node: Site) -> bool:
    """Whether a component writes it into the stream: not positions, not biases."""
    component = node.writer
    if isinstance(component, Source):
        return component.kind in ("embed", "mlp")
    return isinstance(component, HeadId)


def reference_writes(
    of: Prediction, reference: Reference | Trace, text: TextOrTokens | None = None
) -> Writes:
    """The reference's replacement for each write of a run."""
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
    batches = [start.tokens] if text is None else token_batches(start.model, text)
    return mean_writes(start.model, batches, Writes.of(start))


def mean_writes(model: Model, batches: TokenBatches, like: Writes) -> Writes:
    """The mean of what each writer writes over sequences and positions, at every position."""
    sums: list[Tensor] = []
    count = 0
    for batch in batches:
        for tokens in split_by_memory(model, batch):
            here = Writes.of(model.trace(tokens))
            # The batch is the first axis, positions the last but one.
            added = [one.double().sum((0, -2)) for one in _tensors(here)]
            sums = [old + one for old, one in zip(sums, added, strict=True)] if sums else added
            count += tokens.numel()
    means = zip((total / count for total in sums), _tensors(like), strict=True)
    embed, *rest = (mean.to(one.dtype)[..., None, :].expand_as(one) for mean, one in means)
    return Writes(embed, tuple(rest[: len(like.z)]), tuple(rest[len(like.z) :]))


def _tensors(writes: Writes) -> list[Tensor]:
    return [writes.embed, *writes.z, *writes.mlp_outputs]
