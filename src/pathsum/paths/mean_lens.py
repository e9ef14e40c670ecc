"""The mean lens: the held map from each layer to the logits, averaged over positions of a text.

At one position of a run, with patterns, gates and scales held, the stream x before layer l
contributes x M_l to the final read (`pathsum.paths.lens`). The mean of M_l over many positions is
one matrix per layer. Like a Jacobian lens, x mean(M_l) W_U is the average effect of x on the
prediction, for the stream of any run. A mean of sums is a sum of means, so the parts by order, head
and MLP add up.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.algebra.spectrum import remove_mean
from pathsum.base import (
    Estimate,
    Progress,
    Record,
    Table,
    interval_columns,
    silent,
    text_column,
)
from pathsum.base.errors import InputError
from pathsum.base.estimate import mean_estimate
from pathsum.base.options import checked, parse_count, parse_position
from pathsum.base.table import rows_table
from pathsum.model import Model, Trace
from pathsum.model.folding import apply_unembedding, logit_bias
from pathsum.model.reference import reference_text
from pathsum.model.sequences import TextOrTokens
from pathsum.paths.lens import HeldPositions, LensParts, check_layer, split_held
from pathsum.paths.target import TokenName, find_target

POSITIONS = 64


@dataclass(frozen=True)
class LayerAgreement:
    """How often the top token of a lens is the model's prediction, with 95% intervals.

    Shares of the positions of a text after the first, for the logit lens and for the mean lens.
    """

    stream: Annotated[str, text_column("stream")]
    direct: Annotated[Estimate, *interval_columns("direct", ".1%")]
    mean: Annotated[Estimate, *interval_columns("mean", ".1%")]


@dataclass(frozen=True, eq=False)
class MeanLens(Record, kind="mean-lens"):
    """The mean held map of every layer, and how often its readout is the model's prediction.

    `maps[l]` maps the stream before layer l to the final read, before gain and W_U. `positions` is
    the number of averaged positions; `layers` are measured on the other half of the text.
    """

    model: str
    positions: int
    layers: tuple[LayerAgreement, ...]
    text: str
    _held: HeldPositions
    _maps: Float[Tensor, "layer d d"]

    @property
    def maps(self) -> Float[Tensor, "layer d d"]:
        """The mean map of each layer, x ↦ x M (not in JSON)."""
        return self._maps

    @torch.no_grad()
    def logits(self, trace: Trace, layer: int) -> Float[Tensor, "batch pos vocab"]:
        """Logits of a run's stream before a layer under the mean map, relative to their mean."""
        check_layer(layer, len(self._maps) - 1)
        return _read(trace, trace.streams[layer] @ self._maps[layer].to(trace.streams[layer]))

    @torch.no_grad()
    def parts(
        self, trace: Trace, layer: int, position: int = -1, token: TokenName | None = None
    ) -> LensParts:
        """The mean lens of a token at a position, by order and by the path's last component."""
        check_layer(layer, len(self._maps) - 1)
        if len(trace.tokens) != 1:
            raise InputError(f"the run has {len(trace.tokens)} sequences; give a run of one")
        position = parse_position(position, trace.tokens.shape[1], of="the text")
        target = find_target(trace, position, token, "mean")
        stream = trace.streams[layer][:, position : position + 1].expand(self.positions, -1, -1)
        return split_held(self._held, layer, stream, target, trace.model)

    def to_table(self) -> Table:
        """One row per layer."""
        note = (
            "share of tokens where the top token is the model's prediction; direct: the logit "
            f"lens; mean: the held map averaged over {self.positions} positions; {self.text}"
        )
        return rows_table(self.layers, f"{self.model}: mean lens", note, LayerAgreement)


