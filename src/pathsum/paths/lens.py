"""Lens: the residual stream at each position decoded into logits, layer by layer.

Two readouts of the stream x before layer l at position p:

    direct   x s W_U, with the scale of the run's final read: the logit lens, which is the sum over
             all paths of order 0
    held     x M, where M is the product of all layers above at position p, with patterns,
             normalization scales and gates held. Each head is weighted by A[p, p], its attention
             from the position to itself. The direct readout is the part of order 0.

The bias of the logits is added to both, so at the last layer both are the model's logits. Neither
contains what other positions send to p above layer l. `Lens.parts` splits one readout by order and
by the last head or MLP of the path; each split adds up to the held lens.
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace

import torch
from jaxtyping import Float, Int
from rich.console import RenderableType
from torch import Tensor

from pathsum.algebra.spectrum import remove_mean
from pathsum.base import Column, HeadId, Record, Source, Table, stacked, text_column, token_column
from pathsum.base.errors import InputError
from pathsum.base.options import parse_position
from pathsum.model import Model, Trace
from pathsum.model.folding import apply_unembedding, logit_bias
from pathsum.paths.breakdown import Breakdown, Name
from pathsum.paths.frozen import Frozen, FrozenLayer, FrozenMlp, Gates
from pathsum.paths.order_sweep import MlpStep, UpSweep
from pathsum.paths.path_sum import check_gates_follow
from pathsum.paths.target import Target, TokenName, find_target


@dataclass(frozen=True)
class Readout:
    """A lens at one layer and position: its top token, and the logit of the model's prediction.

    Logits are relative to the mean over the vocabulary.
    """

    token: str
    logit: float
    prediction: float


@dataclass(frozen=True, eq=False)
class LensParts(Record, kind="lens-parts"):
    """The held lens of one token at one layer and position, split by order and by component.

    `by_order[0]` is the direct lens. `by_last` lists the direct contributions of the stream itself
    (`residual3`) and of each head and MLP above. Each split sums to the held lens.
    """

    layer: int
    position: int
    token: str
    held: float
    direct: float
    by_order: Breakdown
    by_last: Breakdown

    def to_table(self) -> Table:
        """One row per component, the largest magnitude first."""
        return self.by_last.to_table()

    def __rich__(self) -> RenderableType:
        headline = (
            f"{self.token} at position {self.position}, stream before layer {self.layer}: "
            f"direct {self.direct:+.3f}, held {self.held:+.3f}"
        )
        return stacked(headline, self.by_order, self.by_last)


@dataclass(frozen=True, eq=False)
class Lens(Record, kind="lens"):
    """The direct and the held lens at every layer and position of a text.

    `direct[l][p]` and `held[l][p]` read the stream before layer l; l = n_layers is the stream that
    the unembedding reads. `predictions` are the model's top tokens. Tables show `position`.
    """

    model: str
    position: int
    context: tuple[str, ...]
    predictions: tuple[str, ...]
    direct: tuple[tuple[Readout, ...], ...]
    held: tuple[tuple[Readout, ...], ...]
    _trace: Trace
    _sequence: int

    def parts(
        self, layer: int, position: int | None = None, token: TokenName | None = None
    ) -> LensParts:
        """The held lens of a token (by default the prediction) by order and by component."""
        check_layer(layer, len(self.direct) - 1)
        position = self.position if position is None else position
        position = parse_position(position, len(self.context), of="the text")
        return held_parts(self._trace, layer, position, token, self._sequence)

    def to_table(self) -> Table:
        """One row per layer: both lenses at one position."""
        position = self.position
        rows = tuple(
            (f"residual{layer}", *astuple(direct[position]), *astuple(held[position]))
            for layer, (direct, held) in enumerate(zip(self.direct, self.held, strict=True))
        )
        prediction = self.predictions[position]
        return Table(
            (
                text_column("stream"),
                *(token_column("direct"), Column("logit", "+.2f"), Column(prediction, "+.2f")),
                *(token_column("held"), Column("held logit", "+.2f")),
                Column(f"held {prediction}", "+.2f"),
            ),
            rows,
            title=f"{self.model}: lens at position {position}, after {self.context[position]}",
            note=(
                "direct: the logit lens; held: also what later layers compute at this position, "
                "with patterns, gates and scales frozen; logits minus their mean"
            ),
        )


@torch.no_grad()
def lens(trace: Trace, position: int = -1, sequence: int = 0) -> Lens:
    """The direct and the held lens of one sequence of a run; `trace.lens()` is the shorthand.

    Args:
        trace: An unedited run.
        position: The position that tables show; all are computed.
        sequence: The index of the sequence.

    Returns:
        The lens; `print` shows one position.

    Example:
        >>> from pathsum.model import construct
        >>> result = lens(construct.induction().trace("a b c a"))
        >>> result.held[-1][-1].token == result.predictions[-1], len(result.direct)
        (True, 3)
    """
    if not 0 <= sequence < len(trace.tokens):
        raise InputError(
            f"sequence {sequence} is out of range: the run has {len(trace.tokens)} sequences"
        )
    model, length = trace.model, int(trace.lengths[sequence])
    positions = range(length)
    streams = streams_at(trace, positions, sequence)
    held = HeldPositions.of(trace, positions, sequence).carry(streams)
    predictions = logits_at(trace, streams[-1], positions, sequence).argmax(-1)
    ids = trace.tokens[sequence, :length].tolist()
    return Lens(
        model=model.name,
        position=parse_position(position, length, of="the text"),
        context=tuple(map(model.token_text, ids)),
        predictions=tuple(map(model.output_text, predictions.tolist())),
        direct=_readouts(trace, streams, predictions, sequence),
        held=_readouts(trace, held, predictions, sequence),
        _trace=trace,
        _sequence=sequence,
    )


def check_layer(layer: int, n_layers: int) -> None:
    """Raise InputError unless there is a stream before a layer, or after the last one."""
    if not 0 <= layer <= n_layers:
        raise InputError(
            f"there is no stream before layer {layer}: layers are 0 to {n_layers - 1}, and "
            f"{n_layers} is the stream that the unembedding reads"
        )


def streams_at(
    trace: Trace, positions: Sequence[int], sequence: int = 0
) -> Float[Tensor, "layer position d"]:
    """The stream before each layer and after the last, at some positions of a sequence."""
    return torch.stack([stream[sequence, list(positions)] for stream in trace.streams])


def logits_at(
    trace: Trace, stream: Float[Tensor, "position d"], positions: Sequence[int], sequence: int = 0
) -> Float[Tensor, "position vocab"]:
    """Logits of a stream with the run's final scale, before any soft cap."""
    scaled = stream * trace.scales.final[sequence, list(positions), None]
    return apply_unembedding(trace.weights, scaled) + logit_bias(trace.weights)


