"""`lens` and `lens_parts`: the tokens that every layer's stream reads, and the parts of one."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pathsum.base import Record
from pathsum.base.errors import InputError
from pathsum.explorer.answers.prediction import direct_parts, find_position
from pathsum.explorer.params import TextParams
from pathsum.explorer.session import Session
from pathsum.model.transformer import soft_cap
from pathsum.paths.lens import OwnPositions
from pathsum.paths.target import find_target

# Positions of one answer: every one takes the whole unembedding at every layer.
LENS_POSITIONS = 64


@dataclass(frozen=True, kw_only=True)
class LensParams(TextParams):
    """A readout (see `pathsum.paths.lens`), and the first of at most 64 positions."""

    readout: Literal["direct", "held"] = "direct"
    start: int = 0


@dataclass(frozen=True, eq=False)
class LensAnswer(Record, kind="page-lens"):
    """The top token of the stream before each layer and after the last, at positions from `start`.

    `predictions` are the model's own top tokens, which both readouts end with. Tensors are
    [layer, position]: the top token, its probability, and that of the prediction.
    """

    readout: str
    start: int
    predictions: tuple[int, ...]
    top_ids: Tensor
    top_probs: Tensor
    prediction_probs: Tensor


@torch.no_grad()
def answer_lens(session: Session, params: LensParams) -> LensAnswer:
    """The lens of a text."""
    trace = session.run(params).trace
    length = trace.tokens.shape[1]
    start = find_position(length, params.start)
    own = OwnPositions(trace, slice(start, min(start + LENS_POSITIONS, length)))
    cap = trace.weights.config.logit_cap
    streams = own.streams
    predicted = own.logits(streams[-1]).argmax(-1)
    tops: list[Tensor] = []
    probabilities: list[Tensor] = []
    carried = own.carry(streams) if params.readout == "held" else streams
    for layer, stream in enumerate(carried):
        session.progress(layer, len(carried), f"reading the stream before layer {layer}")
        found = soft_cap(own.logits(stream), cap).softmax(-1)
        tops.append(found.argmax(-1))
        both = torch.stack([tops[-1], predicted], -1)
        probabilities.append(found.gather(-1, both))
    top_probs, prediction_probs = torch.stack(probabilities).unbind(-1)
    return LensAnswer(
        readout=params.readout,
        start=start,
        predictions=tuple(predicted.tolist()),
        top_ids=torch.stack(tops),
        top_probs=top_probs,
        prediction_probs=prediction_probs,
    )


@dataclass(frozen=True, kw_only=True)
class LensPartsParams(TextParams):
    """A layer whose stream is read, a position, and a token, by default the prediction there."""

    layer: int
    position: int
    token: int | None = None


@dataclass(frozen=True, eq=False)
class LensPartsAnswer(Record, kind="page-lens-parts"):
    """The logit of one token, relative to the mean, that a stream reads, by component.

    `written` splits the direct lens by the components below, `carried` the held lens by the last
    component above; the first of these is the stream itself, the direct lens. `by_order` splits
    the held lens by the number of heads and MLPs above that a path goes through.
    """

    layer: int
    position: int
    token: int
    direct: float
    held: float
    writers: tuple[str, ...]
    written: Tensor
    above: tuple[str, ...]
    carried: Tensor
    by_order: Tensor


def lens_parts(session: Session, params: LensPartsParams) -> LensPartsAnswer:
    """One cell of the lens by component."""
    trace = session.run(params).trace
    position = find_position(trace.tokens.shape[1], params.position)
    n_layers = trace.model.config.n_layers
    if not 0 <= params.layer <= n_layers:
        raise InputError(f"there is no stream {params.layer}: streams are 0 to {n_layers}")
    target = find_target(trace, position, params.token, "mean")
    token = int(target.tokens[0])
    below = direct_parts(trace, target, params.layer)
    found = OwnPositions(trace, slice(0, position + 1)).parts(params.layer, position, token)
    return LensPartsAnswer(
        layer=params.layer,
        position=position,
        token=token,
        direct=found.direct,
        held=found.held,
        writers=tuple(below),
        written=torch.tensor([*below.values()]),
        above=tuple(map(str, found.by_last.names)),
        carried=found.by_last.values,
        by_order=found.by_order.values,
    )
