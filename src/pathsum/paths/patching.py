"""Patching: an edge or a node taken from another run, and everything after it recomputed.

Frozen paths hold patterns fixed, so components that act through queries and keys get no credit: on
an induction prediction, the previous-token head, which makes the induction head attend to the right
token, gets almost none. Patching measures the causal effect instead. For an **edge** `L0H7→L1H4.k`,
only the keys of L1H4 are computed from a stream with L0H7's output of the other run:

    x' = x − written(L0H7) + written_other(L0H7)      read by L1H4 for its keys only

Normalization is recomputed on x' for that read alone, scale included. Where several heads share a
key/value head, the message reaches the named head only. For a **node** `L0H7` every reader sees the
other run's output. Positions restrict a patch: `L0H7@4` exchanges the output of L0H7 at position 4,
and `L0H7@4→L1H4@9.k` exchanges it in the keys of L1H4 for destination 9 only.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.base import (
    Column,
    HeadId,
    Part,
    Progress,
    Record,
    Side,
    Site,
    Table,
    parse_choice,
    silent,
    text_column,
    token_column,
)
from pathsum.base.errors import InputError, NotExactError, PathError
from pathsum.base.estimate import Estimate, mean_estimate
from pathsum.base.options import batched, parse_position
from pathsum.base.shapes import HeadPattern
from pathsum.base.table import Cell
from pathsum.model import EVERYTHING, RESIDUAL, Trace, trace_run, transformer
from pathsum.model.edit import Edit, EditValue
from pathsum.model.forward import run_logits
from pathsum.model.reference import Reference, mean_values, reference_text
from pathsum.model.sites import find_patch_site, find_site, site_value
from pathsum.model.weights import layer_of_one_head
from pathsum.paths.target import Measure, Metric, PositionName, TokenName, Versus, find_measure

Patch: TypeAlias = tuple[Site, EditValue]
"""A site and its replacement in one copy of a run."""


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
    (`mlp0.pre`, `mlp0.gate`, `mlp0.act`) are replaced like nodes. The replacement is another run,
    `"zero"`, `"mean"` (over positions ≥ 1 of a text; see `reference_text`), or a tensor that
    broadcasts to [batch, pos, width]: d_head for a head's z, 1 for a neuron, d_mlp for values of
    neurons, d_model for everything else. Both runs must be of one model and of one length; a batch
    of one sequence is repeated to fit the other. Several edits act together: each replaces its
    writer's output in the patched run. The result is a trace that raises NotExactError where the
    edits make a decomposition false.
    """
    keep = RESIDUAL if trace.recorded_logits is None else EVERYTHING
    every = (*trace.edits, *patch_edits(trace, edits))
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
    layer = layer_of_one_head(config, layer, head.head)
    return transformer.attend(config, layer, query[:, None], key[:, None])[:, 0]


def patch_edits(trace: Trace, replacements: Mapping[Any, Any]) -> list[Edit]:
    """The edits of a run, from a mapping of names to replacements."""
    sites = [(find_patch_site(trace.model, name), value) for name, value in replacements.items()]
    is_mean = [isinstance(value, str) and value == Reference.MEAN for _, value in sites]
    means = mean_outputs(
        trace, [site for (site, _), mean in zip(sites, is_mean, strict=True) if mean]
    )
    return [
        edit for site, value in sites for edit in _site_edits(trace, site, means.get(site, value))
    ]


def mean_outputs(trace: Trace, sites: Sequence[Site]) -> dict[Site, Tensor]:
    """The mean of each node or edge over the model's reference text (`reference_text`)."""
    if not sites:
        return {}
    rows = [trace.tokens[[row], :length] for row, length in enumerate(trace.lengths.tolist())]
    return mean_values(trace.model, reference_text(trace.model, None, rows).batches, sites)


def _site_edits(trace: Trace, site: Site, value: Any) -> Iterator[Edit]:
    value, site = find_replacement(trace, site, value), before_output(site)
    if site.at is None and site.to is None:
        yield Edit(site, value)
        return
    lengths = trace.lengths.tolist()
    for position in (site.at, site.to):
        if position is not None:
            parse_position(position, min(lengths), of="the shortest sequence")
    if len(set(lengths)) == 1 or min(p for p in (site.at, site.to) if p is not None) >= 0:
        yield Edit(_count_from_start(site, lengths[0]), value)
        return
    for sequence, length in enumerate(lengths):
        yield Edit(_count_from_start(site, length), value, sequence)


