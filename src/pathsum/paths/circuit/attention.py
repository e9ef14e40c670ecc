"""Where the nodes of a head look and why: scores, what these are worth, and who wrote them."""

from collections.abc import Iterator
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from pathsum.model import HeadId
from pathsum.paths.circuit.circuit import Attended
from pathsum.paths.circuit.frozen_row import FrozenRow, Inputs
from pathsum.paths.circuit.score_weights import ScoreWeightRows, weights_of_rows


class Attention:
    """The attention of one head at some positions.

    `values` is what moving each source would be worth, in logits, and `rival` the position whose
    score others are compared with, if one was chosen. Numbers per node and source are kept in numpy
    and double precision: its operations on a few hundred numbers take a tenth of the time.
    """

    def __init__(
        self,
        run: FrozenRow,
        head: HeadId,
        places: Int[Tensor, " node"],
        values: Float[Tensor, "node src"],
        rival: int | None,
    ) -> None:
        self.run, self.head, self.places, self.rival = run, head, places, rival
        self.values = _numbers(values)
        config, self.dtype = run.trace.model.config, values.dtype
        window, sinks = config.window(head.layer), run.trace.weights.layers[head.layer].sinks
        behind = _numbers(places)[:, None] - np.arange(values.shape[1])
        self.seen = (behind >= 0) & (True if window is None else behind < window)
        self.sink = None if sinks is None else float(sinks[head.head])
        self.queries = run.queries(head, places)
        self.scores = _numbers(self.queries @ run.keys(head, values.shape[1]).T)
        pattern = run.trace.patterns[head.layer][run.row, head.head, places, : values.shape[1]]
        self.pattern = _numbers(pattern)

    @cached_property
    def worth(self) -> ScoreWeightRows:
        """What each score is worth."""
        cap = self.run.trace.model.config.score_cap
        return weights_of_rows(self.scores, self.values, self.seen, cap, self.sink)

    @property
    def sink_shares(self) -> NDArray[np.float64]:
        """What the sink's logit is worth to each node."""
        return self.worth.sink

    @cached_property
    def sources(self) -> NDArray[np.intp]:
        """The source of each node whose attention matters most."""
        mean = np.where(self.seen, self.values, 0.0).sum(-1) / self.seen.sum(-1)
        matter = np.abs(self.pattern * (self.values - mean[:, None]))
        return np.where(self.seen, matter, -1.0).argmax(-1)

    @cached_property
    def rivals(self) -> NDArray[np.bool_]:
        """The nodes that compare their source with the rival: it is another one that they see."""
        if self.rival is None or self.rival >= self.seen.shape[1]:
            return np.zeros(len(self.seen), dtype=np.bool_)
        return self.seen[:, self.rival] & (self.sources != self.rival)

    @cached_property
    def contrast(self) -> NDArray[np.float64]:
        """Coefficients of a score minus the others: a rival's, or their weighted mean."""
        rows = np.arange(len(self.sources))
        others = np.where(self.seen, self.pattern, 0.0)
        others[rows, self.sources] = 0
        # Attention that is all on one source leaves no weights for the others: take their plain
        # mean.
        none = others.sum(-1) == 0
        others[none] = self.seen[none]
        others[rows, self.sources] = 0
        if self.rivals.any():
            others[self.rivals] = 0
            others[self.rivals, self.rival] = 1
        total = others.sum(-1, keepdims=True)
        contrast = -np.divide(others, total, out=np.zeros_like(others), where=total > 0)
        contrast[rows, self.sources] = 1
        return contrast

    @property
    def is_alone(self) -> NDArray[np.bool_]:
        """The nodes that see one source only."""
        return (self.seen.sum(-1) == 1) & (self.sink is None)

    @cached_property
    def is_uniform(self) -> NDArray[np.bool_]:
        """The nodes whose scores are equal up to rounding."""
        if self.sink is not None:
            return np.zeros(len(self.seen), dtype=np.bool_)
        high = np.where(self.seen, self.scores, -np.inf).max(-1)
        low = np.where(self.seen, self.scores, np.inf).min(-1)
        size = np.maximum(1.0, np.maximum(np.abs(low), np.abs(high)))
        return high - low <= 16 * torch.finfo(self.dtype).eps * size

    def explained(self, floor: float) -> list[int]:
        """The nodes whose scores are taken apart: where they look matters enough."""
        enough = np.abs(self.worth.effect) >= floor
        return np.nonzero(enough & ~self.is_alone & ~self.is_uniform)[0].tolist()

    def described(self, floor: float) -> Iterator[tuple[Attended | None, str]]:
        """Where each node looks, and why its scores are not taken apart, if they are not."""
        scores = (self.contrast * np.where(self.seen, self.scores, 0.0)).sum(-1)
        for node, source in enumerate(self.sources.tolist()):
            if self.is_alone[node]:
                yield None, "there is nothing else to attend to"
                continue
            attended = Attended(
                source=source,
                weight=float(self.pattern[node, source]),
                score=float(self.scores[node, source]),
                contrast=float(scores[node]),
                rival=self.rival if self.rivals[node] else None,
                uniform=float(self.worth.uniform[node]),
                effect=float(self.worth.effect[node]),
                error=float(self.worth.error[node]),
            )
            if self.is_uniform[node]:
                count = int(self.seen[node].sum())
                yield (
                    attended,
                    (f"it attends to all {count} sources equally, so no scores need explaining"),
                )
            elif abs(attended.effect) < floor:
                yield attended, "where it looks matters too little to take its scores apart"
            else:
                yield attended, ""

    def inputs(self, nodes: list[int]) -> Iterator[Inputs]:
        """Who wrote the keys and the queries of some nodes."""
        if not nodes:
            return
        weights, contrast = (
            torch.from_numpy(each[nodes]).to(self.queries)
            for each in (self.worth.weights, self.contrast)
        )
        yield self.run.key_inputs(self.head, self.queries[nodes], weights, contrast)
        yield self.run.query_inputs(self.head, self.places[nodes], weights, contrast)


def _numbers(given: Tensor) -> NDArray[np.float64]:
    return given.detach().double().cpu().numpy()
