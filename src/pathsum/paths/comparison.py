"""Predictions of several models on one text, each explained in one sentence."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from rich.console import RenderableType

from pathsum.base import Column, Record, Table, text_column
from pathsum.base.errors import InputError
from pathsum.base.options import checked
from pathsum.base.table import rows_table, stacked, token_column
from pathsum.paths.graph import Graph


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