@torch.no_grad()
@checked
def mean_lens(
    model: Model,
    text: TextOrTokens | None = None,
    *,
    positions: int = POSITIONS,
    progress: Progress = silent,
) -> MeanLens:
    """The held map of every layer, averaged over positions of a text.

    Args:
        model: The model.
        text: By default the model's held-out text, or a short neutral text. Maps are averaged over
            evenly spaced positions of the first half of its sequences and tested on the second
            half; a single sequence is used for both.
        positions: The number of positions to average over.
        progress: Called before each layer.

    Returns:
        The maps, with the share of positions at which their readout is the model's prediction.

    Example:
        >>> from pathsum.model import construct
        >>> result = mean_lens(construct.induction(), ["a b c a b c", "b c d b c d"])
        >>> result.maps.shape[0], result.layers[-1].mean.value
        (3, 1.0)

    The maps take d_model² numbers per layer and position while they are computed. They exclude
    attention to other positions, so a prediction from another position appears only after the head
    that moves it.
    """
    parse_count(positions, "positions")
    reference = reference_text(model, text)
    rows = [row[None] for batch in reference.batches for row in batch]
    half = max(1, len(rows) // 2)
    held = _held_positions(model, rows[:half], positions)
    maps = _mean_maps(held, progress)
    return MeanLens(
        model=model.name,
        positions=len(held.final_scale),
        layers=_agreement(model, rows[half:] or rows, maps),
        text=reference.tokens,
        _held=held,
        _maps=maps,
    )


def _held_positions(model: Model, rows: list[Int[Tensor, "1 _"]], count: int) -> HeldPositions:
    """Evenly spaced positions of a text, at most `count`."""
    positions = [(number, at) for number, row in enumerate(rows) for at in range(1, row.shape[1])]
    step = max(1, len(positions) // count)
    by_row: dict[int, list[int]] = {}
    for number, at in positions[::step][:count]:
        by_row.setdefault(number, []).append(at)
    parts = [HeldPositions.of(model.trace(rows[number]), at) for number, at in by_row.items()]
    # A run of one token, for the weights of layers: the others need not stay in memory.
    small = HeldPositions.of(model.trace(rows[0][:, :1]), [0])
    return HeldPositions.concat(parts, small.frozen)


def _mean_maps(held: HeldPositions, progress: Progress) -> Float[Tensor, "layer d d"]:
    """The mean of M_l over the positions, for l from 0 to the number of layers."""
    n_layers, d = held.n_layers, held.frozen.run.weights.config.d_model
    # Gradients at the stream of each coordinate of the final read, [d, position, 1, d].
    unit = torch.eye(d, dtype=held.final_scale.dtype, device=held.final_scale.device)
    gradients = unit[:, None, None] * held.final_scale[:, None, None]
    maps = [gradients.mean((1, 2)).T]
    for index in reversed(range(n_layers)):
        progress(n_layers - 1 - index, n_layers, "carrying the lens down")
        layer, mlp = held.layer(index), held.mlp(index)
        at_mlp = 0 if mlp is None else mlp.adjoint(gradients)
        at_heads = layer.adjoint(gradients if held.parallel else gradients + at_mlp)
        gradients = gradients + at_mlp + at_heads
        maps.append(gradients.mean((1, 2)).T)
    return torch.stack(maps[::-1])


def _read(trace: Trace, final: Float[Tensor, "batch pos d"]) -> Float[Tensor, "batch pos vocab"]:
    """Logits of vectors at the final read, relative to their mean."""
    return remove_mean(apply_unembedding(trace.weights, final) + logit_bias(trace.weights))


def _agreement(
    model: Model, rows: list[Int[Tensor, "1 _"]], maps: Float[Tensor, "layer d d"]
) -> tuple[LayerAgreement, ...]:
    """The share of positions of each layer at which each lens reads the model's prediction."""
    shares = torch.zeros(len(maps), 2, len(rows), dtype=torch.float64)
    for number, row in enumerate(rows):
        trace = model.trace(row)
        predictions = trace.logits[:, 1:].argmax(-1)
        for layer, (stream, matrix) in enumerate(zip(trace.streams, maps, strict=True)):
            finals = stream * trace.scales.final[..., None], stream @ matrix
            for lens, final in enumerate(finals):
                agrees = _read(trace, final)[:, 1:].argmax(-1) == predictions
                shares[layer, lens, number] = agrees.double().mean()
    return tuple(
        LayerAgreement(f"residual{layer}", mean_estimate(direct), mean_estimate(mean))
        for layer, (direct, mean) in enumerate(shares)
    )
