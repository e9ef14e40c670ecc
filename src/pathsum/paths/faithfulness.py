"""Faithfulness: how much of a prediction the edges of a circuit keep on their own.

Keep some edges, let all others carry the reference, and recompute everything. With no edge
the prediction is the reference's (`empty`), with all of them it is the model's own (`full`), and

    kept = (value with these edges alone − empty) / (full − empty)

On models whose MLPs have inputs in the circuit, `held` is the share kept when edges from MLPs carry
the MLP's own output instead: it tests the edges into heads and logits alone. An MLP recomputed from
a few of its many inputs writes something else, so on deep models `kept` is far below `held`.

The other way round, take these edges from the reference and recompute the rest:

    damage = (full − value without these edges) / (full − empty)

Both are measured along a curve, edges joining from the logits down by |share|, and compared with
random circuits and circuits found by gradients, of the same sizes. If |full − empty| is less than
`LEAST_RANGE` of the larger of the two, the reference predicts about as much as the model, and there
is no share to measure.
"""

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.algebra.rotations import seeded
from pathsum.base import Column, Estimate, Progress, Record, parse_option, silent
from pathsum.base.errors import InputError
from pathsum.base.estimate import mean_estimate, ratio
from pathsum.base.site import Site
from pathsum.base.table import Cell
from pathsum.model import Model, Trace
from pathsum.model.edit import Writes
from pathsum.model.gating import has_gates
from pathsum.model.reference import Reference, parse_circuit_reference, reference_text
from pathsum.model.sequences import TextOrTokens
from pathsum.paths.circuit import name_prompt
from pathsum.paths.edges import (
    is_written,
    mean_writes,
    random_order,
    reference_writes,
    values_with_only,
    values_without,
)
from pathsum.paths.gradients import gradient_order
from pathsum.paths.graph import Graph
from pathsum.paths.target import PredictionRun

# Sizes that a curve has by default.
_POINTS = 8
# Below this share of the prediction, full − empty is no denominator: noise of a few percent of a
# logit would be most of every share.
LEAST_RANGE = 0.2
# Far more than any estimate needs.
MOST_DRAWS = 100_000


class Baseline(enum.StrEnum):
    """Baseline circuits of the same size: random, or ranked by gradients (see `edge_orders`)."""

    RANDOM = "random"
    EAP = "eap"
    EAP_IG = "eap-ig"


@dataclass(frozen=True)
class FaithfulnessPoint:
    """The share kept by a circuit of one size, and by baselines of the same size.

    `value` is the prediction with these edges alone. `kept` is compared with the random circuits:
    its `null` is their mean, and its `p` is the fraction that keep as much. `held` is the share
    kept if MLPs write their own output; None for models whose MLPs are leaves, or without MLPs.
    """

    edges: Annotated[int, Column("edges")]
    value: Annotated[Estimate, Column("value", "+.2f")]
    kept: Annotated[Estimate, Column("kept", ".1%"), Column("p", ".2g", part="p")]
    held: Annotated[Estimate | None, Column("MLPs held", ".1%")]
    damage: Annotated[Estimate, Column("damage", ".1%")]
    random: Annotated[Estimate | None, Column("random", ".1%")]
    eap: Annotated[Estimate | None, Column("EAP", ".1%")]
    eap_ig: Annotated[Estimate | None, Column("EAP-IG", ".1%")]


@dataclass(frozen=True, eq=False)
class Faithfulness(Record, kind="faithfulness"):
    """The share of a prediction that a circuit keeps, by size, and the damage of removing it.

    `full` is the prediction of the model and `empty` is that of the reference. Over several
    prompts, every share is a ratio of sums, with its interval over prompts.
    """

    model: str
    target: str
    reference: str
    prompts: int
    full: Estimate
    empty: Estimate
    points: tuple[FaithfulnessPoint, ...]
    draws: int
    seed: int

    @property
    def kept(self) -> Estimate:
        """The share that the whole circuit keeps."""
        return self.points[-1].kept

    @property
    def held(self) -> Estimate | None:
        """The share that the whole circuit keeps if MLPs write their own output."""
        return self.points[-1].held

    @property
    def damage(self) -> Estimate:
        """The share lost without the circuit."""
        return self.points[-1].damage

    def to_dicts(self) -> list[dict[str, Cell]]:
        """One dictionary per size."""
        return self.to_table().to_dicts()

    @property
    def table_title(self) -> str:
        """The model and the prediction."""
        return f"{self.model}: {self.target}"

    @property
    def table_note(self) -> str:
        """Definitions of the columns."""
        over = f", over {self.prompts} prompts" if self.prompts > 1 else ""
        note = (
            f"kept: (value − {self.empty.value:+.2f}) / ({self.full.value:+.2f} − "
            f"{self.empty.value:+.2f}), with these edges alone and all others from the reference "
            f"({self.reference}); damage: the loss if these edges come from there and all others "
            f"are recomputed{over}"
        )
        if self.held is not None:
            note += "; MLPs held: kept, if edges from MLPs carry the MLP's output in the prompt"
        if self.draws:
            note += f"; random: mean of {self.draws} circuits of the same size"
        return note


