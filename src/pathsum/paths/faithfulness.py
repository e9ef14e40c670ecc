"""Faithfulness: how much of a prediction the edges of a circuit keep on their own.

Keep some edges, let all others carry the reference, and recompute everything. With no edge
the prediction is the reference's (`empty`), with all of them it is the model's own (`full`), and

    kept = (value with these edges alone − empty) / (full − empty)

On models whose MLPs have inputs in the circuit, `held` is the share kept if edges from MLPs carry
the output of the unedited run: it tests the edges into heads and logits alone. An MLP recomputed
from a few of its many inputs has another output, so on deep models `kept` is far below `held`.

Conversely, take these edges from the reference and recompute the rest:

    damage = (full − value without these edges) / (full − empty)

Both are measured along a curve on which edges join from the logits down by |share|, and compared
with random circuits and circuits by gradients, of the same sizes. If |full − empty| is less than
`LEAST_RANGE` of the larger of the two, the reference predicts about as much as the model, and there
is no share to measure.
"""

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.algebra.rotations import seeded
from pathsum.base import Column, Estimate, Progress, Record, parse_option, silent
from pathsum.base.errors import InputError
from pathsum.base.estimate import mean_estimate, ratio
from pathsum.base.options import MOST_DRAWS
from pathsum.base.site import Site
from pathsum.base.table import Cell
from pathsum.model import Model, Trace
from pathsum.model.edit import Writes
from pathsum.model.gating import has_gates
from pathsum.model.reference import (
    Reference,
    mean_writes,
    parse_circuit_reference,
    reference_text,
)
from pathsum.model.sequences import TextOrTokens
from pathsum.paths.cuts import reference_writes, values_with_only, values_without
from pathsum.paths.edges import random_order
from pathsum.paths.gradients import gradient_order
from pathsum.paths.graph import Graph
from pathsum.paths.prompts import name_prompt
from pathsum.paths.target import PredictionRun

# Sizes that a curve has by default.
_POINTS = 8
# Below this share of the prediction, full − empty is too small to divide by: noise of a few percent
# of a logit would be most of every share.
LEAST_RANGE = 0.2


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

    `full` is the prediction of the model, and `empty` the prediction of the reference. Over several
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
        """The share that the whole circuit keeps with the MLPs' outputs of the unedited run."""
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


class Options:
    """Parsed options of a faithfulness measurement."""

    def __init__(
        self,
        reference: Reference | Trace | str,
        sizes: Sequence[int] | None,
        draws: int,
        seed: int,
        steps: int,
        baselines: Sequence[str],
        text: TextOrTokens | None,
    ) -> None:
        is_run = isinstance(reference, Trace)
        self.reference = reference if is_run else parse_circuit_reference(reference)
        if text is not None and self.reference is not Reference.MEAN:
            raise InputError("text applies to reference='mean' only; leave it out")
        self.baselines = {parse_option(Baseline, name, "baselines") for name in baselines}
        for name, number in (("draws", draws), ("steps", steps)):
            if not 1 <= number <= MOST_DRAWS:
                raise InputError(f"{name}={number} is out of range; use 1 to {MOST_DRAWS:,}")
        if sizes is not None and (not sizes or min(sizes) < 1):
            raise InputError(
                f"sizes={list(sizes)} are not sizes of circuits; give numbers of edges, at least 1"
            )
        self.sizes = None if sizes is None else sorted(set(sizes))
        self.draws, self.seed, self.steps, self.text = draws, seed, steps, text


def measure_faithfulness(
    graph: Graph,
    predictions: Sequence[PredictionRun],
    groups: Sequence[Sequence[Sequence[Site]]],
    options: Options,
    progress: Progress = silent,
) -> Faithfulness:
    """The curve of a graph; `groups` are edges of each prediction that are added together."""
    if graph.is_mean and not groups[0]:
        raise InputError(
            "no edge belongs to the circuit of most samples of the prompts, so there is no circuit "
            "to measure; use a smaller threshold, or name the positions that correspond"
        )
    model = predictions[0].trace.model
    reference, description = _reference_of(model, options, predictions)
    sizes = options.sizes or default_sizes(len(groups[0]))
    if graph.is_mean:
        curves = list[dict[str, Tensor]]()
        for number, (prediction, edges) in enumerate(zip(predictions, groups, strict=True)):
            progress(number, len(predictions), "prompts")
            with name_prompt(number):
                curves.append(measure_curve(prediction, edges, sizes, options, reference))
        target = "the predictions of all prompts"
    else:
        curves = [measure_curve(predictions[0], groups[0], sizes, options, reference, progress)]
        target = predictions[0].isolate()[1].describe(model)
    columns = {
        name: torch.stack([curve[name] for curve in curves]).double().cpu() for name in curves[0]
    }
    full, empty = columns["full"], columns["empty"]
    check_range(float(full.mean()), float(empty.mean()), description)
    return Faithfulness(
        model=graph.model,
        target=target,
        reference=description,
        prompts=len(curves),
        full=mean_estimate(full),
        empty=mean_estimate(empty),
        points=tuple(_point(columns, at, size) for at, size in enumerate(sizes)),
        draws=options.draws if Baseline.RANDOM in options.baselines else 0,
        seed=options.seed,
    )


