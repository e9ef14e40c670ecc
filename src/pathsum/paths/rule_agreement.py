"""Agreement of attribution rules for MLPs with interventions: shares against effects of cutting.

An edge into an MLP changes its neurons, value × gate, in two ways, and shares need a rule for both:

    gates held            the value moves, with the gate of the run
    values held           the gate moves along the secant from its input 0, with the run's value
    half of each          the mean of the two (as in LRP)
    integrated            slopes averaged between the reference and the run: exact for the MLP
    attribution patching  the gradient at the run, through the norm as well

A share is the difference between the writer's output and the reference's, times the slope of the
rule, times the gradient of the prediction at the MLP's output. An effect is the drop of the
prediction when this edge alone carries the reference and everything after it is recomputed.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pathsum.base import (
    Column,
    Estimate,
    Progress,
    Record,
    Source,
    Table,
    interval_columns,
    silent,
    text_column,
)
from pathsum.base.errors import InputError
from pathsum.base.estimate import student
from pathsum.base.options import checked, parse_count
from pathsum.base.site import Side
from pathsum.base.table import Cell
from pathsum.model import Model, Trace
from pathsum.model.folding import fold_read
from pathsum.model.gating import PerNeuron, mean_slopes, neurons_of
from pathsum.model.sequences import OneSequence
from pathsum.paths.component_edges import (
    ComponentGraph,
    ComponentRuns,
    EdgeScores,
    component_runs,
)
from pathsum.paths.cuts import cut_effects
from pathsum.paths.mlp_nodes import view_slope
from pathsum.paths.prompts import LAST, Prompt, as_pairs, name_prompt
from pathsum.paths.target import PredictionRun, TokenName, Versus

RULES = ("gates held", "values held", "half of each", "integrated", "attribution patching")
"""The rules, in the order of columns of the shares."""
# Fisher's z of 1 is infinite, so larger numbers are clamped to this one.
_LARGEST = 1 - 1e-6


@dataclass(frozen=True)
class Agreement:
    """The agreement of one rule with effects, in one layer or, for None, in all layers.

    `correlation` is Pearson's, over edges and prompts. `same_sign` is the share of edges, weighted
    by |effect|, whose share and effect have the same sign. Intervals are over prompts, or over
    templates if the prompts have several: by the jackknife, on the scale of Fisher's z.
    """

    rule: str
    layer: int | None
    edges: int
    correlation: Estimate
    same_sign: Estimate


@dataclass(frozen=True, eq=False)
class RuleAgreement(Record, kind="rule-agreement"):
    """How well shares of edges into MLPs agree with the effects of cutting them, by rule."""

    model: str
    prompts: int
    agreements: tuple[Agreement, ...]

    def __getitem__(self, rule: str) -> Agreement:
        """The agreement of a rule over all layers."""
        for agreement in self.agreements:
            if agreement.rule == rule and agreement.layer is None:
                return agreement
        raise InputError(f"there is no rule {rule!r}; the rules are {', '.join(RULES)}")

    def to_table(self) -> Table:
        """All layers together first, then layer by layer."""
        columns = (
            *(text_column("layer"), text_column("rule"), Column("edges")),
            *(*interval_columns("r", "+.3f"), *interval_columns("same sign", ".1%")),
        )
        rows: list[tuple[Cell, ...]] = [
            (
                *("all" if each.layer is None else str(each.layer), each.rule, each.edges),
                *(*each.correlation.with_interval, *each.same_sign.with_interval),
            )
            for each in self.agreements
        ]
        note = (
            "r: correlation of shares with effects of cutting edges into MLPs; same sign: |effect| "
            f"with a share of its sign; 95% intervals over {self.prompts} prompts or templates"
        )
        return Table(columns, tuple(rows), f"{self.model}: rules for MLPs and effects", note)


@checked
def rule_agreement(
    model: Model,
    text: Sequence[Prompt | OneSequence],
    *,
    k: int = 8,
    position: int | str = LAST,
    token: TokenName | None = None,
    versus: Versus = "mean",
    progress: Progress = silent,
) -> RuleAgreement:
    """Compare attribution rules for MLPs with the effects of cutting, on clean/corrupted pairs.

    In each prompt and layer, the `k` writers whose output differs most between the prompt and its
    corrupted partner are measured: their share of the MLP's contribution under every rule, and the
    effect of taking the edge from the corrupted prompt.

    Args:
        model: A model with MLPs.
        text: Prompts or texts, at least two. A prompt without a corrupted partner is paired with
            the next prompt of the same length.
        k: The number of writers per prompt and layer.
        position: The position of the predictions, if a prompt does not name it.
        token: The predicted token, if a prompt does not name it; by default the model's prediction.
        versus: The comparison, if a prompt does not name it, as in `trace.circuit`.
        progress: Called before each prompt.

    Returns:
        The agreement of each rule, over all layers and per layer.

    Example:
        >>> from pathsum.model import construct
        >>> pairs = [Prompt("a b", corrupted="c b"), Prompt("b c", corrupted="d c")]
        >>> agreement = rule_agreement(construct.memory(), pairs, token=None)
        >>> round(agreement["integrated"].correlation.value, 3)
        1.0

    Shares and effects are of single edges. A rule whose shares add up need not be correct; compare
    it with effects on each model and task.
    """
    parse_count(k, "writers")
    if model.config.mlp == "none":
        raise InputError(
            f"the model {model.name!r} has no MLPs, so there are no rules to compare; use a model "
            "with MLPs"
        )
    prompts = as_pairs(model, text)
    if len(prompts) < 2:
        raise InputError(f"{len(prompts)} prompts have no intervals; give at least two")
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    for number, prompt in enumerate(prompts):
        progress(number, len(prompts), "prompts")
        with name_prompt(number):
            runs = component_runs(model, prompt, position, token, versus)
        parts.append(_measure(runs, k))
    columns = (torch.stack(column) for column in zip(*parts, strict=True))
    templates = [prompt.template for prompt in prompts]
    groups = templates if len(set(templates)) > 1 else range(len(prompts))
    return RuleAgreement(model.name, len(prompts), _agreements(model, groups, *columns))


def _agreements(
    model: Model,
    groups: Sequence[object],
    layers: Int[Tensor, "prompt edge"],
    shares: Float[Tensor, "prompt edge rule"],
    effects: Float[Tensor, "prompt edge"],
) -> tuple[Agreement, ...]:
    """The agreement of each rule over all layers, then per layer; intervals are over groups."""
    # Each row leaves out one group, and the first row none.
    names = (None, *dict.fromkeys(groups))
    included = torch.tensor([[group != name for group in groups] for name in names])
    agreements: list[Agreement] = []
    for layer in (None, *range(model.config.n_layers)):
        inside = torch.ones_like(layers, dtype=torch.bool) if layer is None else layers == layer
        for rule, columns in zip(RULES, shares.unbind(-1), strict=True):
            agreements.append(_agreement(rule, layer, columns, effects, inside, included))
    return tuple(agreements)


def _measure(
    runs: ComponentRuns, k: int
) -> tuple[Int[Tensor, " edge"], Float[Tensor, "edge rule"], Float[Tensor, " edge"]]:
    """Layers, shares and effects of the edges of one prompt."""
    shares = torch.stack(list(rule_shares(runs).values()), -1)
    graph, sizes = runs.graph, (runs.outputs - runs.reference).flatten(1).norm(dim=1)
    entries: list[tuple[int, int]] = []
    layers: list[int] = []
    for reader, layer in _mlp_readers(graph):
        count = graph.count_writers(graph.readers[reader])
        largest = sizes[:count].topk(min(k, count)).indices.sort().values.tolist()
        entries += [(reader, writer) for writer in largest]
        layers += [layer] * len(largest)
    rows, columns = torch.tensor(entries).T
    prediction = PredictionRun(runs.trace, runs.target)
    effects = cut_effects(prediction, [[graph.edge(*entry)] for entry in entries], runs.other)
    measured = shares[rows, columns].double().cpu()
    return torch.tensor(layers), measured, torch.tensor(effects, dtype=torch.float64)


def _mlp_readers(graph: ComponentGraph) -> Iterator[tuple[int, int]]:
    """The number and the layer of each reader that is an MLP."""
    for number, reader in enumerate(graph.readers):
        if graph.into_mlps[number]:
            assert isinstance(reader.reader, Source)
            yield number, reader.reader.layer


def rule_shares(runs: ComponentRuns) -> dict[str, EdgeScores]:
    """The share of every edge into an MLP under each rule; 0 for all other edges."""
    graph, config = runs.graph, runs.graph.config
    gradients, change = runs.gradients(), runs.outputs - runs.reference
    matrices = {rule: torch.zeros_like(graph.exists, dtype=change.dtype) for rule in RULES}
    for reader, layer in _mlp_readers(graph):
        readers = graph.exists[:, graph.writers.index(Source("mlp", layer))]
        at_output = gradients[readers.to(gradients.device)].sum(0)
        here, there = (neurons_of(run, layer) for run in (runs.trace, runs.other))
        slope_u, slope_g = (view_slope(config, here, side) for side in (Side.U, Side.G))
        at_u, at_g = _gradients_at_stream(runs.trace, layer, at_output, slope_u, slope_g)
        mean_u, mean_g = _gradients_at_stream(
            runs.trace, layer, at_output, *mean_slopes(config, there, here)
        )
        directions = (at_u, at_g, (at_u + at_g) / 2, mean_u + mean_g, gradients[reader])
        width = graph.count_writers(graph.readers[reader])
        for rule, direction in zip(RULES, directions, strict=True):
            matrices[rule][reader, :width] = (change[:width] * direction).sum((1, 2))
    return matrices


def _gradients_at_stream(
    trace: Trace,
    layer: int,
    at_output: Float[Tensor, "pos d"],
    by_value: PerNeuron,
    by_gate: PerNeuron,
) -> tuple[Float[Tensor, "pos d"], Float[Tensor, "pos d"]]:
    """Gradients at an MLP's stream through slopes of values and of gates, its scale held."""
    raw, norm = trace.weights.layers[layer], trace.model.config.norm
    assert raw.W_in is not None
    assert raw.W_out is not None
    at_neurons = at_output @ raw.W_out.T * trace.scales.mlp[layer][0, :, None]
    W_gate = raw.W_in if raw.W_gate is None else raw.W_gate
    return (
        (at_neurons * by_value[0]) @ fold_read(norm, raw.W_in, raw.ln2_w).T,
        (at_neurons * by_gate[0]) @ fold_read(norm, W_gate, raw.ln2_w).T,
    )


