"""Scores of OV and QK circuits: copying and deleting, from data and from weights, and matching.

Scores from weights are Σλ / Σ|λ| over the eigenvalues λ of a circuit. Their null is the head with
its reads and writes rotated at random, which makes λ as likely as −λ, so the threshold is 0.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from typing import TypeAlias, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.algebra import Factored
from pathsum.algebra.rotations import (
    DRAWS,
    permuted_cores,
    rotated_cores,
    sequential_p,
    significant_values,
)
from pathsum.algebra.spectrum import positivity, remove_mean
from pathsum.base import Progress, silent
from pathsum.circuits import matching
from pathsum.circuits.copying import CopyingNull, eigenvalues_above_noise
from pathsum.heads.score import (
    DataScore,
    HeadScore,
    HeadScores,
    LayerView,
    Score,
    against_rotations,
    score_info,
)
from pathsum.model import HeadId, Model, Path
from pathsum.model.folding import value_reads
from pathsum.model.processes import shared_map

T = TypeVar("T")


def score_layers(
    model: Model, compute: Callable[[int], Sequence[T]], progress: Progress, what: str
) -> dict[HeadId, T]:
    """Scores of every head; `compute` scores the heads of one layer, and layers run in threads."""
    scores = shared_map(range(model.config.n_layers), compute, progress, what)
    by_head = chain.from_iterable(scores)
    return {head.id: score for head, score in zip(model.heads, by_head, strict=True)}


def _copying(view: LayerView) -> Float[Tensor, "sequence head 1"]:
    """The share of each token of the first copy in the logits that attending to it raises."""
    block = slice(view.probe.first, view.probe.first + view.probe.length)
    raised = view.ov.logits(view.values[:, :, block], view.probe.tokens[:, block]).clamp_min(0)
    own_logits = raised.diagonal(dim1=-2, dim2=-1)
    return (own_logits / raised.sum(-1).clamp_min(1e-30)).mean(-1, keepdim=True)


COPYING_BY_DATA = DataScore(score_info("copying"), _copying, of_ov=True, of_tokens_out=True)


def _copying_by_weights(
    model: Model, draws: int, seed: int, progress: Progress
) -> dict[HeadId, Score]:
    null = CopyingNull(model, draws=max(draws, DRAWS), seed=seed)
    for layer in range(model.config.n_layers):
        progress(layer, model.config.n_layers, "null of copying")
        null.cores(Path("embed", [(layer, 0)]))  # shared by the layers, which run in threads

    def layer_scores(layer: int) -> list[Score]:
        return against_rotations(*null.layer(layer), null.draws)

    return score_layers(model, layer_scores, progress, "copying")


def _deleting(view: LayerView) -> Float[Tensor, "sequence head 1"]:
    """The share of the stream that a head subtracts at each position; 1 removes all of it."""
    size = view.stream.square().sum(-1).clamp_min(1e-30)
    overlap = view.ov.overlaps(view.pattern @ view.values, view.stream)
    return (-overlap / size[:, None])[..., 1:].mean(-1, keepdim=True)


DELETING = DataScore(replace(score_info("deleting"), ceiling=None), _deleting, of_ov=True)


def _deleting_by_weights(
    model: Model, draws: int, seed: int, progress: Progress
) -> dict[HeadId, Score]:
    config, centered = model.config, model.config.norm == "layer"
    d = config.d_model - centered
    r = min(config.d_head, d)
    progress(0, config.n_layers, "null of deleting")
    cores = rotated_cores([torch.ones(d)], d, r, draws=draws, seed=seed)

    def layer_scores(layer: int) -> list[Score]:
        W_V = value_reads(model.weights, layer)
        W_O = remove_mean(model.weights.attention[layer].W_O, centered)
        size = W_O.norm(dim=(1, 2)) * W_V.norm(dim=(1, 2))
        values = -positivity(eigenvalues_above_noise(W_O @ W_V, size)).cpu()
        ov = Factored(W_V, W_O)
        spectra = significant_values(ov)
        p = sequential_p(values, cores, [spectra])
        for head in p.isfinite().nonzero()[:, 0].tolist():
            at, permuted = slice(head, head + 1), permuted_cores(ov[head], draws=draws, seed=seed)
            p[at] = torch.maximum(p[at], sequential_p(values[at], [permuted], [spectra[at]]))
        return against_rotations(values, p, draws)

    return score_layers(model, layer_scores, progress, "deleting")


def _matching_scores(
    model: Model,
    layers: Sequence[tuple[int, HeadId | None]],
    draws: int,
    seed: int,
    progress: Progress,
    what: str,
) -> dict[HeadId, Score]:
    """Σλ / Σ|λ| of each QK of layers, through a writer or not, against random rotations."""

    @cache
    def product(keys: int, queries: int) -> Float[Tensor, "d d"]:
        return matching.embedding_product(model, keys, queries)

    @cache
    def cores(writer: HeadId | None, depth: tuple[int, int]) -> list[Float[Tensor, "half r r"]]:
        return matching.matching_cores(model, writer, product(*depth), draws=draws, seed=seed)

    def depth_of(layer: int, writer: HeadId | None) -> tuple[int, int]:
        # Layer 0 reads normalized embeddings; all deeper layers read the same unscaled ones.
        return min(1, layer if writer is None else writer.layer), min(1, layer)

    for number, (layer, writer) in enumerate(layers):
        progress(number, len(layers), f"null of {what}")
        cores(writer, depth_of(layer, writer))  # shared by the layers, which run in threads

    def layer_scores(through: tuple[int, HeadId | None]) -> dict[HeadId, Score]:
        (layer, writer), depth = through, depth_of(*through)
        readers = model.config.heads_of(layer)
        eigenvalues = matching.matching_spectra(model, readers, writer, product(*depth))
        values = positivity(eigenvalues).cpu()
        spectra = torch.stack([matching.qk_values(model.head(reader)) for reader in readers])
        p = sequential_p(values, cores(writer, depth), [spectra])
        return dict(zip(readers, against_rotations(values, p, draws, writer), strict=True))

    by_layer = shared_map(layers, layer_scores, progress, what)
    return {head: score for of_layer in by_layer for head, score in of_layer.items()}


def _matching_by_weights(
    model: Model, draws: int, seed: int, progress: Progress
) -> dict[HeadId, Score]:
    layers = [(layer, None) for layer in range(model.config.n_layers)]
    return _matching_scores(model, layers, draws, seed, progress, "matching")


MeasureWeights: TypeAlias = Callable[[Model, int, int, Progress], Mapping[HeadId, Score]]
"""Scores every head of a model from its weights; arguments: an even number of draws, a seed."""
WEIGHT_SCORES: dict[HeadScore, MeasureWeights] = {
    HeadScore(score_info("copying_weights"), of_ov=True, of_tokens_out=True): _copying_by_weights,
    HeadScore(score_info("matching_weights")): _matching_by_weights,
    HeadScore(score_info("deleting_weights"), of_ov=True): _deleting_by_weights,
}
"""Scores from weights alone that every model has."""


def score_by_weights(
    model: Model, names: Collection[str], draws: int, seed: int, progress: Progress
) -> HeadScores:
    """Scores from weights alone of every head."""
    result: dict[HeadId, dict[str, Score]] = {head.id: {} for head in model.heads}
    even = draws + draws % 2  # each rotation counts with its negative
    for score, measure in WEIGHT_SCORES.items():
        if score.name in names:
            for head, value in measure(model, even, seed, progress).items():
                result[head][score.name] = value
    return HeadScores(result, {})


MATCHING_THROUGH_PREVIOUS = HeadScore(score_info("matching_through_previous"))


@dataclass(frozen=True)
class MatchingScores:
    """The scores by head, or the reason in `absent` why there is none."""

    scores: dict[HeadId, Score]
    absent: str = ""


def through_previous(
    model: Model,
    previous: Mapping[HeadId, float],
    seed: int = 0,
    progress: Progress = silent,
) -> MatchingScores:
    """Matching of tokens through the best previous-token head below each head.

    The vertical axis of the paper's induction scatter. `previous` maps previous-token heads to
    their scores; the best head below a layer has the largest. Layers without a previous-token head
    below have no such score. The cost is one product of embeddings per depth of such a head, and
    d_head × d_head products per draw.
    """
    if model.config.n_layers == 1:
        return MatchingScores({}, "one layer of heads has no layer below it to read")
    if not previous:
        return MatchingScores({}, "no head is a previous-token head, so there is none to read")
    through: list[tuple[int, HeadId]] = []
    for layer in range(1, model.config.n_layers):
        below = [head for head in previous if head.layer < layer]
        through += [(layer, max(below, key=lambda head: previous[head]))] if below else []
    what = "matching through previous-token heads"
    scores = _matching_scores(model, through, DRAWS, seed, progress, what)
    return MatchingScores(scores, "" if scores else "no head is above a previous-token head")
