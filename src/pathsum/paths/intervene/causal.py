"""Causal effects: what each edge does for a prediction, measured by patching it.

The frozen attribution of `toward` shows which paths carried the logit, given where heads attended.
A patch shows what changes without an edge, attention included. Use both: on an induction prediction
the frozen paths credit the induction head alone, and the patch of its k-edge finds the
previous-token head.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.errors import InputError
from pathsum.model import Model, Trace, trace_run
from pathsum.model.edits import Message
from pathsum.model.run import run_logits
from pathsum.names import (
    Edge,
    HeadId,
    HeadName,
    HeadRead,
    LogitsRead,
    MlpRead,
    Side,
    Source,
    Writer,
)
from pathsum.paths.intervene.patching import check_runs, parse_patch, patch, written_by
from pathsum.paths.target import PositionName, Target, TokenName, Versus, find_target
from pathsum.result import Column, Progress, Record, Table, silent, text_column, token_column
from pathsum.result.estimate import Estimate, ratio
from pathsum.result.table import Cell


@dataclass(frozen=True)
class EdgeEffect:
    """How far the number falls when one edge carries the other run's message.

    `frozen` is the sum of all paths that use the edge, patterns held fixed, where that was computed
    (`Toward.causal_effects`); an edge into a query, a key or an MLP is in no path and has None.
    """

    edge: Edge
    effect: Estimate
    frozen: float | None = None


@dataclass(frozen=True, eq=False)
class CausalEffects(Record, kind="causal-effects"):
    """What each edge does for a number: `value` in this run, `value_other` in the other one.

    An effect is value − value with that one edge taken from the other run. Effects do not add up:
    two edges may each be enough, or only both together.
    """

    model: str
    target: str
    value: Estimate
    value_other: Estimate
    effects: tuple[EdgeEffect, ...]

    def __getitem__(self, edge: Any) -> float:
        """The effect of an edge, as `effects["L0H0", "L1H0", "k"]`."""
        return self.edge(edge).effect.value

    def edge(self, edge: Any) -> EdgeEffect:
        """The effect of an edge with its interval and its frozen share."""
        wanted = Edge.parse(edge)
        for found in self.effects:
            if found.edge == wanted:
                return found
        raise InputError(
            f"no effect of {wanted} was measured here; see .effects for those that were"
        )

    def ranked(self) -> list[EdgeEffect]:
        """The largest magnitude first, of the effect or of the frozen share."""
        return sorted(
            self.effects, key=lambda found: -max(abs(found.effect.value), abs(found.frozen or 0))
        )

    def to_table(self, rows: int = 20) -> Table:
        """The strongest edges."""
        shown = self.ranked()[:rows]
        with_frozen = any(found.frozen is not None for found in self.effects)
        cells: list[tuple[Cell, ...]] = [
            (
                str(found.edge),
                *((found.frozen,) if with_frozen else ()),
                *(found.effect.value, found.effect.low, found.effect.high),
            )
            for found in shown
        ]
        columns = (
            text_column("edge"),
            *((Column("frozen", "+.4f"),) if with_frozen else ()),
            Column("effect", "+.4f"),
            Column("low", "+.4f"),
            Column("high", "+.4f"),
        )
        note = (
            f"{self.value.value:.4f} in this run, {self.value_other.value:.4f} in the other; an "
            "effect is how far it falls when that edge alone is taken from the other run\n"
            f"{len(shown)} of {len(self.effects)} edges; effects do not add up"
        )
        if with_frozen:
            note += (
                "\nfrozen: the sum of all paths that use the edge, patterns fixed (– for queries "
                "and keys, which no path enters)"
            )
        return Table(columns, tuple(cells), title=f"{self.model}: {self.target}", note=note)


def causal_effects(
    trace: Trace,
    other: Trace,
    position: PositionName = -1,
    token: TokenName | None = None,
    versus: Versus = None,
    *,
    into: Sequence[HeadName] | None = None,
    progress: Progress = silent,
) -> CausalEffects:
    """The effect of every edge on a logit: patch it from the other run, recompute, compare.

    `position`, `token` and `versus` name the number as in `toward` (without a token: what this run
    predicts). `into` keeps edges into some heads only; otherwise edges into all heads, MLPs and
    the logits are measured, one run each, which grows with the square of the number of heads.
    """
    check_runs(trace, other)
    trace, other = _same_batch(trace, other)
    target = find_target(trace, position, token, versus)
    at_target = replace(target, positions=torch.zeros_like(target.positions))
    value = target.of(trace.logits)
    weights = trace.model.weights
    edges = list(edges_of(trace.model, into))
    writers = dict.fromkeys(edge.writer for edge in edges)
    messages = {writer: written_by(other, writer) for writer in writers}
    # An edited run keeps its edits, and its layers cannot be taken over.
    start = None if trace.edits else trace
    effects: list[EdgeEffect] = []
    for number, edge in enumerate(edges):
        progress(number, len(edges), "patching edges")
        edits = (*trace.edits, Message(edge, messages[edge.writer]))
        logits = run_logits(weights, trace.tokens, edits, start, target.positions)
        effects.append(EdgeEffect(edge, _mean(value - at_target.of(logits))))
    progress(len(edges), len(edges), "patching edges")
    return CausalEffects(
        model=trace.model.name,
        target=target.describe(trace.model),
        value=_mean(value),
        value_other=_mean(target.of(other.logits)),
        effects=tuple(effects),
    )


def edges_of(model: Model, into: Sequence[HeadName] | None = None) -> Iterable[Edge]:
    """Every edge of a model, or those into some heads, from the bottom up."""
    config = model.config
    chosen = None if into is None else {model.head(name).id for name in into}
    written: list[Writer] = [Source("embed")]
    for layer in range(config.n_layers):
        heads = [HeadId(layer, head) for head in range(config.n_heads)]
        for head in heads:
            if chosen is None or head in chosen:
                for writer in written:
                    yield from (Edge(writer, HeadRead(head, side)) for side in Side)
        if config.mlp != "none":
            if chosen is None:
                read = written if config.block == "parallel" else [*written, *heads]
                yield from (Edge(writer, MlpRead(layer)) for writer in read)
            written = [*written, *heads, Source("mlp", layer)]
        else:
            written = [*written, *heads]
    if chosen is None:
        yield from (Edge(writer, LogitsRead()) for writer in written)


@dataclass(frozen=True, eq=False)
class PatchEffect(Record, kind="patch-effect"):
    """What a patch does to a number, and to what is predicted (for the first sequence).

    `before`, `after` and `other` are the number in this run, in the patched one and in the other.
    """

    model: str
    patched: tuple[str, ...]
    target: str
    before: Estimate
    after: Estimate
    other: Estimate
    effect: Estimate
    predicted_before: tuple[str, float]
    predicted_after: tuple[str, float]
    predicted_other: tuple[str, float]

    def to_table(self) -> Table:
        """Three runs, one per row."""
        rows: tuple[tuple[Cell, ...], ...] = (
            ("this run", self.before.value, *self.predicted_before),
            ("patched", self.after.value, *self.predicted_after),
            ("other run", self.other.value, *self.predicted_other),
        )
        columns = (
            text_column(""),
            Column("value", ".4f"),
            token_column("predicts"),
            Column("probability"),
        )
        note = (
            f"value: {self.target}\neffect of the patch: {self.effect.value:+.4f} (before − after)"
        )
        title = f"{self.model}: {', '.join(self.patched)} from the other run"
        return Table(columns, rows, title=title, note=note)


def patch_effect(
    trace: Trace,
    edits: Mapping[Any, Trace],
    position: PositionName = -1,
    token: TokenName | None = None,
    versus: Versus = None,
) -> PatchEffect:
    """A patch, and what it does to a logit (without a token: of what this run predicts)."""
    if not edits:
        raise InputError("nothing is patched; name at least one edge or node")
    patched = patch(trace, edits)
    others = list(edits.values())
    trace, other = _same_batch(trace, others[0])
    target = find_target(trace, position, token, versus)
    before, after = target.of(trace.logits), target.of(patched.logits)
    return PatchEffect(
        model=trace.model.name,
        patched=tuple(str(parse_patch(trace.model, name)) for name in edits),
        target=target.describe(trace.model),
        before=_mean(before),
        after=_mean(after),
        other=_mean(target.of(other.logits)),
        effect=_mean(before - after),
        predicted_before=_prediction(trace, target),
        predicted_after=_prediction(patched, target),
        predicted_other=_prediction(other, target),
    )


def _prediction(trace: Trace, target: Target) -> tuple[str, float]:
    chances = trace.logits[0, target.positions[0]].softmax(-1)
    best = int(chances.argmax())
    return trace.model.token_text(best), float(chances[best])


def _same_batch(trace: Trace, other: Trace) -> tuple[Trace, Trace]:
    """Both runs with as many sequences as the larger has."""
    size = max(len(trace.tokens), len(other.tokens))

    def widened(run: Trace) -> Trace:
        if len(run.tokens) == size:
            return run
        tokens = run.tokens.expand(size, -1)
        return trace_run(run.model, tokens, run.edits, lengths=run.lengths)

    return widened(trace), widened(other)


def _mean(values: Float[Tensor, " batch"]) -> Estimate:
    return ratio(values, torch.ones_like(values))
