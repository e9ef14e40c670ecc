"""Patching: an edge or a node taken from another run, and everything after it recomputed.

Frozen paths hold patterns fixed, so they give no credit to what acts through queries and keys: on
an induction prediction the previous-token head, which makes the induction head attend to the right
place, gets almost none. Patching measures the causal effect instead. For an **edge** `L0H7→L1H4.k`,
only the keys of L1H4 are computed from a stream with L0H7's output of the other run:

    x' = x − written(L0H7) + written_other(L0H7)      read by L1H4 for its keys only

Normalization is recomputed on x' for that read alone, scale included. Where several heads share a
key/value head, the message reaches the named head only. For a **node** `L0H7` every reader sees the
other run's output. Positions restrict a patch: `L0H7@4` exchanges the output of L0H7 at position 4,
and `L0H7@4→L1H4@9.k` exchanges it in the keys of L1H4 for destination 9 only.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pathsum.base import HeadId, Part, Side, Site, parse_choice
from pathsum.base.errors import InputError, NotExactError, PathError
from pathsum.base.options import parse_position
from pathsum.base.shapes import HeadPattern
from pathsum.model import EVERYTHING, RESIDUAL, Trace, trace_run, transformer
from pathsum.model.edit import Edit
from pathsum.model.reference import Reference, mean_values, reference_text
from pathsum.model.sites import find_patch_site, find_site, site_value
from pathsum.model.weights import layer_of_one_head


def patch(trace: Trace, edits: Mapping[Any, Any]) -> Trace:
    """A run with edges or nodes patched; `trace.patch(edits)` is the shorthand.

        trace.patch({("L0H7", "L1H4", "k"): other})     one edge; "L0H7→L1H4.k" is the same
        trace.patch({("L0H7", "logits"): other})        L0H7 as the unembedding reads it
        trace.patch({"L0H7": other, "mlp1": "zero"})    two nodes, one ablated
        trace.patch({"L0H7@4": other})                  the output of L0H7 at position 4
        trace.patch({"L0H7@4→L1H4@-1.k": "mean"})       the same in L1H4's keys, for the last row
        trace.patch({"residual1@3": other})             the stream before layer 1 at position 3
        trace.patch({"mlp0.n5": "zero"})                one neuron's activation

    Writers are heads, `embed`, MLPs (`mlp0`, …) and neurons (`mlp0.n5`, …); readers are the q, k
    and v of heads, `mlp0`, `mlp1`, … and `logits`. Streams (`residual1`) and the values of neurons
    (`mlp0.pre`, `mlp0.gate`, `mlp0.act`) are replaced like nodes. What replaces them is another
    run, `"zero"`, `"mean"` (over positions ≥ 1 of a text; see `reference_text`), or a tensor that
    broadcasts to [batch, pos, width]: d_head for a head's z, 1 for a neuron, d_mlp for values of
    neurons, d_model for everything else. Both runs must be of one model and of one length; a batch
    of one sequence is repeated to fit the other. Several edits act together: each stands in for
    what its writer wrote in the patched run. The result is a trace
    that raises NotExactError for what the edits make untrue.
    """
    parsed = patch_edits(trace, edits)
    keep = RESIDUAL if trace.recorded_logits is None else EVERYTHING
    every = (*trace.edits, *parsed)
    return trace_run(trace.model, trace.tokens, every, trace.lengths, keep=keep)


def patched_pattern(trace: Trace, edge: Site, other: Trace) -> HeadPattern:
    """The pattern of an edge's reader if the edge takes its value from `other`.

    The same as in `trace.patch({edge: other})`, without running the other heads and layers.
    """
    head, writer = edge.reader, edge.writer
    assert isinstance(head, HeadId)
    assert writer is not None
    assert not isinstance(writer, Part)
    if trace.edits or trace.weights.edits:
        return patch(trace, {edge: other}).pattern(head)
    config, layer = trace.model.config, trace.weights.layers[head.layer]
    stream = trace.streams[head.layer]
    changed = stream + other.written(writer) - trace.written(writer)
    query, key = (
        transformer.head_read(
            config, layer, head.head, side, changed if side is edge.side else stream
        )
        for side in (Side.Q, Side.K)
    )
    alone = layer_of_one_head(config, layer, head.head)
    return transformer.attend(config, alone, query[:, None], key[:, None])[:, 0]


def patch_edits(trace: Trace, given: Mapping[Any, Any]) -> list[Edit]:
    """The edits of a run, from a mapping of names to replacements."""
    sites = [(find_patch_site(trace.model, name), value) for name, value in given.items()]
    asked = [site for site, value in sites if isinstance(value, str) and value == Reference.MEAN]
    means = mean_outputs(trace, asked)
    return [
        edit for site, value in sites for edit in _site_edits(trace, site, means.get(site, value))
    ]


def mean_outputs(trace: Trace, sites: Sequence[Site]) -> dict[Site, Tensor]:
    """The mean of each node or edge over the model's reference text (`reference_text`)."""
    if not sites:
        return {}
    own = [trace.tokens[[row], :length] for row, length in enumerate(trace.lengths.tolist())]
    over = reference_text(trace.model, None, own)
    return mean_values(trace.model, over.batches, {site: site for site in sites})


