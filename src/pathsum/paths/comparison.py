"""Graphs compared: two edge by edge, and the predictions of several models on one text."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from rich.console import RenderableType

from pathsum.base import Column, Estimate, Record, Table, text_column
from pathsum.base.errors import InputError
from pathsum.base.estimate import mean_estimate
from pathsum.base.options import checked
from pathsum.base.table import rows_table, stacked, token_column
from pathsum.paths.graph import Graph


@dataclass(frozen=True)
class EdgeDiff:
    """An edge of either graph: its shares, and the first minus the second.

    A share is None in the graph that does not keep the edge, and counts as 0 in the difference.
    """

    edge: str
    here: Estimate | None
    there: Estimate | None
    difference: Estimate

    @property
    def only_in(self) -> Literal["this", "other"] | None:
        """The graph that contains the edge, if only one does."""
        if self.here is None:
            return "other"
        return "this" if self.there is None else None


@dataclass(frozen=True, eq=False)
class GraphDiff(Record, kind="circuit-diff"):
    """Two graphs compared over the edges of either, the largest difference first."""

    this: str
    other: str
    edges: tuple[EdgeDiff, ...]

    def __getitem__(self, name: str) -> EdgeDiff:
        for found in self.edges:
            if found.edge == name:
                return found
        raise InputError(f"neither graph keeps the edge {name!r}; see .edges for those compared")

    @property
    def only_in_this(self) -> tuple[str, ...]:
        """Edges that the other circuit does not keep."""
        return tuple(found.edge for found in self.edges if found.only_in == "this")

    @property
    def only_in_other(self) -> tuple[str, ...]:
        """Edges that this circuit does not keep."""
        return tuple(found.edge for found in self.edges if found.only_in == "other")

    def to_table(self, rows: int = 30) -> Table:
        """One edge per row."""
        cells = tuple(
            (
                *(found.edge, found.here and found.here.value, found.there and found.there.value),
                *found.difference.with_interval,
                f"{found.only_in} only" if found.only_in else "both",
            )
            for found in self.edges[:rows]
        )
        columns = (
            *(text_column("edge"), Column("this", "+.3f"), Column("other", "+.3f")),
            *(Column("difference", "+.3f"), Column("low", "+.3f"), Column("high", "+.3f")),
            text_column("kept by"),
        )
        note = (
            f"shares in logits; {len(self.only_in_this)} edges in this circuit only, "
            f"{len(self.only_in_other)} in the other only, of {len(self.edges)}; –: below the "
            "threshold there"
        )
        return Table(columns, cells, f"{self.this} minus {self.other}", note)


def diff_graphs(this: Graph, other: Graph) -> GraphDiff:
    """The difference over the edges of either graph."""
    one_prompt = not (this.is_mean or other.is_mean)
    if one_prompt and len(this.tokens) != len(other.tokens):
        raise InputError(
            f"the circuits explain predictions after {len(this.tokens)} and "
            f"{len(other.tokens)} tokens, whose positions do not correspond; use prompts of "
            "one length, or mean_circuit, where positions correspond by name"
        )
    here, there = ({edge.name: edge.estimate() for edge in one.edges} for one in (this, other))
    paired = None
    if this.is_mean and this.prompts == other.prompts:
        paired = this.shares, other.shares
    none = [0.0] * len(this.prompts)
    found: list[EdgeDiff] = []
    for edge in dict.fromkeys([*here, *there]):
        mine, theirs = here.get(edge), there.get(edge)
        if paired is None:
            difference = _independent(mine, theirs)
        else:
            one, two = (torch.tensor(each.get(edge, none), dtype=torch.float64) for each in paired)
            difference = mean_estimate(one - two)
        found.append(EdgeDiff(edge, mine, theirs, difference))
    found.sort(key=lambda edge: -abs(edge.difference.value))
    names = [this.model, other.model]
    if one_prompt and names[0] == names[1]:
        names = [f"{one.token_text!r} of {one.model}" for one in (this, other)]
    return GraphDiff(names[0], names[1], tuple(found))


def _independent(mine: Estimate | None, theirs: Estimate | None) -> Estimate:
    """The difference of two means of different prompts."""
    known = [one for one in (mine, theirs) if one is not None]
    value = (0.0 if mine is None else mine.value) - (0.0 if theirs is None else theirs.value)
    errors = [one.stderr for one in known if one.stderr is not None]
    if len(errors) < len(known):
        return Estimate(value)
    return Estimate.around(value, math.hypot(*errors))


@dataclass(frozen=True)
class ModelPrediction:
    """A model's prediction, and its probability for the last model's prediction."""

    model: Annotated[str, text_column("model")]
    token: Annotated[str, token_column("predicts")]
    probability: Annotated[float, Column("probability", ".1%")]
    expected: Annotated[float | None, Column("last", ".1%")]
    sentence: str


@dataclass(frozen=True, eq=False)
class PredictionComparison(Record, kind="prediction-comparison"):
    """The predictions of several models on one text."""

    predictions: tuple[ModelPrediction, ...]

    def to_table(self) -> Table:
        """One row per model."""
        table = rows_table(self.predictions, "one text, several models")
        name = f"P({self.predictions[-1].token})"
        columns = [
            replace(each, name=name) if each.name == "last" else each for each in table.columns
        ]
        return replace(table, columns=tuple(columns))

    def __rich__(self) -> RenderableType:
        sentences = [f"{each.model}: {each.sentence}" for each in self.predictions]
        return stacked(self.to_table(), *sentences)


@checked
def compare_predictions(graphs: Sequence[Graph]) -> PredictionComparison:
    """The predictions behind circuits of several models on one text, side by side.

    Args:
        graphs: One circuit per model, from `model.trace(text).circuit()`.

    Returns:
        Each model's prediction, with its probability and the sentence of its circuit. For models
        whose vocabulary has the last model's prediction, also the probability of that.

    Example:
        >>> import pathsum as ps
        >>> by_k, by_q = ps.construct.induction(), ps.construct.induction_by_q()
        >>> circuits = [model.trace("a b c a").circuit() for model in (by_k, by_q)]
        >>> [each.token for each in compare_predictions(circuits).predictions]
        ['b', 'b']
    """
    if not graphs:
        raise InputError("there are no circuits to compare; give one per model")
    rows = tuple(
        ModelPrediction(
            graph.model,
            graph.token_text,
            graph.probability,
            _probability(graph, graphs[-1]),
            graph.sentence,
        )
        for graph in graphs
    )
    return PredictionComparison(rows)


def _probability(graph: Graph, last: Graph) -> float | None:
    """The probability of another graph's token, if both models have the same tokenizer."""
    trace, other = graph.prediction.trace, last.prediction.trace
    one, two = trace.model.tokenizer, other.model.tokenizer
    if one is None or two is None or one.to_json() != two.to_json():
        return None
    return float(trace.logits_at(graph.position)[0].softmax(-1)[last.token])
