"""Lens: the residual stream at each position decoded into logits, layer by layer.

Two readouts of the stream x before layer l at position p:

    direct   x s W_U, with the scale of the run's final read: the logit lens, and all paths of
             order 0
    held     x M: everything that the layers above make of x at its own position, with patterns,
             normalization scales and gates held. M is the product of all layers above, each head
             with the weight A[p, p] that its position gives to itself. The direct part is its
             order 0.

Both have the logits' own bias added, so at the last layer both are the model's logits. What other
positions send to p above layer l is in neither. `Lens.parts` splits one readout by order and by the
last head or MLP on the way; each split adds up to the held lens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

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
from pathsum.paths.order_sweep import Orders
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
    """The held lens of one token at one layer and position, split in two exact ways.

    `by_order[0]` is the direct lens; `by_last` has the direct contributions to the logits of the
    stream itself (`residual3`) and of each head and MLP above. Each split sums to the held lens.
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
        head = (
            f"{self.token} at position {self.position}, stream before layer {self.layer}: "
            f"direct {self.direct:+.3f}, held {self.held:+.3f}"
        )
        return stacked(head, self.by_order, self.by_last)


@dataclass(frozen=True, eq=False)
class Lens(Record, kind="lens"):
    """The direct and the held lens at every layer and position of a text.

    `direct[l][p]` and `held[l][p]` read the stream before layer l; l = n_layers is the stream that
    the unembedding reads. `predictions` are the tokens that the model predicts. Tables show
    `position`.
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
        n_layers = len(self.direct) - 1
        if not 0 <= layer <= n_layers:
            raise InputError(
                f"there is no stream before layer {layer}: layers are 0 to {n_layers - 1}, and "
                f"{n_layers} is the stream that the unembedding reads"
            )
        position = self.position if position is None else position
        position = parse_position(position, len(self.context), of="the text")
        return held_parts(self._trace, layer, position, token, self._sequence)

    def to_table(self) -> Table:
        """One row per layer: both lenses at one position."""
        position = self.position
        rows = tuple(
            (f"residual{layer}", *self._cells(direct[position]), *self._cells(held[position]))
            for layer, (direct, held) in enumerate(zip(self.direct, self.held, strict=True))
        )
        wanted = self.predictions[position]
        return Table(
            (
                text_column("stream"),
                *(token_column("direct"), Column("logit", "+.2f"), Column(wanted, "+.2f")),
                *(token_column("held"), Column("held logit", "+.2f")),
                Column(f"held {wanted}", "+.2f"),
            ),
            rows,
            title=f"{self.model}: lens at position {position}, after {self.context[position]}",
            note=(
                "direct: the logit lens; held: also what later layers compute at this position, "
                "with patterns, gates and scales frozen; logits minus their mean"
            ),
        )

    @staticmethod
    def _cells(readout: Readout) -> tuple[str, float, float]:
        return readout.token, readout.logit, readout.prediction


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
        >>> found = lens(construct.induction().trace("a b c a"))
        >>> found.held[-1][-1].token == found.predictions[-1], len(found.direct)
        (True, 3)
    """
    if not 0 <= sequence < len(trace.tokens):
        raise InputError(
            f"sequence {sequence} is out of range: the run has {len(trace.tokens)} sequences"
        )
    model, length = trace.model, int(trace.lengths[sequence])
    places = range(length)
    streams = streams_at(trace, places, sequence)
    held = HeldPositions.of(trace, places, sequence).carry(streams)
    wanted = logits_at(trace, streams[-1], places, sequence).argmax(-1)
    ids = trace.tokens[sequence, :length].tolist()
    return Lens(
        model=model.name,
        position=parse_position(position, length, of="the text"),
        context=tuple(map(model.token_text, ids)),
        predictions=tuple(map(model.output_text, wanted.tolist())),
        direct=_readouts(trace, streams, wanted, sequence),
        held=_readouts(trace, held, wanted, sequence),
        _trace=trace,
        _sequence=sequence,
    )


def streams_at(
    trace: Trace, places: Sequence[int], sequence: int = 0
) -> Float[Tensor, "layer place d"]:
    """The stream before each layer and after the last, at some positions of a sequence."""
    return torch.stack([stream[sequence, list(places)] for stream in trace.streams])


def logits_at(
    trace: Trace, stream: Float[Tensor, "place d"], places: Sequence[int], sequence: int = 0
) -> Float[Tensor, "place vocab"]:
    """Logits of a stream with the run's final scale, before any soft cap."""
    scaled = stream * trace.scales.final[sequence, list(places), None]
    return apply_unembedding(trace.weights, scaled) + logit_bias(trace.weights)


def _readouts(
    trace: Trace,
    streams: Float[Tensor, "layer place d"],
    wanted: Int[Tensor, " place"],
    sequence: int,
) -> tuple[tuple[Readout, ...], ...]:
    rows: list[tuple[Readout, ...]] = []
    # One layer at a time, so that logits of one stream only are in memory.
    for stream in streams:
        logits = remove_mean(logits_at(trace, stream, range(len(wanted)), sequence))
        best = logits.max(-1)
        asked = logits.gather(-1, wanted[:, None])[:, 0]
        texts = map(trace.model.output_text, best.indices.tolist())
        cells = zip(texts, best.values.tolist(), asked.tolist(), strict=True)
        rows.append(tuple(Readout(*cell) for cell in cells))
    return tuple(rows)


