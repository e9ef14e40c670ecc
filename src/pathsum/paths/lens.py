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

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

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
from pathsum.paths.frozen import Frozen, FrozenLayer, FrozenMlp, Gates, PerHeads, Streams
from pathsum.paths.order_sweep import Orders
from pathsum.paths.path_sum import check_gates_follow
from pathsum.paths.target import Target, TokenName, find_target

OwnLayer: TypeAlias = tuple[FrozenLayer, FrozenMlp | None]
"""The heads and the MLP of a layer at single positions."""


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
    _own: "OwnPositions"

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
        return self._own.parts(layer, position, token)

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
    own = OwnPositions(trace, slice(0, length), sequence)
    streams = own.streams
    wanted = own.logits(streams[-1]).argmax(-1)
    ids = trace.tokens[sequence, :length].tolist()
    return Lens(
        model=model.name,
        position=parse_position(position, length, of="the text"),
        context=tuple(map(model.token_text, ids)),
        predictions=tuple(map(model.output_text, wanted.tolist())),
        direct=_readouts(own, streams, wanted),
        held=_readouts(own, own.carry(streams), wanted),
        _own=own,
    )


def _readouts(
    own: "OwnPositions", streams: Float[Tensor, "layer pos d"], wanted: Int[Tensor, " pos"]
) -> tuple[tuple[Readout, ...], ...]:
    rows: list[tuple[Readout, ...]] = []
    # One layer at a time, so that logits of one stream only are in memory.
    for stream in streams:
        logits = remove_mean(own.logits(stream))
        best = logits.max(-1)
        asked = logits.gather(-1, wanted[:, None])[:, 0]
        texts = map(own.trace.model.output_text, best.indices.tolist())
        cells = zip(texts, best.values.tolist(), asked.tolist(), strict=True)
        rows.append(tuple(Readout(*cell) for cell in cells))
    return tuple(rows)


class OwnPositions:
    """The layers of a frozen run as maps of each position to itself, at some positions."""

    def __init__(self, trace: Trace, at: slice, sequence: int = 0) -> None:
        check_gates_follow(trace)
        self.trace, self.at = trace, at
        self.rows = slice(sequence, sequence + 1)
        gates = Gates(trace) if trace.model.config.mlp != "none" else None
        self.frozen = Frozen(trace, self.rows, at.stop, gates)

    @property
    def streams(self) -> Float[Tensor, "layer pos d"]:
        """The stream before each layer and after the last."""
        return torch.stack([stream[self.rows.start, self.at] for stream in self.trace.streams])

    def logits(self, stream: Float[Tensor, "pos d"]) -> Float[Tensor, "pos vocab"]:
        """Logits of a stream with the run's final scale, before any soft cap."""
        weights = self.trace.weights
        scaled = stream * self.frozen.final_scale[0, self.at, None]
        return apply_unembedding(weights, scaled) + logit_bias(weights)

    def carry(self, streams: Float[Tensor, "layer pos d"]) -> Float[Tensor, "layer pos d"]:
        """The stream before each layer, carried to the top through all layers above it."""
        below = streams[:, None]
        carried = below[:0]
        for index in range(self.frozen.n_layers):
            carried = torch.cat([carried, below[index : index + 1]])
            layer, mlp = self._layer(index, self.at)
            heads = layer.write(_stay(layer, carried))
            if mlp is not None:
                heads = heads + mlp.apply(carried if self.frozen.parallel else carried + heads)
            carried = carried + heads
        return torch.cat([carried, below[-1:]])[:, 0]

    def _layer(self, index: int, at: slice) -> OwnLayer:
        """A layer and its MLP at some positions."""
        layer, mlp = self.frozen.layer(index), self.frozen.mlp(index)
        pattern = layer.pattern[..., at, at]
        own = FrozenLayer(lambda: pattern, layer.scale[:, at], layer.W_V, layer.W_O)
        return own, None if mlp is None else FrozenMlp(mlp.gate[:, at], mlp.W_in, mlp.W_out)

    @torch.no_grad()
    def parts(self, start: int, position: int, token: TokenName | None) -> LensParts:
        """One readout by order and by the last component."""
        # A trace of this sequence alone, because a target has one entry per sequence.
        alone = self.trace.prefix(self.rows.start, self.at.stop)
        target = find_target(alone, position, token, "mean")
        at = slice(position, position + 1)
        return split_held(
            self.frozen,
            lambda index: self._layer(index, at),
            start,
            self.trace.streams[start][self.rows, at],
            self.frozen.final_scale[:, at],
            target,
            self.trace.model,
        )


def split_held(
    frozen: Frozen,
    layer: Callable[[int], OwnLayer],
    start: int,
    stream: Float[Tensor, "batch one d"],
    scale: Float[Tensor, "batch one"],
    target: Target,
    model: Model,
) -> LensParts:
    """The held lens of streams, one position each, by its last component and by order.

    `layer` gives the layers at these positions, `scale` that of the final read; values are means
    over the positions.
    """
    weights = model.weights
    top, bias = target.direction(weights)
    gradient = top * scale
    names: list[Name] = [Source("residual", start)]
    last = [(stream[:, 0] * gradient).sum(-1).mean()[None]]
    orders = Orders(stream, frozen.orders(frozen.n_layers - start))
    for index in range(start, frozen.n_layers):
        found, written = _step(layer(index), index, orders, frozen.parallel)
        names += found
        last.append((written * gradient).sum(-1).mean(-1))
    by_order = (orders.reached[:, :, 0] * gradient).sum(-1).mean(-1)
    if logit_bias(weights).any():
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
    own: OwnLayer, index: int, orders: Orders, parallel: bool
) -> tuple[list[Name], Float[Tensor, "component batch d"]]:
    """One layer: the outputs of its heads and its MLP at each position, all orders together."""
    layer, mlp = own
    sent = orders.sent()
    z = _stay(layer, sent)
    through = layer.write(z)
    names: list[Name] = [HeadId(index, head) for head in range(z.shape[2])]
    written = torch.einsum("nbhk,hkd->hbd", z[:, :, :, 0], layer.W_O)
    if mlp is None:
        orders.raise_order(through)
        return names, written
    if parallel:
        from_mlp = mlp.apply(sent)
        orders.raise_order(through + from_mlp)
    else:
        orders.raise_order(through)
        from_mlp = mlp.apply(orders.sent())
        orders.raise_order(from_mlp)
    return [*names, Source("mlp", index)], torch.cat([written, from_mlp.sum(0)[None, :, 0]])


def _stay(layer: FrozenLayer, streams: Streams) -> PerHeads:
    """z of each head where every position attends to itself alone, with its own weight."""
    own = layer.pattern.diagonal(dim1=-2, dim2=-1)
    return layer.per_head(layer.read(streams)) * own[..., None]
