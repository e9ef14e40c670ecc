"""`why`, `paths`, `sources`, `without` and `texts`: one prediction, explained and intervened on."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.base import LOGITS, Record
from pathsum.base.errors import HeadError, InputError
from pathsum.circuits.token_basis import find_token
from pathsum.explorer.answers.model import piece, shown_piece
from pathsum.explorer.answers.text import predictions
from pathsum.explorer.params import TextParams
from pathsum.explorer.session import Session
from pathsum.model import HeadId, Model, Trace
from pathsum.model.losses import trace_losses
from pathsum.paths import expand_logits
from pathsum.paths.breakdown import find_name
from pathsum.paths.circuit import find_circuit, with_effects
from pathsum.paths.explanation import PathExplanation, explain_prediction
from pathsum.paths.graph import Graph
from pathsum.paths.patching import without
from pathsum.paths.target import Target, Versus, find_target


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


@dataclass(frozen=True, eq=False)
class Prediction:
    """The prediction that a question is about: a run, a position, a token and its comparison."""

    trace: Trace
    position: int
    token: int
    versus: Versus


def find_prediction(session: Session, params: PredictionParams) -> Prediction:
    """The prediction that a question is about, with its defaults filled in."""
    trace = session.run(params).trace
    position = find_position(trace.tokens.shape[1], params.position)
    token = find_target_token(trace, position, params.token)
    return Prediction(trace, position, token, _parse_versus(trace.model, params.versus))


def _parse_versus(model: Model, versus: str | int) -> Versus:
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
    """The token to explain: the given one, else the next one, else the model's prediction."""
    if token is not None:
        return trace.model.token_id(token)
    if position + 1 < trace.tokens.shape[1]:
        return int(trace.tokens[0, position + 1])
    return int(trace.logits_at(position)[0].argmax())


@dataclass(frozen=True, kw_only=True)
class WhyParams(PredictionParams):
    """A prediction; without `effects`, no edge is cut, which takes most of the time."""

    effects: bool = True


def why(session: Session, params: WhyParams) -> Graph:
    """A prediction as a graph of its edges, each with the effect of cutting it."""
    found = circuit(session, params)
    if not params.effects:
        return found
    at = find_prediction(session, params)
    key = _circuit_key(session, params, at.position, at.token, at.versus)
    return session.cached((*key, "effects"), lambda report: with_effects(found, report))


def circuit(session: Session, params: PredictionParams) -> Graph:
    """The circuit of a prediction without effects."""
    at = find_prediction(session, params)
    return circuit_at(session, params, at.position, at.token, at.versus)


def circuit_at(
    session: Session, params: TextParams, position: int, token: int, versus: Versus = "mean"
) -> Graph:
    """A circuit, computed once for its story, its graph and the neurons of its nodes."""
    trace = session.run(params).trace
    return session.cached(
        _circuit_key(session, params, position, token, versus),
        lambda report: find_circuit(
            trace, position, token, versus, THRESHOLD, effects=False, progress=report
        ),
    )


def _circuit_key(session: Session, params: TextParams, *prediction: Versus) -> tuple[Hashable, ...]:
    where = (session.open_model(params).name, params.step, session.run(params).ids)
    return ("why", *where, *prediction)