@dataclass(frozen=True, eq=False)
class HeldPositions:
    """The layers of a frozen run as maps of single positions to themselves.

    A position is a sequence of one token: each head gives it the weight A[p, p] that the position
    gives to itself (`own`). `frozen` has the weights.
    """

    frozen: Frozen
    own: tuple[Float[Tensor, "place head"], ...]
    scale: tuple[Float[Tensor, " place"], ...]
    gate: tuple[Float[Tensor, "place m"], ...]
    final: Float[Tensor, " place"]

    @classmethod
    def of(cls, trace: Trace, places: Sequence[int], sequence: int = 0) -> "HeldPositions":
        """Some positions of one sequence of a run."""
        check_gates_follow(trace)
        gates = Gates(trace) if trace.model.config.mlp != "none" else None
        frozen = Frozen(trace, slice(sequence, sequence + 1), max(places) + 1, gates)
        layers, at = range(frozen.n_layers), list(places)
        patterns = (frozen.layer(index).pattern[0] for index in layers)
        return cls(
            frozen=frozen,
            own=tuple(one.diagonal(dim1=-2, dim2=-1).mT[at] for one in patterns),
            scale=tuple(frozen.layer(index).scale[0, at] for index in layers),
            gate=() if gates is None else tuple(gates.gate(one)[sequence, at] for one in layers),
            final=frozen.final_scale[0, at],
        )

    @classmethod
    def concat(cls, parts: "Sequence[HeldPositions]", frozen: Frozen) -> "HeldPositions":
        """Positions of several runs of one model."""
        own, scale, gate = (
            tuple(map(torch.cat, zip(*(getattr(part, name) for part in parts), strict=True)))
            for name in ("own", "scale", "gate")
        )
        return cls(frozen, own, scale, gate, torch.cat([part.final for part in parts]))

    def layer(self, index: int) -> tuple[FrozenLayer, FrozenMlp | None]:
        """The heads and the MLP of a layer, one position per sequence."""
        layer, mlp = self.frozen.layer(index), self.frozen.mlp(index)
        own, scale = self.own[index][:, :, None, None], self.scale[index][:, None]
        alone = FrozenLayer(lambda: own, scale, layer.W_V, layer.W_O)
        if mlp is None:
            return alone, None
        return alone, FrozenMlp(self.gate[index][:, None], mlp.W_in, mlp.W_out)

    def carry(self, streams: Float[Tensor, "layer place d"]) -> Float[Tensor, "layer place d"]:
        """The stream before each layer, carried to the top through all layers above it."""
        below = streams[:, :, None]
        carried = below[:0]
        for index in range(self.frozen.n_layers):
            carried = torch.cat([carried, below[index : index + 1]])
            layer, mlp = self.layer(index)
            heads = layer.apply(carried)
            if mlp is not None:
                heads = heads + mlp.apply(carried if self.frozen.parallel else carried + heads)
            carried = carried + heads
        return torch.cat([carried, below[-1:]])[:, :, 0]


@torch.no_grad()
def held_parts(
    trace: Trace, layer: int, position: int, token: TokenName | None, sequence: int = 0
) -> LensParts:
    """The held lens of a token at one layer and position, by its last component and by order."""
    # A trace of this sequence alone, because a target has one entry per sequence.
    alone = trace.prefix(sequence, int(trace.lengths[sequence]))
    target = find_target(alone, position, token, "mean")
    held = HeldPositions.of(trace, [position], sequence)
    stream = trace.streams[layer][sequence, position][None, None]
    return split_held(held, layer, stream, target, trace.model)


def split_held(
    held: HeldPositions,
    start: int,
    stream: Float[Tensor, "place one d"],
    target: Target,
    model: Model,
) -> LensParts:
    """The held lens of the stream before a layer; values are means over the positions."""
    top, bias = target.direction(model.weights)
    gradient, n_layers = top * held.final[:, None], held.frozen.n_layers
    names: list[Name] = [Source("residual", start)]
    last = [(stream[:, 0] * gradient).sum(-1).mean()[None]]
    orders = Orders(stream, held.frozen.orders(n_layers - start))
    for index in range(start, n_layers):
        found, written = _step(held, index, orders)
        names += found
        last.append((written * gradient).sum(-1).mean(-1))
    by_order = (orders.reached[:, :, 0] * gradient).sum(-1).mean(-1)
    if logit_bias(model.weights).any():
        names.append(Source("unembed_bias"))
        last.append(bias)
        by_order = torch.cat([by_order[:1] + bias, by_order[1:]])
    values, numbers = torch.cat(last), tuple[Name, ...](range(len(by_order)))
    return LensParts(
        layer=start,
        position=int(target.positions[0]),
        token=model.output_text(int(target.tokens[0])),
        held=float(values.sum()),
        direct=float(by_order[0]),
        by_order=Breakdown("order", numbers, by_order, None, 1),
        by_last=Breakdown("last component", tuple(names), values, None, 1),
    )


def _step(
    held: HeldPositions, index: int, orders: Orders
) -> tuple[list[Name], Float[Tensor, "component place d"]]:
    """One layer: the outputs of its heads and its MLP at each position, all orders together."""
    layer, mlp = held.layer(index)
    sent = orders.sent()
    z = layer.mix(layer.read(sent))
    through = layer.write(z)
    names: list[Name] = [HeadId(index, head) for head in range(z.shape[2])]
    written = torch.einsum("nbhk,hkd->hbd", z[:, :, :, 0], layer.W_O)
    if mlp is None:
        orders.raise_order(through)
        return names, written
    if held.frozen.parallel:
        from_mlp = mlp.apply(sent)
        orders.raise_order(through + from_mlp)
    else:
        orders.raise_order(through)
        from_mlp = mlp.apply(orders.sent())
        orders.raise_order(from_mlp)
    return [*names, Source("mlp", index)], torch.cat([written, from_mlp.sum(0)[None, :, 0]])