def before_output(site: Site) -> Site:
    """The site where a node is replaced: a head before W_O, everything else at its output."""
    return site if site.head is None else replace(site, value="z")


def _count_from_start(site: Site, length: int) -> Site:
    """A site whose negative positions, counted from the end of a sequence, are positive."""
    at, to = (None if position is None else position % length for position in (site.at, site.to))
    return replace(site, at=at, to=to)


def find_replacement(trace: Trace, site: Site, value: Any) -> Tensor:
    """The replacement for a node (a head: its z) or an edge, [batch, pos, width]."""
    if isinstance(value, Trace):
        check_runs(trace, value)
        return site_value(value, site)
    current = site_value(trace, site)
    if isinstance(value, Tensor):
        try:
            return value.to(current).expand_as(current)
        except RuntimeError as error:
            raise InputError(
                f"the replacement for {site} has shape {list(value.shape)}; give a tensor that "
                f"broadcasts to {list(current.shape)}"
            ) from error
    if not isinstance(value, str):
        raise InputError(
            f"{site} cannot be taken from a {type(value).__name__}; use model.trace(other_text), "
            "'zero', 'mean' or a tensor"
        )
    if parse_choice(("zero", "mean"), value, f"the replacement for {site}") == "zero":
        return torch.zeros_like(current)
    return mean_outputs(trace, [site])[site].expand_as(current)


def check_runs(trace: Trace, other: Trace) -> None:
    """Raise InputError if parts of one run cannot replace parts of the other."""
    if other.model.weights is not trace.model.weights:
        raise InputError(
            "the other run is of another model, whose residual stream has a different basis; use "
            "two traces of the same model"
        )
    (batch, length), (other_batch, other_length) = trace.tokens.shape, other.tokens.shape
    if length != other_length:
        raise InputError(
            f"the runs have {length} and {other_length} tokens, but they are compared position "
            "by position; use texts with the same number of tokens"
        )
    if batch != other_batch and 1 not in (batch, other_batch):
        raise InputError(
            f"the runs have {batch} and {other_batch} sequences; use batches of the same size, or "
            "of one sequence"
        )
    if bool((trace.lengths != other.lengths).any()):
        raise InputError(
            "the runs have sequences of different lengths, but they are compared position "
            "by position; pair sequences with the same number of tokens"
        )


def same_batch(trace: Trace, other: Trace) -> tuple[Trace, Trace]:
    """Both runs, expanded to the larger batch size."""
    size = max(len(trace.tokens), len(other.tokens))

    def expand_batch(run: Trace) -> Trace:
        if len(run.tokens) == size:
            return run
        tokens = run.tokens.expand(size, -1)
        return trace_run(run.model, tokens, run.edits, lengths=run.lengths)

    return expand_batch(trace), expand_batch(other)


def truncate_runs(trace: Trace, other: Trace, measure: Measure) -> tuple[Trace, Trace]:
    """Both runs up to the positions that the measure depends on; edited runs stay whole."""
    if measure.positions is None or trace.edits or other.edits:
        return trace, other
    config = trace.model.config
    length = config.visible_length(int(measure.positions.max()), trace.tokens.shape[1])
    if length == trace.tokens.shape[1]:
        return trace, other
    lengths = trace.lengths.clamp(max=length)
    return (
        trace_run(trace.model, trace.tokens[:, :length], lengths=lengths),
        trace_run(other.model, other.tokens[:, :length], lengths=lengths),
    )


def patched_values(
    trace: Trace,
    measure: Measure,
    groups: Iterable[Sequence[Patch]],
    progress: Progress = silent,
    doing: str = "patching",
) -> Float[Tensor, "patch batch"]:
    """The measure in copies of a run with one patch each; copies of a group share a batch.

    Layers below the first patch of a batch are computed once, so a group should patch one layer.
    """
    groups = list(groups)
    total, batch, done = sum(map(len, groups)), measure.batch, 0
    values = torch.zeros(total, batch, dtype=torch.float64)
    for group in groups:
        for part in batched(group, 4 * trace.streams[0].nbytes):
            progress(done, total, doing)
            edits = [
                Edit(site, value, copy * batch + row)
                for copy, (site, value) in enumerate(part)
                for row in range(batch)
            ]
            at = None if measure.positions is None else measure.positions.repeat(len(part))
            every = (*trace.edits, *edits)
            logits = run_logits(trace.weights, trace.tokens, every, at, copies=len(part))
            values[done : done + len(part)] = measure.of_each(logits)
            done += len(part)
    progress(total, total, doing)
    return values