@dataclass(frozen=True)
class Options:
    """Parsed options of a faithfulness measurement."""

    reference: Reference | Trace
    sizes: tuple[int, ...] | None
    draws: int
    seed: int
    steps: int
    baselines: frozenset[Baseline]
    text: TextOrTokens | None

    @classmethod
    def parse(
        cls,
        reference: Reference | Trace | str,
        sizes: Sequence[int] | None,
        draws: int,
        seed: int,
        steps: int,
        baselines: Sequence[str],
        text: TextOrTokens | None,
    ) -> "Options":
        """The options as given by a user."""
        if not isinstance(reference, Trace):
            reference = parse_circuit_reference(reference)
        if text is not None and reference is not Reference.MEAN:
            raise InputError("text applies to reference='mean' only; leave it out")
        chosen = frozenset(parse_option(Baseline, one, "baselines") for one in baselines)
        for name, number in (("draws", draws), ("steps", steps)):
            if not 1 <= number <= MOST_DRAWS:
                raise InputError(f"{name}={number} is out of range; use 1 to {MOST_DRAWS:,}")
        if sizes is not None and (not sizes or min(sizes) < 1):
            raise InputError(
                f"sizes={list(sizes)} are not sizes of circuits; give numbers of edges, at least 1"
            )
        ordered = None if sizes is None else tuple(sorted(set(sizes)))
        return cls(reference, ordered, draws, seed, steps, chosen, text)


class ReferenceRuns:
    """The reference's outputs, for each prediction.

    A mean over a text is the same for all of them and computed once.
    """

    def __init__(self, model: Model, options: Options, prompts: Sequence[Trace]) -> None:
        self._given, self._means = options.reference, None
        self.description = "zero" if options.reference is Reference.ZERO else "another prompt"
        if options.reference is Reference.MEAN:
            own = [
                trace.tokens[[row], :length]
                for trace in prompts
                for row, length in enumerate(trace.lengths.tolist())
            ]
            over = reference_text(model, options.text, own)
            self._means, self.description = mean_writes(model, over.batches), f"the {over}"

    def writes(self, of: PredictionRun) -> Writes:
        """The outputs that replace those of a prediction's run."""
        if self._means is not None:
            return self._means.expand_as(Writes.of(of.alone()[0]))
        return reference_writes(of, self._given)


@dataclass(frozen=True, eq=False)
class FaithfulnessCurve:
    """One prompt's numbers: the prediction with, or without, circuits of each size."""

    full: float
    empty: float
    sizes: tuple[int, ...]
    kept: Float[Tensor, " size"]
    held: Float[Tensor, " size"] | None
    without: Float[Tensor, " size"]
    random: Float[Tensor, "draw size"] | None
    eap: Float[Tensor, " size"] | None
    eap_ig: Float[Tensor, " size"] | None


def measure_faithfulness(
    graph: Graph,
    predictions: Sequence[PredictionRun],
    groups: Sequence[Sequence[Sequence[Site]]],
    options: "Options",
    progress: Progress = silent,
) -> Faithfulness:
    """The curve of a graph, given groups of edges that are added together, for each prediction."""
    if graph.is_mean and not groups[0]:
        raise InputError(
            "no edge belongs to the circuit of most samples of the prompts, so there is no circuit "
            "to measure; use a smaller threshold, or name the positions that correspond"
        )
    model = predictions[0].trace.model
    references = ReferenceRuns(model, options, [of.alone()[0] for of in predictions])
    if not graph.is_mean:
        curves = [measure_curve(predictions[0], groups[0], options, references, progress)]
        described = predictions[0].alone()[1].describe(model)
        return summarize_curves(curves, graph.model, described, options, references.description)
    curves = list[FaithfulnessCurve]()
    for number, (of, own) in enumerate(zip(predictions, groups, strict=True)):
        progress(number, len(predictions), "prompts")
        with name_prompt(number):
            curves.append(measure_curve(of, own, options, references))
    described = "the predictions of all prompts"
    return summarize_curves(curves, graph.model, described, options, references.description)


