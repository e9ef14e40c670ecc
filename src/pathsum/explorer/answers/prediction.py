"""`why`, `paths`, `sources`, `lens`, `lens_parts`, `neurons`, `neuron`: explained predictions."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pathsum.base import Record
from pathsum.base.errors import InputError
from pathsum.circuits.token_basis import find_token
from pathsum.explorer.params import ModelParams, TextParams
from pathsum.explorer.session import Session
from pathsum.heads import Neuron
from pathsum.heads import neuron as read_neuron
from pathsum.model import Model, Trace
from pathsum.model.transformer import soft_cap
from pathsum.paths import expand_logits
from pathsum.paths.breakdown import NodeNeurons, find_name
from pathsum.paths.circuit import find_circuit, with_effects
from pathsum.paths.explanation import PathExplanation, explain_prediction
from pathsum.paths.graph import Graph
from pathsum.paths.lens import HeldPositions, held_parts, logits_at, streams_at
from pathsum.paths.logit_effects import direct_parts
from pathsum.paths.target import Versus, find_target


@dataclass(frozen=True, kw_only=True)
class PredictionParams(TextParams):
    """A position and a token: by default the next token, or the predicted one at the end.

    `versus` is as on the command line: "mean" (the vocabulary mean is subtracted), "none" (the raw
    logit), or another token, by id or text.
    """

    position: int
    token: int | None = None
    versus: str | int = "mean"


# Edges of the circuit carry at least this share of the prediction.
THRESHOLD = 0.02
# All paths are listed if there are at most this many; otherwise, the STRONGEST found by a search.
MAX_PATHS = 600
STRONGEST = 100
# Bounds of the search: a path costs about heads × tokens steps.
MAX_BUDGET, MIN_BUDGET, STEPS = 50_000, 2_000, 100_000_000
# The number of strongest paths that are drawn as routes over the text.
ROUTES = 40


def find_prediction(session: Session, params: PredictionParams) -> tuple[Trace, int, int, Versus]:
    """The run, position, token and baseline of a question, with defaults filled in."""
    trace = session.run(params).trace
    position = find_position(trace.tokens.shape[1], params.position)
    token = find_target_token(trace, position, params.token)
    return trace, position, token, find_versus(trace.model, params.versus)


def find_versus(model: Model, versus: str | int) -> Versus:
    """The baseline of a logit as the library names it."""
    if versus == "mean":
        return "mean"
    return None if versus == "none" else find_token(model, versus)


def find_position(length: int, position: int) -> int:
    """A position of a text of `length` tokens, checked."""
    if not 0 <= position < length:
        raise InputError(
            f"there is no position {position}: the text has positions 0 to {length - 1}"
        )
    return position


def find_target_token(trace: Trace, position: int, token: int | None = None) -> int:
    """The token to explain: `token`, the next token or, at the end, the model's prediction."""
    if token is not None:
        return trace.model.token_id(token)
    if position + 1 < trace.tokens.shape[1]:
        return int(trace.tokens[0, position + 1])
    return int(trace.logits_at(position)[0].argmax())


@dataclass(frozen=True, kw_only=True)
class WhyParams(PredictionParams):
    """A prediction; with `effects`, every edge is cut, which takes most of the time."""

    effects: bool = True


def why(session: Session, params: WhyParams) -> Graph:
    """A prediction as a graph of its edges, each with the effect of cutting it."""
    _, position, token, versus = find_prediction(session, params)
    graph = circuit_at(session, params, position, token, versus)
    if not params.effects:
        return graph
    about = ("effects", session.run(params).ids, position, token, versus)
    return session.result(params, about, lambda _, report: with_effects(graph, report))


def circuit_at(
    session: Session, params: TextParams, position: int, token: int, versus: Versus = "mean"
) -> Graph:
    """A circuit without effects, cached because stories, graphs and neurons share it."""
    run = session.run(params)
    return session.result(
        params,
        ("circuit", run.ids, position, token, versus),
        lambda _, report: find_circuit(
            run.trace, position, token, versus, THRESHOLD, effects=False, progress=report
        ),
    )