def _readouts(
    trace: Trace,
    streams: Float[Tensor, "layer position d"],
    predictions: Int[Tensor, " position"],
    sequence: int,
) -> tuple[tuple[Readout, ...], ...]:
    rows: list[tuple[Readout, ...]] = []
    # One layer at a time, so that logits of one stream only are in memory.
    for stream in streams:
        logits = remove_mean(logits_at(trace, stream, range(len(predictions)), sequence))
        top = logits.max(-1)
        at_prediction = logits.gather(-1, predictions[:, None])[:, 0]
        texts = map(trace.model.output_text, top.indices.tolist())
        cells = zip(texts, top.values.tolist(), at_prediction.tolist(), strict=True)
        rows.append(tuple(Readout(*cell) for cell in cells))
    return tuple(rows)


@dataclass(frozen=True, eq=False)
class HeldPositions:
    """The layers of a frozen run as maps of single positions to themselves.

    Each position is a sequence of one token. A head weights it by A[p, p] (`diagonals`), its
    attention from the position to itself. `frozen` has the weights.
    """

    frozen: Frozen
    diagonals: tuple[Float[Tensor, "position head"], ...]
    scales: tuple[Float[Tensor, " position"], ...]
    gates: tuple[Float[Tensor, "position m"], ...]
    final_scale: Float[Tensor, " position"]

    @classmethod
    def of(cls, trace: Trace, positions: Sequence[int], sequence: int = 0) -> "HeldPositions":
        """Some positions of one sequence of a run."""
        check_gates_follow(trace)
        gates = Gates(trace) if trace.model.config.mlp != "none" else None
        frozen = Frozen(trace, slice(sequence, sequence + 1), max(positions) + 1, gates)
        layers, at = range(frozen.n_layers), list(positions)
        patterns = (frozen.layer(index).pattern[0] for index in layers)
        return cls(
            frozen=frozen,
            diagonals=tuple(each.diagonal(dim1=-2, dim2=-1).mT[at] for each in patterns),
            scales=tuple(frozen.layer(index).scale[0, at] for index in layers),
            gates=() if gates is None else tuple(gates.gate(i)[sequence, at] for i in layers),
            final_scale=frozen.final_scale[0, at],
        )

    @classmethod
    def concat(cls, parts: "Sequence[HeldPositions]", frozen: Frozen) -> "HeldPositions":
        """Positions of several runs of one model."""
        diagonals, scales, gates = (
            tuple(map(torch.cat, zip(*(getattr(part, name) for part in parts), strict=True)))
            for name in ("diagonals", "scales", "gates")
        )
        final_scale = torch.cat([part.final_scale for part in parts])
        return cls(frozen, diagonals, scales, gates, final_scale)

    @property
    def n_layers(self) -> int:
        """The number of layers."""
        return self.frozen.n_layers

    @property
    def parallel(self) -> bool:
        """Whether MLPs read the same stream as the heads of their layer."""
        return self.frozen.parallel

    def layer(self, layer: int) -> FrozenLayer:
        """The heads of a layer, one position per sequence."""
        heads, pattern = self.frozen.layer(layer), self.diagonals[layer][:, :, None, None]
        return FrozenLayer(lambda: pattern, self.scales[layer][:, None], heads.W_V, heads.W_O)

    def mlp(self, layer: int) -> FrozenMlp | None:
        """The MLP of a layer, one position per sequence."""
        mlp = self.frozen.mlp(layer)
        return None if mlp is None else replace(mlp, gate=self.gates[layer][:, None])

    def source_sum(self, *_levels: int) -> None:
        """Nothing is added: the held lens follows one stream."""

    def carry(
        self, streams: Float[Tensor, "layer position d"]
    ) -> Float[Tensor, "layer position d"]:
        """The stream before each layer, carried to the top through all layers above it."""
        below = streams[:, :, None]
        carried = below[:0]
        for index in range(self.n_layers):
            carried = torch.cat([carried, below[index : index + 1]])
            mlp, output = self.mlp(index), self.layer(index).apply(carried)
            if mlp is not None:
                output = output + mlp.apply(carried if self.parallel else carried + output)
            carried = carried + output
        return torch.cat([carried, below[-1:]])[:, :, 0]