def measure_curve(
    of: PredictionRun,
    groups: Sequence[Sequence[Site]],
    options: Options,
    references: ReferenceRuns,
    progress: Progress = silent,
) -> FaithfulnessCurve:
    """One prompt's curve; `groups` are edges that are added together, the strongest first.

    A size is a number of groups. Baseline circuits have the same number of edges.
    """
    start, target = of.alone()
    position, length = int(target.positions[0]), start.tokens.shape[1]
    config = start.model.config
    writes = references.writes(of)
    written = [[edge for edge in group if is_written(edge.start)] for group in groups]
    # Of many prompts, some do not have the edges of a group.
    written = [own for group, own in zip(groups, written, strict=True) if own or not group]
    if not any(written):
        raise InputError(
            "the circuit has no edge that the embedding, a head or an MLP writes, so there is "
            "nothing to keep; use a smaller threshold"
        )
    sizes = options.sizes or default_sizes(len(written))
    own = [[edge for group in written[:size] for edge in group] for size in sizes]
    counts = [len(row) for row in own]
    orders: dict[str, list[Site]] = {}
    if Baseline.EAP in options.baselines:
        orders["eap"] = gradient_order(start, target, writes, counts[-1])
    if Baseline.EAP_IG in options.baselines:
        orders["eap_ig"] = gradient_order(start, target, writes, counts[-1], options.steps)
    draws = options.draws if Baseline.RANDOM in options.baselines else 0
    generator = seeded(options.seed)
    for draw in range(draws):
        orders[f"random {draw}"] = random_order(config, position, length, counts[-1], generator)
    rows = [order[:count] for order in orders.values() for count in counts]
    values = values_with_only(of, [[], *own, *rows], writes, progress=progress)
    empty, kept, others = values.split([1, len(own), len(rows)])
    held = None
    if has_gates(config):
        held = values_with_only(of, own, writes, progress, hold_mlps=True)
    by_order = dict(zip(orders, others.view(len(orders), len(sizes)), strict=True))
    random = [by_order[f"random {draw}"] for draw in range(draws)]
    return FaithfulnessCurve(
        full=float(target.of_copies(start)[0]),
        empty=float(empty),
        sizes=tuple(sizes),
        kept=kept,
        held=held,
        without=values_without(of, own, writes, progress=progress),
        random=torch.stack(random) if random else None,
        eap=by_order.get("eap"),
        eap_ig=by_order.get("eap_ig"),
    )


def summarize_curves(
    curves: Sequence[FaithfulnessCurve],
    model: str,
    target: str,
    options: Options,
    reference: str,
) -> Faithfulness:
    """The record of one prompt's curve, or of several with intervals."""
    full = torch.tensor([curve.full for curve in curves], dtype=torch.float64)
    empty = torch.tensor([curve.empty for curve in curves], dtype=torch.float64)
    _check_range(float(full.mean()), float(empty.mean()), reference)

    def column(values: list[Tensor]) -> Float[Tensor, " prompt"]:
        return torch.stack(values).double().cpu()

    def share(values: list[Tensor]) -> Estimate:
        return ratio(column(values) - empty, full - empty)

    points: list[FaithfulnessPoint] = []
    for at, size in enumerate(curves[0].sizes):
        kept, random = share([curve.kept[at] for curve in curves]), None
        drawn = [curve.random for curve in curves if curve.random is not None]
        if drawn:
            each = torch.tensor(
                [share([one[draw, at] for one in drawn]).value for draw in range(options.draws)]
            )
            deviation = float(each.std()) / math.sqrt(len(each)) if len(each) > 1 else None
            random = Estimate.around(float(each.mean()), deviation, len(each))
            p = (1 + int((each >= kept.value).sum())) / (1 + len(each))
            kept = replace(kept, null=random.value, p=p, draws=len(each))
        held = [curve.held[at] for curve in curves if curve.held is not None]
        eap = [curve.eap[at] for curve in curves if curve.eap is not None]
        eap_ig = [curve.eap_ig[at] for curve in curves if curve.eap_ig is not None]
        points.append(
            FaithfulnessPoint(
                edges=size,
                value=mean_estimate(column([curve.kept[at] for curve in curves])),
                kept=kept,
                held=share(held) if held else None,
                damage=ratio(full - column([c.without[at] for c in curves]), full - empty),
                random=random,
                eap=share(eap) if eap else None,
                eap_ig=share(eap_ig) if eap_ig else None,
            )
        )
    return Faithfulness(
        model=model,
        target=target,
        reference=reference,
        prompts=len(curves),
        full=mean_estimate(full),
        empty=mean_estimate(empty),
        points=tuple(points),
        draws=options.draws if Baseline.RANDOM in options.baselines else 0,
        seed=options.seed,
    )


def default_sizes(count: int) -> tuple[int, ...]:
    """Sizes up to a whole circuit, closer together where it is small.

    >>> default_sizes(5), default_sizes(60)
    ((1, 2, 3, 4, 5), (1, 2, 3, 6, 10, 19, 33, 60))
    """
    if count <= _POINTS:
        return tuple(range(1, count + 1))
    steps = (count ** (step / (_POINTS - 1)) for step in range(_POINTS))
    return tuple(sorted({round(step) for step in steps}))


def _check_range(full: float, empty: float, reference: str) -> None:
    """Raises InputError if the reference predicts about as much as the model."""
    least = LEAST_RANGE * max(abs(full), abs(empty))
    if not abs(full - empty) > least:
        raise InputError(
            f"the model predicts {full:+.4g} and the reference ({reference}) {empty:+.4g}: a "
            f"difference below {LEAST_RANGE:.0%} of the prediction, of which no share can be "
            "measured; choose another reference ('zero', or a prompt with another answer), or "
            "versus= a token that the reference does not predict"
        )