def paths(session: Session, params: PredictionParams) -> PathExplanation:
    """A prediction as a sum over paths."""
    at = find_prediction(session, params)
    count = expand_logits(at.trace).count
    k = count if count <= MAX_PATHS else STRONGEST
    steps = len(at.trace.model.heads) * (at.position + 1) or 1
    budget = max(MIN_BUDGET, min(MAX_BUDGET, STEPS // steps))
    return explain_prediction(
        at.trace, at.position, at.token, at.versus, k, budget, session.progress, n_routes=ROUTES
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
    at = find_prediction(session, params)
    toward = expand_logits(at.trace, "linear").toward(at.position, at.token, at.versus)
    grid = toward.by_source
    tokens = grid.values[find_name(grid.rows, "embed")]
    rest = grid.sum() - float(tokens.sum())
    return SourceTotals(at.position, at.token, toward.total, tokens, rest, toward.remainder)


# Predictions that are listed, and things that may be switched off in one link.
TOP, MAX_SWITCHES = 8, 200


@dataclass(frozen=True, kw_only=True)
class WithoutParams(PredictionParams):
    """`off` lists the heads and edges that are off (`L0H3,L0H3→L1H0.k,L0H3@4→L1H0@9.k`).

    `head` is the one whose pattern is sent, by default the one whose attention changed most.
    """

    off: str
    head: str | None = None


@dataclass(frozen=True)
class Measured:
    """One prediction in one of the two runs."""

    total: float
    probability: float
    rank: int


@dataclass(frozen=True, eq=False)
class WithoutAnswer(Record, kind="page-without"):
    """A prediction before and after, with each component's direct contribution to its logit.

    `parts` are the embedding, every head, every MLP, and positions with biases. In each run they
    add up to `total`, the logit minus the one it is compared with. `top_ids` are the strongest
    predictions of either run. `moved[head]` is how much of its attention a head moved elsewhere at
    the position; `pattern_before` and `pattern_after` are those of `head`, and None for a model
    without heads. `loss_before` and `loss_after` are those of the whole text.
    """

    off: tuple[str, ...]
    position: int
    token: int
    before: Measured
    after: Measured
    top_ids: tuple[int, ...]
    top_before: Tensor
    top_after: Tensor
    parts: tuple[str, ...]
    parts_before: Tensor
    parts_after: Tensor
    heads: tuple[str, ...]
    moved: Tensor
    head: str | None
    pattern_before: Tensor | None
    pattern_after: Tensor | None
    loss_before: Tensor
    loss_after: Tensor


def without_parts(session: Session, params: WithoutParams) -> WithoutAnswer:
    """Run a text without some heads and edges."""
    at = find_prediction(session, params)
    trace, position, token = at.trace, at.position, at.token
    target = find_target(trace, position, token, at.versus)
    off = tuple(dict.fromkeys(part.strip() for part in params.off.split(",") if part.strip()))
    if len(off) > MAX_SWITCHES:
        raise InputError(f"{len(off)} things are switched off; at most {MAX_SWITCHES} are allowed")
    cut = without(trace, off)
    before, after = direct_parts(trace, target), direct_parts(cut, target)
    probabilities = [run.logits_at(position)[0].softmax(-1) for run in (trace, cut)]
    top = _top(probabilities)
    moved = _moved(trace, cut, position)
    heads = tuple(head.label for head in trace.model.heads)
    shown = _shown(heads, moved, params.head)
    return WithoutAnswer(
        off=off,
        position=position,
        token=token,
        before=_measured(trace, target),
        after=_measured(cut, target),
        top_ids=tuple(top),
        top_before=probabilities[0][top],
        top_after=probabilities[1][top],
        parts=tuple(before),
        parts_before=torch.tensor([*before.values()]),
        parts_after=torch.tensor([*after.values()]),
        heads=heads,
        moved=moved,
        head=shown,
        pattern_before=None if shown is None else trace.pattern(shown)[0].half(),
        pattern_after=None if shown is None else cut.pattern(shown)[0].half(),
        loss_before=-predictions(session, params).next_log_prob,
        loss_after=_losses(cut),
    )


def direct_parts(trace: Trace, target: Target, layers: int | None = None) -> dict[str, float]:
    """The direct contribution of each component to the target, in any run; they add up to it.

    Read from the run's own writes, because an edited run is not the frozen sum of its sources.
    Positions in the stream and biases are one part. With `layers`, only those of the first few:
    the parts of the logit lens.
    """
    layers = trace.model.config.n_layers if layers is None else layers
    position = int(target.positions[0])
    gradient, bias = target.direction(trace.weights)
    gradient = gradient[0] * trace.scales.final[0, position]
    written = {"embed": trace.written("embed")[0, position]}
    for layer in range(layers):
        # As `trace.written` of each head, with the layer's z computed once for all of them.
        moved, W_O = trace.z(layer)[0, :, position], trace.weights.layers[layer].W_O
        each = torch.einsum("hk,hkd->hd", moved, W_O) * trace.scales.write[layer][0, position]
        written |= {str(HeadId(layer, head)): row for head, row in enumerate(each)}
    for layer, output in enumerate(trace.mlp_outputs[:layers]):
        written[f"mlp{layer}"] = output[0, position]
    rest = trace.streams[layers][0, position] - sum(written.values())
    for edit in trace.edits:
        site = edit.site
        if site.reader == LOGITS and {site.at, site.to} <= {None, position}:
            assert isinstance(edit.value, Tensor)
            written[str(site.writer)] = edit.value[0, position]
    parts = {name: float(vector @ gradient) for name, vector in written.items()}
    return {**parts, "positions and biases": float(rest @ gradient + bias[0])}


def _measured(trace: Trace, target: Target) -> Measured:
    logits = trace.logits_at(target.positions)[0]
    own = logits[int(target.tokens[0])]
    return Measured(
        total=float(target.of_rows(trace.uncapped_logits_at(target.positions))[0]),
        probability=float(logits.softmax(-1)[int(target.tokens[0])]),
        rank=int((logits > own).sum()) + 1,
    )


def _top(probabilities: Sequence[Float[Tensor, " vocab"]]) -> list[int]:
    """The strongest predictions of either run, by the larger of the two."""
    either = torch.stack(list(probabilities)).amax(0)
    return either.topk(min(TOP, len(either))).indices.tolist()


def _moved(trace: Trace, cut: Trace, position: int) -> Float[Tensor, " head"]:
    """Half the absolute change of each head's row: the share of its attention that moved."""
    rows = [
        (after[0, :, position] - before[0, :, position]).abs().sum(-1) / 2
        for before, after in zip(trace.patterns, cut.patterns, strict=True)
    ]
    return torch.cat(rows) if rows else torch.zeros(0)


def _shown(heads: Sequence[str], moved: Tensor, wanted: str | None) -> str | None:
    if wanted is not None:
        if wanted not in heads:
            raise HeadError(f"there is no head {wanted!r} in this model")
        return wanted
    return heads[int(moved.argmax())] if heads else None


def _losses(trace: Trace) -> Float[Tensor, " pos"]:
    """The loss of predicting each next token; NaN at the last position."""
    return torch.nn.functional.pad(trace_losses(trace)[0], (0, 1), value=torch.nan)


@dataclass(frozen=True, kw_only=True)
class TextsParams(TextParams):
    """The clean text, a position in it, and the corrupted text, typed or as ids.

    Without a corrupted text, one is made: the earlier copy of the token at the position is
    replaced, or the token before it if there is none. The target is `token`, by default the one
    that the clean text predicts at the position, against the one that the corrupted text predicts
    instead.
    """

    position: int
    token: int | None = None
    other_text: str | None = None
    other_ids: str | None = None


@dataclass(frozen=True, eq=False)
class TwoTexts(Record, kind="page-texts"):
    """Logit of `token` minus that of `rival` at `position` on both texts, and patched.

    `broken[i]` is the difference on the clean text with the output of `parts[i]` taken from the
    corrupted text; `restored[i]` is the difference on the corrupted text with it from the clean.
    """

    ids: tuple[int, ...]
    pieces: tuple[str, ...]
    other_ids: tuple[int, ...]
    other_pieces: tuple[str, ...]
    position: int
    token: int
    rival: int
    clean: float
    corrupted: float
    parts: tuple[str, ...]
    broken: Tensor
    restored: Tensor


def texts(session: Session, params: TextsParams) -> TwoTexts:
    """Patch every head and MLP from one text to the other, in both directions."""
    clean = session.run(params).trace
    model, ids = clean.model, tuple(clean.tokens[0].tolist())
    position = find_position(len(ids), params.position)
    corrupted = _corrupted(session, params, ids, position)
    token, rival = _tokens(clean, corrupted, position, params.token)
    parts = (
        *(str(head.id) for head in model.heads),
        *(f"mlp{layer}" for layer in range(model.config.n_layers) if model.config.mlp != "none"),
    )

    def difference(trace: Trace) -> float:
        at = trace.uncapped_logits_at(position)[0]
        return float(at[token] - at[rival])

    patched: list[tuple[float, float]] = []
    for place, part in enumerate(parts):
        session.progress(place, len(parts), f"taking {part} from one text to the other")
        patched.append(
            (
                difference(clean.patch({part: corrupted})),
                difference(corrupted.patch({part: clean})),
            )
        )
    broken, restored = torch.tensor(patched).reshape(len(parts), 2).T
    return TwoTexts(
        ids=ids,
        pieces=tuple(shown_piece(model, one) for one in ids),
        other_ids=tuple(corrupted.tokens[0].tolist()),
        other_pieces=tuple(shown_piece(model, one) for one in corrupted.tokens[0].tolist()),
        position=position,
        token=token,
        rival=rival,
        clean=difference(clean),
        corrupted=difference(corrupted),
        parts=parts,
        broken=broken,
        restored=restored,
    )


def _corrupted(session: Session, params: TextsParams, ids: tuple[int, ...], position: int) -> Trace:
    text, other = params.other_text, params.other_ids
    if text is None and other is None:
        other = ",".join(map(str, _corrupt(session.model(params), ids, position)))
    about = TextParams(model=params.model, step=params.step, text=text, ids=other)
    trace = session.run(about).trace
    length = trace.tokens.shape[1]
    if length != len(ids):
        raise InputError(
            f"the clean text has {len(ids)} tokens and the corrupted one {length}; patching needs "
            "the same number, so that every position has a partner"
        )
    return trace


def _corrupt(model: Model, ids: tuple[int, ...], position: int) -> list[int]:
    """The text with the earlier copy of a token replaced by one that does not occur.

    If the model has a tokenizer, the new token resembles the old one: letters or none, a leading
    space or none, the same length.
    """
    earlier = [place for place in range(position) if ids[place] == ids[position]]
    place = earlier[-1] if earlier else max(position - 1, 0)
    old = ids[place]
    pool = [token for token in model.token_pool().ids().tolist() if token not in ids] or [old]
    alike = [token for token in pool if _shape(model, token) == _shape(model, old)] or pool
    # Deterministic, and different for different tokens.
    return [*ids[:place], alike[old % len(alike)], *ids[place + 1 :]]


def _shape(model: Model, token: int) -> tuple[bool, bool, int] | None:
    """Whether a token has a leading space and letters, and its length; None if it has no text."""
    text = piece(model, token)
    if text is None:
        return None
    return text.startswith(" "), text.strip().isalpha(), len(text)


def _tokens(clean: Trace, corrupted: Trace, position: int, wanted: int | None) -> tuple[int, int]:
    """The target, and the best other prediction of the corrupted text."""
    best: Float[Tensor, " vocab"] = clean.logits_at(position)[0]
    token = int(best.argmax()) if wanted is None else clean.model.token_id(wanted)
    ranked = corrupted.logits_at(position)[0].argsort(descending=True).tolist()
    return token, next(other for other in ranked if other != token)