@torch.no_grad()
def held_parts(
    trace: Trace, layer: int, position: int, token: TokenName | None, sequence: int = 0
) -> LensParts:
    """The held lens of a token at one layer and position, by its last component and by order."""
    # A trace of this sequence only, because a target has one entry per sequence.
    row = trace.prefix(sequence, int(trace.lengths[sequence]))
    target = find_target(row, position, token, "mean")
    held = HeldPositions.of(trace, [position], sequence)
    stream = trace.streams[layer][sequence, position][None, None]
    return split_held(held, layer, stream, target, trace.model)


def split_held(
    held: HeldPositions,
    layer: int,
    stream: Float[Tensor, "position 1 d"],
    target: Target,
    model: Model,
) -> LensParts:
    """The held lens of the stream before a layer; values are means over the positions."""
    direction, bias = target.direction(model.weights)
    gradient = direction * held.final_scale[:, None]
    names: list[Name] = [Source("residual", layer)]
    last = [(stream[:, 0] * gradient).sum(-1).mean()[None]]
    sweep = UpSweep(held, stream, held.frozen.orders(held.n_layers - layer), layer)
    for step in sweep.steps_to(held.n_layers):
        if isinstance(step, MlpStep):
            names.append(Source("mlp", step.index))
            outputs = step.output.sum(0)[None, :, 0]
        else:
            names += [HeadId(step.index, head) for head in range(step.z.shape[2])]
            outputs = torch.einsum("nbhk,hkd->hbd", step.z[:, :, :, 0], step.layer.W_O)
        last.append((outputs * gradient).sum(-1).mean(-1))
    by_order = (sweep.streams[:, :, 0] * gradient).sum(-1).mean(-1)
    if logit_bias(model.weights).any():
        names.append(Source("unembed_bias"))
        last.append(bias)
        by_order = torch.cat([by_order[:1] + bias, by_order[1:]])
    values, numbers = torch.cat(last), tuple[Name, ...](range(len(by_order)))
    return LensParts(
        layer=layer,
        position=int(target.positions[0]),
        token=model.output_text(int(target.tokens[0])),
        held=float(values.sum()),
        direct=float(by_order[0]),
        by_order=Breakdown("order", numbers, by_order, None, 1),
        by_last=Breakdown("last component", tuple(names), values, None, 1),
    )
