"""Runs with edges cut, and with some edges only: the prediction with everything recomputed.

A cut edge carries a reference (zero, a mean, another run) instead of its writer's output. Only the
reading node is affected.

    values_without     the prediction with some edges cut
    values_with_only   the prediction with all other edges cut
    cut_effects        the drop of the prediction
"""

from collections.abc import Sequence
from typing import TypeAlias

from jaxtyping import Float
from torch import Tensor

from pathsum.base import HeadId, Progress, silent
from pathsum.base.errors import InputError
from pathsum.base.options import batch_size, batched
from pathsum.base.site import LOGITS, Site
from pathsum.model import Trace
from pathsum.model.edit import Writes, cut_edges, keep_edges
from pathsum.model.forward import run, run_logits
from pathsum.model.gating import has_gates
from pathsum.model.recording import LAST_STREAM, KeyValues, Prefix
from pathsum.model.reference import Reference, mean_writes, reference_text
from pathsum.paths.edges import is_written
from pathsum.paths.patching import check_runs
from pathsum.paths.target import PredictionRun, one_sequence

Edges: TypeAlias = Sequence[Site]

# Positions of all rows of a batch: more are no faster, and their rows start at different layers.
_POSITIONS = 1024


def cut_effects(
    prediction: PredictionRun,
    groups: Sequence[Sequence[Site]],
    reference: Reference | Trace = Reference.ZERO,
    progress: Progress = silent,
) -> list[float | None]:
    """The drop in the prediction when the edges of each group are cut together.

    Only the reading nodes are affected: all other readers, and the same head at other
    destinations, see the writer unchanged. None for a group that no component writes.
    """
    rows = [[edge for edge in group if is_written(edge.start)] for group in groups]
    values = iter(
        values_without(prediction, list(filter(None, rows)), reference, progress).tolist()
    )
    start, target = prediction.isolate()
    before = float(target.of_copies(start)[0])
    return [before - next(values) if row else None for row in rows]


def values_without(
    prediction: PredictionRun,
    rows: Sequence[Edges],
    reference: Reference | Trace | Writes = Reference.ZERO,
    progress: Progress = silent,
) -> Float[Tensor, " row"]:
    """The prediction with the edges of each row cut, row by row, everything after recomputed."""
    start, target = prediction.isolate()
    writes = reference_writes(prediction, reference)
    values, done = start.streams[0].new_zeros(len(rows)), 0
    config, length = start.model.config, start.tokens.shape[1]
    # Copies of a run share the positions before their edits, and there the layers below.
    groups: dict[int, list[int]] = {}
    equal = _equal_positions(start, reference)
    for number, row in enumerate(rows):
        groups.setdefault(_first_changed(start, row, equal), []).append(number)
    keys, clean_writes = KeyValues(), None
    if any(groups):
        clean_writes = Writes.of(start)
        run_logits(start.weights, start.tokens, (), target.positions, past=keys)

    def layer(number: int) -> int:
        readers = [e.reader.layer for e in rows[number] if e.reader and e.reader != LOGITS]
        return min(readers, default=config.n_layers)

    for first, numbers in groups.items():
        numbers.sort(key=layer)
        size = min(batch_size(4 * start.streams[0].nbytes), -(-_POSITIONS // (length - first)))
        for part in (numbers[at : at + size] for at in range(0, len(numbers), size)):
            progress(done, len(rows), "cutting edges")
            edits, tokens = cut_edges([rows[number] for number in part], writes), start.tokens
            past = (
                Prefix(keys, start, clean_writes, first)
                if clean_writes is not None and first
                else None
            )
            after = run(
                start.weights, tokens[:, first:], edits, LAST_STREAM, copies=len(part), past=past
            )
            values[part] = target.of_copies(after, first)
            done += len(part)
    progress(done, len(rows), "cutting edges")
    return values


def _equal_positions(start: Trace, reference: object) -> int:
    """The number of first positions at which a reference run has equal outputs, before the last."""
    if not isinstance(reference, Trace) or reference.every_edit:
        return 0
    length = start.tokens.shape[1]
    differs = (start.tokens != reference.tokens[:, :length]).any(0).nonzero()
    return int(differs[0]) if len(differs) else length - 1


def _first_changed(start: Trace, row: Edges, equal: int) -> int:
    """The first position that changes when the edges are cut; 0 in runs that are edited already."""
    if not start.model.config.causal or start.every_edit:
        return 0
    first = (0 if isinstance(edge.reader, HeadId) else equal for edge in row)
    pairs = zip(row, first, strict=True)
    return min((at if edge.to is None else edge.to for edge, at in pairs), default=0)


def values_with_only(
    prediction: PredictionRun,
    rows: Sequence[Edges],
    reference: Reference | Trace | Writes = Reference.ZERO,
    progress: Progress = silent,
    hold_mlps: bool = False,
) -> Float[Tensor, " row"]:
    """The prediction with all but the edges of each row taken from the reference, row by row.

    With `hold_mlps`, and on models whose MLPs are leaves, an edge from an MLP carries the output of
    the unedited run.
    """
    start, target = prediction.isolate()
    writes, clean_writes = reference_writes(prediction, reference), Writes.of(start)
    hold = hold_mlps or not has_gates(start.model.config)
    widest = max(1, *(len(row) for row in rows))
    keys = start.tokens.shape[1] * start.model.config.d_head * start.streams[0].element_size()
    values = start.streams[0].new_zeros(len(rows))
    for part in batched(range(len(rows)), 4 * widest * keys):
        progress(part[0], len(rows), "keeping edges")
        edits = keep_edges([rows[number] for number in part], clean_writes, writes, hold)
        after = run(start.weights, start.tokens, edits, LAST_STREAM, copies=len(part))
        values[list(part)] = target.of_copies(after)
    return values


def reference_writes(prediction: PredictionRun, reference: Reference | Trace | Writes) -> Writes:
    """The reference's replacement for each write of a run."""
    start, other = prediction.isolate()[0], reference
    if isinstance(reference, Writes):
        return reference.expand_as(Writes.of(start))
    if other is Reference.OTHER:
        if prediction.other is None:
            raise InputError(
                "reference is 'other', but the circuit was found without another run; pass other= "
                "to trace.circuit, corrupted= to a Prompt, --other on the command line, or a trace"
            )
        other = prediction.other
    if isinstance(other, Trace):
        length = start.tokens.shape[1]
        if other.tokens.shape[1] < length:
            raise InputError(
                f"the reference has {other.tokens.shape[1]} tokens, but the prediction is after "
                f"{length}; edges can only be taken from a run of the same length"
            )
        other = one_sequence(other, prediction.sequence, length)
        check_runs(start, other)
        return Writes.of(other)
    if reference is Reference.ZERO:
        return Writes.zero(start)
    text = reference_text(start.model, fallback=[start.tokens])
    return mean_writes(start.model, text.batches).expand_as(Writes.of(start))