def _agreement(
    rule: str,
    layer: int | None,
    shares: Float[Tensor, "prompt edge"],
    effects: Float[Tensor, "prompt edge"],
    inside: Tensor,
    included: Bool[Tensor, "group prompt"],
) -> Agreement:
    x, y = shares.where(inside, 0.0), effects.where(inside, 0.0)
    agree = y.abs() * (x.sign() == y.sign())
    columns = (inside.double(), x, y, x * x, y * y, x * y, agree, y.abs())
    table = included.double() @ torch.stack([column.sum(1) for column in columns], -1)
    correlation = _with_interval(_correlation(table), -1.0)
    sign = _with_interval(table[:, 6] / table[:, 7].clamp(min=1e-300), 0.0)
    return Agreement(rule, layer, int(inside.sum()), correlation, sign)


def _correlation(sums: Float[Tensor, "row sum"]) -> Float[Tensor, " row"]:
    n, x, y, xx, yy, xy, _, _ = sums.unbind(-1)
    covariance = xy - x * y / n
    spread = (xx - x * x / n).clamp(min=0) * (yy - y * y / n).clamp(min=0)
    return torch.where(spread > 0, covariance / spread.clamp(min=1e-300).sqrt(), 0.0)


def _with_interval(values: Float[Tensor, " group"], least: float) -> Estimate:
    """A number from `least` to 1, from its value on all prompts and without each group of them."""
    half, groups = (1 - least) / 2, len(values) - 1

    def spread(x: Tensor) -> float:
        return math.sqrt((groups - 1) * float(x[1:].var(correction=0)))

    z = ((values - 1) / half + 1).clamp(-_LARGEST, _LARGEST).atanh()
    width = student(groups - 1) * spread(z)
    low, high = (1 + half * (math.tanh(float(z[0]) + side) - 1) for side in (-width, width))
    return Estimate(float(values[0]), spread(values), low, high)