def _reference_of(
    model: Model, options: Options, predictions: Sequence[PredictionRun]
) -> tuple[Reference | Trace | Writes, str]:
    """The reference, with a mean over a text computed once for all predictions, and its name."""
    if options.reference is not Reference.MEAN:
        is_zero = options.reference is Reference.ZERO
        return options.reference, "zero" if is_zero else "another prompt"
    tokens = [prediction.isolate()[0].tokens for prediction in predictions]
    text = reference_text(model, options.text, tokens)
    return mean_writes(model, text.batches), f"the {text}"


def measure_curve(
    prediction: PredictionRun,
    groups: Sequence[Sequence[Site]],
    sizes: Sequence[int],
    options: Options,
    reference: Reference | Trace | Writes,
    progress: Progress = silent,
) -> dict[str, Float[Tensor, "*size"]]:
    """One prompt's predictions with and without circuits of each size, and with the baselines.

    `groups` are edges that are added together, the strongest first. A size is a number of groups.
    Baseline circuits have the same number of edges. `full` and `empty` are single numbers.
    """
    if not any(groups):
        raise InputError(
            "the circuit has no edge that the embedding, a head or an MLP writes, so there is "
            "nothing to keep; use a smaller threshold"
        )
    start, target = prediction.isolate()
    position, length = int(target.positions[0]), start.tokens.shape[1]
    config = start.model.config
    writes = reference_writes(prediction, reference)
    circuits = [[edge for group in groups[:size] for edge in group] for size in sizes]
    counts = [len(row) for row in circuits]
    orders: dict[str, list[Site]] = {}
    if Baseline.EAP in options.baselines:
        orders["eap"] = gradient_order(start, target, writes, counts[-1])
    if Baseline.EAP_IG in options.baselines:
        orders["eap_ig"] = gradient_order(start, target, writes, counts[-1], options.steps)
    generator = seeded(options.seed)
    for draw in range(options.draws if Baseline.RANDOM in options.baselines else 0):
        orders[f"random {draw}"] = random_order(config, position, length, counts[-1], generator)
    rows = [order[:count] for order in orders.values() for count in counts]
    values = values_with_only(prediction, [[], *circuits, *rows], writes, progress=progress)
    empty, kept, others = values.split([1, len(circuits), len(rows)])
    columns = {
        "full": target.of_copies(start)[0],
        "empty": empty[0],
        "kept": kept,
        "without": values_without(prediction, circuits, writes, progress=progress),
        **dict(zip(orders, others.view(len(orders), len(sizes)), strict=True)),
    }
    if has_gates(config):
        columns["held"] = values_with_only(prediction, circuits, writes, progress, hold_mlps=True)
    return columns


def _point(
    columns: Mapping[str, Float[Tensor, "prompt *size"]], at: int, size: int
) -> FaithfulnessPoint:
    """One size, with intervals over prompts."""
    full, empty = columns["full"], columns["empty"]

    def share(name: str) -> Estimate | None:
        return ratio(columns[name][:, at] - empty, full - empty) if name in columns else None

    kept, random = ratio(columns["kept"][:, at] - empty, full - empty), None
    draws = [share(name) for name in columns if name.startswith("random")]
    if draws:
        null = torch.tensor([draw.value for draw in draws if draw is not None])
        deviation = float(null.std()) / math.sqrt(len(null)) if len(null) > 1 else None
        random = Estimate.around(float(null.mean()), deviation, len(null))
        p = (1 + int((null >= kept.value).sum())) / (1 + len(null))
        kept = replace(kept, null=random.value, p=p, draws=len(null))
    return FaithfulnessPoint(
        edges=size,
        value=mean_estimate(columns["kept"][:, at]),
        kept=kept,
        held=share("held"),
        damage=ratio(full - columns["without"][:, at], full - empty),
        random=random,
        eap=share("eap"),
        eap_ig=share("eap_ig"),
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


def check_range(full: float, empty: float, reference: str) -> None:
    """Raises InputError if the reference predicts about as much as the model."""
    least = LEAST_RANGE * max(abs(full), abs(empty))
    if not abs(full - empty) > least:
        raise InputError(
            f"the model predicts {full:+.4g} and the reference ({reference}) {empty:+.4g}: a "
            f"difference below {LEAST_RANGE:.0%} of the prediction is too small to divide by; "
            "choose another reference ('zero', or a prompt with another answer), or versus= a "
            "token that the reference does not predict"
        )
