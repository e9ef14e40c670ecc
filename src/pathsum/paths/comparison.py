"""Graphs compared: two edge by edge, and the predictions of several models on one text."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from rich.console import RenderableType

from pathsum.base import Column, Estimate, Record, Table, interval_columns, text_column
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
        for edge in self.edges:
            if edge.edge == name:
                return edge
        raise InputError(f"neither graph keeps the edge {name!r}; see .edges for those compared")

    @property
    def only_in_this(self) -> tuple[str, ...]:
        """Edges that the other circuit does not keep."""
        return tuple(edge.edge for edge in self.edges if edge.only_in == "this")

    @property
    def only_in_other(self) -> tuple[str, ...]:
        """Edges that this circuit does not keep."""
        return tuple(edge.edge for edge in self.edges if edge.only_in == "other")

    def to_table(self, rows: int = 30) -> Table:
        """One edge per row."""
        cells = tuple(
            (
                *(edge.edge, edge.here and edge.here.value, edge.there and edge.there.value),
                *edge.difference.with_interval,
                f"{edge.only_in} only" if edge.only_in else "both",
            )
            for edge in self.edges[:rows]
        )
        columns = (
            *(text_column("edge"), Column("this", "+.3f"), Column("other", "+.3f")),
            *interval_columns("difference", "+.3f"),
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
    first, second = ({edge.name: edge.estimate() for edge in g.edges} for g in (this, other))
    paired = (this.shares, other.shares) if this.is_mean and this.prompts == other.prompts else None
    zeros = [0.0] * len(this.prompts)
    edges: list[EdgeDiff] = []
    for edge in dict.fromkeys([*first, *second]):
        share, other_share = first.get(edge), second.get(edge)
        if paired is None:
            difference = _independent(share, other_share)
        else:
            a, b = (torch.tensor(x.get(edge, zeros), dtype=torch.float64) for x in paired)
            difference = mean_estimate(a - b)
        edges.append(EdgeDiff(edge, share, other_share, difference))
    edges.sort(key=lambda edge: -abs(edge.difference.value))
    names = [this.model, other.model]
    if one_prompt and names[0] == names[1]:
        names = [f"{graph.token_text!r} of {graph.model}" for graph in (this, other)]
    return GraphDiff(names[0], names[1], tuple(edges))


def _independent(share: Estimate | None, other: Estimate | None) -> Estimate:
    """The difference of two means of different prompts."""
    value = (0.0 if share is None else share.value) - (0.0 if other is None else other.value)
    errors = [estimate.stderr for estimate in (share, other) if estimate is not None]
    if None in errors:
        return Estimate(value)
    return Estimate.around(value, math.hypot(*filter(None, errors)))


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
        Each model's prediction, with its probability and the sentence of its circuit, and the
        probability of the last model's prediction if the vocabulary has it.

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
    tokenizer, last_tokenizer = trace.model.tokenizer, other.model.tokenizer
    if tokenizer is None or last_tokenizer is None:
        return None
    if tokenizer.to_json() != last_tokenizer.to_json():
        return None
    return float(trace.logits_at(graph.position)[0].softmax(-1)[last.token])