def _site_edits(trace: Trace, site: Site, value: Any) -> Iterator[Edit]:
    written = find_replacement(trace, site, value)
    if site.head is not None:
        # A head is replaced before W_O.
        site = replace(site, value="z")
    if site.at is None and site.to is None:
        yield Edit(site, written)
        return
    lengths = trace.lengths.tolist()
    for position in (site.at, site.to):
        if position is not None:
            parse_position(position, min(lengths), of="the shortest sequence")
    if len(set(lengths)) == 1 or min(p for p in (site.at, site.to) if p is not None) >= 0:
        yield Edit(_placed(site, lengths[0]), written)
        return
    for sequence, length in enumerate(lengths):
        yield Edit(_placed(site, length), written, sequence)


def _placed(site: Site, length: int) -> Site:
    """A site whose negative positions are counted from the end of a sequence."""
    at, to = (None if one is None else one % length for one in (site.at, site.to))
    return replace(site, at=at, to=to)


def find_replacement(trace: Trace, site: Site, value: Any) -> Tensor:
    """The replacement for a node (a head: its z) or an edge, [batch, pos, width]."""
    if isinstance(value, Trace):
        check_runs(trace, value)
        return site_value(value, site)
    here = site_value(trace, site)
    if isinstance(value, Tensor):
        try:
            return value.to(here).expand_as(here)
        except RuntimeError as error:
            raise InputError(
                f"what replaces {site} has shape {list(value.shape)}; give a tensor that "
                f"broadcasts to {list(here.shape)}"
            ) from error
    if not isinstance(value, str):
        raise InputError(
            f"{site} cannot be taken from a {type(value).__name__}; use model.trace(other_text), "
            "'zero', 'mean' or a tensor"
        )
    if parse_choice(("zero", "mean"), value, f"what replaces {site}") == "zero":
        return torch.zeros_like(here)
    return mean_outputs(trace, [site])[site].expand_as(here)


def check_runs(trace: Trace, other: Trace) -> None:
    """Raise InputError if parts of one run cannot replace parts of the other."""
    if other.model.weights is not trace.model.weights:
        raise InputError(
            "the other run is of another model, whose residual stream has a different basis; use "
            "two traces of the same model"
        )
    here, there = trace.tokens.shape, other.tokens.shape
    if here[1] != there[1]:
        raise InputError(
            f"the runs have {here[1]} and {there[1]} tokens, but they are compared position "
            "by position; use texts with the same number of tokens"
        )
    if here[0] != there[0] and 1 not in (here[0], there[0]):
        raise InputError(
            f"the runs have {here[0]} and {there[0]} sequences; use batches of the same size, or "
            "of one sequence"
        )
    if bool((trace.lengths != other.lengths).any()):
        raise InputError(
            "the runs have sequences of different lengths, but they are compared position "
            "by position; pair sequences with the same number of tokens"
        )


def without(trace: Trace, names: Sequence[str]) -> Trace:
    """A run of one sequence without some heads and edges, which are patched with zero.

    L0H3                  the head writes nothing
    L0H3@4                it writes nothing at position 4
    L0H3→L1H0.k           L1H0's keys do not read it
    L0H3@4→L1H0@9.k       L1H0's keys, as position 9 sees them, do not read it at position 4

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
    """The site that a name refers to; raises an error if the run does not have it."""
    site, length = Site.parse(name), int(trace.lengths[0])
    if isinstance(site.writer, Part):
        raise PathError(
            f"{site} cannot be cut: positions and biases are part of the read itself; cut the "
            "output of a head, of 'embed' or of an MLP"
        )
    for node in (site.start, site.end) if site.is_edge else (site,):
        if node.at is not None and not 0 <= node.at < length:
            raise InputError(f"{node} is out of range: the text has positions 0 to {length - 1}")
    if site.at is not None and not site.is_edge and site.head is None:
        raise PathError(f"{name!r} is not a head; at single positions only heads have a switch")
    # The same edge without positions has the same reasons not to exist.
    find_site(trace.model, site.without_positions)
    return find_site(trace.model, site)