@dataclass(frozen=True, eq=False)
class PatchEffect(Record, kind="patch-effect"):
    """The effect of a patch on a target and on the prediction (of the first sequence).

    `before`, `after` and `other` are the target in this run, in the patched run and in the other
    run; `other` is None if there is no other run.
    """

    model: str
    patched: tuple[str, ...]
    target: str
    before: Estimate
    after: Estimate
    other: Estimate | None
    effect: Estimate
    predicted_before: tuple[str, float]
    predicted_after: tuple[str, float]
    predicted_other: tuple[str, float] | None

    def to_table(self) -> Table:
        """One run per row."""
        rows: tuple[tuple[Cell, ...], ...] = (
            ("this run", self.before.value, *self.predicted_before),
            ("patched", self.after.value, *self.predicted_after),
        )
        if self.other is not None and self.predicted_other is not None:
            rows += (("other run", self.other.value, *self.predicted_other),)
        columns = (
            text_column(""),
            Column("value", ".4f"),
            token_column("predicts"),
            Column("probability"),
        )
        note = (
            f"value: {self.target}\neffect of the patch: {self.effect.value:+.4f} (before − after)"
        )
        source = "" if self.other is None else " from the other run"
        title = f"{self.model}, patched: {', '.join(self.patched)}{source}"
        return Table(columns, rows, title=title, note=note)


def patch_effect(
    trace: Trace,
    edits: Mapping[Any, Any],
    position: PositionName | None = None,
    token: TokenName | None = None,
    versus: Versus = None,
    *,
    metric: Metric | None = None,
) -> PatchEffect:
    """Apply a patch and measure its effect on a logit, by default the logit of the prediction.

    `metric` replaces the logit by another measure, as in `causal_effects`.
    """
    if not edits:
        raise InputError("nothing is patched; name at least one edge or node")
    patched = patch(trace, edits)
    other = next((value for value in edits.values() if isinstance(value, Trace)), None)
    if other is not None:
        trace, other = same_batch(trace, other)
    measure = find_measure(trace, metric, position, token, versus)
    before, after = measure.of(trace), measure.of(patched)
    return PatchEffect(
        model=trace.model.name,
        patched=tuple(_describe_patch(trace, name, value) for name, value in edits.items()),
        target=measure.text,
        before=mean_estimate(before),
        after=mean_estimate(after),
        other=None if other is None else mean_estimate(measure.of(other)),
        effect=mean_estimate(before - after),
        predicted_before=_prediction(trace, measure),
        predicted_after=_prediction(patched, measure),
        predicted_other=None if other is None else _prediction(other, measure),
    )


def _describe_patch(trace: Trace, name: Any, value: Any) -> str:
    """The site, and its replacement unless it is another run."""
    site = str(find_patch_site(trace.model, name))
    if isinstance(value, Trace):
        return site
    return f"{site} = {value if isinstance(value, str) else 'a tensor'}"


def _prediction(trace: Trace, measure: Measure) -> tuple[str, float]:
    at = trace.lengths[0] - 1 if measure.positions is None else measure.positions[0]
    probability, best = trace.logits_at(int(at))[0].softmax(-1).max(-1)
    return trace.model.output_text(int(best)), float(probability)


def without(trace: Trace, names: Sequence[str]) -> Trace:
    """A run of one sequence without some heads and edges, which are patched with zero.

    L0H3                  the head's output, everywhere
    L0H3@4                the head's output at position 4
    L0H3→L1H0.k           the head's output in the keys of L1H0
    L0H3@4→L1H0@9.k       its output at position 4, in the keys of L1H0 that position 9 reads

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
    # An error about the components names the site without positions.
    find_site(trace.model, site.without_positions)
    return find_site(trace.model, site)