def paths(session: Session, params: PredictionParams) -> PathExplanation:
    """A prediction as a sum over paths."""
    trace, position, token, versus = find_prediction(session, params)
    count = expand_logits(trace).count
    k = count if count <= MAX_PATHS else STRONGEST
    steps = len(trace.model.heads) * (position + 1) or 1
    budget = max(MIN_BUDGET, min(MAX_BUDGET, STEPS // steps))
    return explain_prediction(
        trace, position, token, versus, k, budget, session.progress, n_routes=ROUTES
    )


@dataclass(frozen=True, eq=False)
class SourceTotals(Record, kind="page-sources"):
    """A prediction by source token: all paths from each embedding through heads and MLPs.

    Patterns, scales and gates are held fixed. `tokens` (one number per position up to the
    prediction) and `rest`, the paths from positions and biases, add up to `total`.
    """

    position: int
    token: int
    total: float
    tokens: Tensor
    rest: float
    remainder: float


def sources(session: Session, params: PredictionParams) -> SourceTotals:
    """A prediction by source token, through MLPs as well."""
    trace, position, token, versus = find_prediction(session, params)
    toward = expand_logits(trace, "linear").toward(position, token, versus)
    grid = toward.by_source
    tokens = grid.values[find_name(grid.rows, "embed")]
    rest = grid.sum() - float(tokens.sum())
    return SourceTotals(position, token, toward.total, tokens, rest, toward.remainder)


# The number of neurons in a list, and of rows in the lists about one neuron.
NEURONS, ROWS = 10, 6


@dataclass(frozen=True, kw_only=True)
class NeuronsParams(PredictionParams):
    """An MLP node of the prediction's circuit, such as mlp3@7."""

    node: str


def neurons(session: Session, params: NeuronsParams) -> NodeNeurons:
    """The strongest neurons of an MLP at a position, with the rest as one number."""
    _, position, token, versus = find_prediction(session, params)
    split = circuit_at(session, params, position, token, versus).neurons(params.node)
    return NodeNeurons.of(params.node, split, NEURONS)


@dataclass(frozen=True, kw_only=True)
class NeuronParams(ModelParams):
    """One neuron, such as mlp3.n512."""

    neuron: str


def neuron(session: Session, params: NeuronParams) -> Neuron:
    """The page of one neuron: its inputs, its output, its top contexts, its ablation cost."""
    return read_neuron(session.model(params), params.neuron, k=ROWS, progress=session.progress)


# The number of positions per answer; each takes a product with the unembedding at every layer.
LENS_POSITIONS = 64


@dataclass(frozen=True, kw_only=True)
class LensParams(TextParams):
    """A readout (see `pathsum.paths.lens`), and the first of at most 64 positions."""

    readout: Literal["direct", "held"] = "direct"
    start: int = 0


@dataclass(frozen=True, eq=False)
class LensAnswer(Record, kind="page-lens"):
    """The top token of the stream before each layer and after the last, at positions from `start`.

    `predictions` are the model's top tokens, with which both readouts end. Tensors are [layer,
    position]: the top token, its probability, and the probability of the prediction.
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
    positions = range(start, min(start + LENS_POSITIONS, length))
    cap, streams = trace.weights.config.logit_cap, streams_at(trace, positions)
    predictions = logits_at(trace, streams[-1], positions).argmax(-1)
    tops: list[Tensor] = []
    probabilities: list[Tensor] = []
    is_held = params.readout == "held"
    carried = HeldPositions.of(trace, positions).carry(streams) if is_held else streams
    for layer, stream in enumerate(carried):
        session.progress(layer, len(carried), f"reading the stream before layer {layer}")
        distribution = soft_cap(logits_at(trace, stream, positions), cap).softmax(-1)
        tops.append(distribution.argmax(-1))
        ids = torch.stack([tops[-1], predictions], -1)
        probabilities.append(distribution.gather(-1, ids))
    top_probs, prediction_probs = torch.stack(probabilities).unbind(-1)
    return LensAnswer(
        readout=params.readout,
        start=start,
        predictions=tuple(predictions.tolist()),
        top_ids=torch.stack(tops),
        top_probs=top_probs,
        prediction_probs=prediction_probs,
    )


@dataclass(frozen=True, kw_only=True)
class LensPartsParams(TextParams):
    """The layer of a stream, a position, and a token, by default the prediction there."""

    layer: int
    position: int
    token: int | None = None


@dataclass(frozen=True, eq=False)
class LensPartsAnswer(Record, kind="page-lens-parts"):
    """The logit of one token, relative to the mean, in the lens of a stream, by component.

    `written` splits the direct lens by the components below. `carried` splits the held lens by the
    last component above; its first entry is the direct lens, of the stream itself. `by_order`
    splits the held lens by the number of heads and MLPs above on each path.
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
    parts = held_parts(trace, params.layer, position, token)
    return LensPartsAnswer(
        layer=params.layer,
        position=position,
        token=token,
        direct=parts.direct,
        held=parts.held,
        writers=tuple(below),
        written=torch.tensor([*below.values()]),
        above=tuple(map(str, parts.by_last.names)),
        carried=parts.by_last.values,
        by_order=parts.by_order.values,
    )
