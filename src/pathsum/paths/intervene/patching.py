"""Patching: an edge or a node taken from another run, and everything after it recomputed.

Frozen paths hold patterns fixed, so they give no credit to what acts through queries and keys: on
an induction prediction the previous-token head, which makes the induction head attend to the right
place, gets almost none. Patching measures the causal effect instead. For an **edge** `L0H7→L1H4.k`
only the keys of L1H4 are computed from a stream in which L0H7's output is the other run's:

    x' = x − written(L0H7) + written_other(L0H7)      read by L1H4 for its keys only

Normalization is recomputed on x' for that read alone, scale included. Where several heads share a
key/value head, the message reaches the named head only. For a **node** `L0H7` every reader sees the
other run's output.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch

from pathsum.errors import InputError, PathError
from pathsum.model import Model, Trace, trace_run
from pathsum.model.edits import Edit, HeadOutput, Message, SourceOutput
from pathsum.names import (
    ARROW,
    Edge,
    EdgeName,
    HeadId,
    HeadName,
    HeadRead,
    LogitsRead,
    MlpRead,
    Reader,
    Source,
    Writer,
    find_head,
    parse_writer,
)
from pathsum.shapes import Stream

PatchName: TypeAlias = EdgeName | HeadName | Source
"""An edge, `("L0H7", "L1H4", "k")` or `"L0H7→L1H4.k"`, or a node, `"L0H7"` or `"mlp0"`."""


def patch(trace: Trace, edits: Mapping[Any, Trace]) -> Trace:
    """A run with edges or nodes taken from other runs; `trace.patch(edits)` is the same.

        trace.patch({("L0H7", "L1H4", "k"): other})     one edge; "L0H7→L1H4.k" is the same
        trace.patch({("L0H7", "logits"): other})        what the unembedding reads of L0H7
        trace.patch({"L0H7": other, "mlp1": other})     two nodes

    Writers are heads, `embed` and `mlp0`, `mlp1`, …; readers are the q, k and v of heads, `mlp0`,
    `mlp1`, … and `logits`. Both runs must be of one model and of one length; a batch of one
    sequence is repeated to fit the other. Several edits act together: each stands in for what its
    writer wrote in the patched run. The result is a trace that raises NotExactError for what the
    edits make untrue.
    """
    parsed = tuple(patch_edit(trace, name, other) for name, other in edits.items())
    start = None if trace.edits else trace
    return trace_run(trace.model, trace.tokens, (*trace.edits, *parsed), start, trace.lengths)


def patch_edit(trace: Trace, name: Any, other: Trace) -> Edit:
    """The edit that a name and another run mean."""
    check_runs(trace, other)
    found = parse_patch(trace.model, name)
    if isinstance(found, Edge):
        return Message(found, written_by(other, found.writer))
    if isinstance(found, HeadId):
        return HeadOutput(found, other.z(found.layer)[:, found.head])
    return SourceOutput(found, written_by(other, found))


@torch.no_grad()
def written_by(trace: Trace, writer: Writer) -> Stream:
    """What a writer put into the stream of a run."""
    if isinstance(writer, HeadId):
        return trace.written(writer)
    if writer.kind == "embed":
        return trace.model.weights.W_E[trace.tokens]
    return trace.mlp_outputs[writer.layer]


def parse_patch(model: Model, name: Any) -> Edge | Writer:
    """The edge or node that a name means in a model; raises an error if the model has none."""
    try:
        _check_parts(name)
        found = parse_writer(name) if _is_node(name) else Edge.parse(name)
    except PathError:
        if isinstance(name, tuple) and len(name) in (2, 3):
            raise
        raise PathError(
            f"{name!r} is neither an edge nor a node; edges are ('L0H7', 'L1H4', 'k') or "
            "'L0H7→L1H4.k' and ('L0H7', 'logits'), nodes are 'L0H7', 'embed' and 'mlp0'"
        ) from None
    if isinstance(found, Edge):
        _check_writer(model, found.writer)
        _check_reader(model, found.reader)
        _check_order(model, found)
    else:
        _check_writer(model, found)
    return found


def _is_node(name: Any) -> bool:
    if isinstance(name, str):
        return ARROW not in name and ">" not in name
    return isinstance(name, Source) or (
        isinstance(name, tuple) and all(isinstance(part, int) for part in name)
    )


def _check_parts(name: Any) -> None:
    for part in name[1:] if isinstance(name, tuple) and not _is_node(name) else ():
        if not isinstance(part, str | tuple | HeadRead | MlpRead | LogitsRead):
            raise PathError(
                f"{part!r} does not name a read; use ('L0H7', 'L1H4', 'k'), ('L0H7', 'mlp1') or "
                "('L0H7', 'logits'): a patch replaces all positions"
            )


def _check_writer(model: Model, writer: Writer) -> None:
    if isinstance(writer, HeadId):
        find_head(writer, model.config.n_layers, model.config.n_heads)
    elif writer.kind == "mlp":
        _check_mlp(model, writer.layer)
    elif writer.kind != "embed":
        raise PathError(
            f"{writer} is the same in every run of one length, so a patch from another run changes "
            "nothing; patch a head, 'embed' or an MLP"
        )


def _check_reader(model: Model, reader: Reader) -> None:
    if isinstance(reader, HeadRead):
        find_head(reader.head, model.config.n_layers, model.config.n_heads)
    elif isinstance(reader, MlpRead):
        _check_mlp(model, reader.layer)


def _check_mlp(model: Model, layer: int) -> None:
    if model.config.mlp == "none":
        raise PathError(f"there is no mlp{layer}: this model has no MLPs")
    if layer >= model.config.n_layers:
        raise PathError(
            f"there is no mlp{layer}: this model has layers 0 to {model.config.n_layers - 1}"
        )


def _check_order(model: Model, edge: Edge) -> None:
    writer, reader = edge.writer, edge.reader
    if isinstance(reader, LogitsRead):
        return
    layer = reader.layer if isinstance(reader, MlpRead) else reader.head.layer
    # In a serial block the MLP reads what the heads of its own layer wrote.
    same_layer = (
        isinstance(reader, MlpRead)
        and isinstance(writer, HeadId)
        and model.config.block == "serial"
        and writer.layer == layer
    )
    if writer.layer >= layer and not same_layer:
        raise PathError(
            f"{reader} cannot read {writer}: data flows upwards, so what is read must be written "
            "before; use a writer in an earlier layer"
        )


def check_runs(trace: Trace, other: Trace) -> None:
    """Raises InputError if nothing of one run can replace anything in the other."""
    if not isinstance(other, Trace):
        raise InputError(
            f"a patch is taken from a trace, not from a {type(other).__name__}; "
            "use model.trace(other_text)"
        )
    if other.model.weights is not trace.model.weights:
        raise InputError(
            "the other run is of another model, whose residual stream has a basis of its own; "
            "use two traces of the same model"
        )
    here, there = trace.tokens.shape, other.tokens.shape
    if here[1] != there[1]:
        raise InputError(
            f"the runs have {here[1]} and {there[1]} tokens, but a patch replaces position by "
            "position; use texts with the same number of tokens"
        )
    if here[0] != there[0] and 1 not in (here[0], there[0]):
        raise InputError(
            f"the runs have {here[0]} and {there[0]} sequences; use batches of the same size, or "
            "of one sequence"
        )
    if bool((trace.lengths != other.lengths).any()):
        raise InputError(
            "the runs have sequences of different lengths, but a patch replaces position by "
            "position; pair sequences with the same number of tokens"
        )
