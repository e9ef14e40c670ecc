"""`ablation`: what is lost without a head, and how much of that a description wins back."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch

from pathsum.circuits.tokens.token import joined
from pathsum.explorer.numbers import finite
from pathsum.explorer.parameters import AboutHead
from pathsum.explorer.probe_sequences import Sequences, sequences
from pathsum.explorer.workbench import Workbench
from pathsum.model import Head, Model, Trace
from pathsum.model.edits import Attend, Edit, FreezePatterns, HeadOutput, KeepPart
from pathsum.model.losses import SequenceLosses, sequence_losses
from pathsum.model.trace import trace_run
from pathsum.paths import CopyingPart, Estimate, IdealPattern
from pathsum.paths.intervene.descriptions import copying_projector, described_pattern
from pathsum.paths.intervene.replacement import PATTERN_NAMES, recovered_share
from pathsum.result import Record


@dataclass(frozen=True)
class AblationRow:
    """The cost in nats a prediction of knocking the head out, with a 95 % interval."""

    intervention: str
    on: str
    cost: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class DescriptionRow:
    """The share of the cost that the head's description wins back, with a 95 % interval."""

    description: str
    on: str
    recovered: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, eq=False)
class HeadAblation(Record, kind="page-ablation"):
    """A head knocked out, and replaced by what it is said to do."""

    head: str
    rows: tuple[AblationRow, ...]
    descriptions: tuple[DescriptionRow, ...]
    note: str


def ablation(bench: Workbench, asked: AboutHead) -> HeadAblation:
    """Knock the head out in four ways and put ideal patterns in its place, on every probe.

    What `ablate` and `replace` of the library give, at a third of the runs: all share the unedited
    one, which the other heads share too, and the one in which the head writes nothing.
    """
    head = bench.model(asked).head(asked.head)
    rows: list[AblationRow] = []
    described: list[DescriptionRow] = []
    why: dict[str, None] = {}
    for on in sequences(bench, asked):
        tests = _Tests(head, bench.result(asked, f"run of {on.name}", _run_of(on)), on)
        rows += tests.knockouts()
        for description, losses in tests.descriptions():
            share, none = recovered_share(head.id, tests.plain, tests.nothing, losses)
            described.append(_described(description, on, share))
            why[f"{on.name}: {none}" if none else ""] = None
    return HeadAblation(head.label, tuple(rows), tuple(described), joined(tuple(why)))


def _run_of(on: Sequences) -> Callable[[Model], Trace]:
    return lambda model: model.trace(on.tokens)


class _Tests:
    """A head knocked out of one run, and replaced in it."""

    def __init__(self, head: Head, trace: Trace, on: Sequences) -> None:
        self.head, self.trace, self.on = head, trace, on
        self._z = trace.z(head.id.layer)[:, head.id.head]
        self._silent = HeadOutput(head.id, torch.zeros_like(self._z))
        self.plain = sequence_losses(trace.logits, on.tokens, on.first)
        self.nothing = self._losses(self._silent)

    def knockouts(self) -> list[AblationRow]:
        mean = self._z.double().mean((0, 1)).to(self._z).expand_as(self._z)
        found = (
            ("writes nothing", self.nothing),
            (
                "writes nothing, later patterns kept",
                self._losses(self._silent, FreezePatterns(self.trace.patterns)),
            ),
            ("writes its mean", self._losses(HeadOutput(self.head.id, mean))),
            ("attends to the first token", self._attending[IdealPattern.FIRST]),
        )
        rows: list[AblationRow] = []
        for what, losses in found:
            cost = losses.above(self.plain)
            low, high = finite(cost.low), finite(cost.high)
            rows.append(AblationRow(what, self.on.name, cost.value, low, high))
        return rows

    def descriptions(self) -> Iterator[tuple[str, SequenceLosses]]:
        for pattern in IdealPattern:
            yield PATTERN_NAMES[pattern], self._attending[pattern]
        if self.head.model.config.logit_cap is None:
            copies = KeepPart(self.head.id, copying_projector(self.head).matrix)
            yield str(CopyingPart()), self._losses(copies)

    @cached_property
    def _attending(self) -> dict[IdealPattern, SequenceLosses]:
        found: dict[IdealPattern, SequenceLosses] = {}
        for pattern in IdealPattern:
            ideal = described_pattern(self.trace, self.head.id, pattern)
            found[pattern] = self._losses(Attend(self.head.id, ideal))
        return found

    def _losses(self, *edits: Edit) -> SequenceLosses:
        run = trace_run(self.head.model, self.on.tokens, edits, self.trace)
        return sequence_losses(run.logits, self.on.tokens, self.on.first)


def _described(description: str, on: Sequences, share: Estimate | None) -> DescriptionRow:
    if share is None:
        return DescriptionRow(description, on.name, None, None, None)
    low, high = finite(share.low), finite(share.high)
    return DescriptionRow(description, on.name, finite(share.value), low, high)
