"""`why` and `paths`: a prediction as a circuit, and as a sum over paths."""

from dataclasses import dataclass

from pathsum.base.errors import InputError
from pathsum.circuits.tokens.token import find_token
from pathsum.explorer.params import TextParams
from pathsum.explorer.workbench import Workbench
from pathsum.model import Model, Trace
from pathsum.paths import expand_logits
from pathsum.paths.circuit import find_circuit
from pathsum.paths.explanation import PathExplanation, explain_prediction
from pathsum.paths.graph import Graph
from pathsum.paths.target import Versus


@dataclass(frozen=True, kw_only=True)
class PredictionParams(TextParams):
    """A position and a token: by default the next token, or the predicted one at the end.

    `versus` is as on the command line: "mean" (the vocabulary mean is subtracted), "none" (the raw
    logit), or another token, by id or text.
    """

    position: int
    token: int | None = None
    versus: str | int = "mean"


# The circuit has edges from this share of the prediction on; the page shows the strongest first.
THRESHOLD = 0.02
# All paths are listed if there are at most this many, else the strongest that a search finds.
MAX_PATHS = 600
STRONGEST = 100
# The search visits as many paths as a page can wait for. One costs about heads × tokens steps.
MAX_BUDGET, MIN_BUDGET, STEPS = 50_000, 2_000, 100_000_000
# Paths whose routes over the text are computed; weaker ones are not drawn.
ROUTES = 40


def why(bench: Workbench, params: PredictionParams) -> Graph:
    """A prediction as a graph of V, Q and K edges, each with the effect of cutting it."""
    trace = bench.run(params).trace
    position = position_of(trace, params.position)
    token = token_of(trace, position, params.token)
    versus = find_versus(trace.model, params.versus)
    return find_circuit(trace, position, token, versus, THRESHOLD, progress=bench.progress)


def paths(bench: Workbench, params: PredictionParams) -> PathExplanation:
    """Which paths made a prediction."""
    trace = bench.run(params).trace
    position = position_of(trace, params.position)
    token = token_of(trace, position, params.token)
    count = expand_logits(trace).count
    k = count if count <= MAX_PATHS else STRONGEST
    versus = find_versus(trace.model, params.versus)
    budget = _budget(trace.model, position + 1)
    return explain_prediction(
        trace, position, token, versus, k, budget, bench.progress, n_routes=ROUTES
    )


def _budget(model: Model, tokens: int) -> int:
    return max(MIN_BUDGET, min(MAX_BUDGET, STEPS // (len(model.heads) * tokens or 1)))


def position_of(trace: Trace, position: int) -> int:
    """A position that the text has."""
    length = trace.tokens.shape[1]
    if not 0 <= position < length:
        raise InputError(
            f"there is no position {position}: the text has positions 0 to {length - 1}"
        )
    return position


def token_of(trace: Trace, position: int, token: int | None) -> int:
    """The token to explain: the given one, else the next one, else the model's prediction."""
    if token is not None:
        return trace.model.token_id(token)
    if position + 1 < trace.tokens.shape[1]:
        return int(trace.tokens[0, position + 1])
    return int(trace.logits_at(position)[0].argmax())


def find_versus(model: Model, versus: str | int) -> Versus:
    """The `versus` of a question, parsed."""
    if versus == "mean":
        return "mean"
    return None if versus == "none" else find_token(model, versus)
