"""`without` and `texts`: a prediction with parts ablated, or patched from another text."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from pathsum.base import Record
from pathsum.base.errors import InputError
from pathsum.explorer.answers.model import piece, shown_piece
from pathsum.explorer.answers.prediction import (
    PredictionParams,
    find_position,
    find_prediction,
)
from pathsum.explorer.answers.text import answer_run
from pathsum.explorer.params import TextParams
from pathsum.explorer.session import Session
from pathsum.model import Model, Trace
from pathsum.model.losses import trace_losses
from pathsum.paths.logit_effects import direct_parts
from pathsum.paths.patching import without
from pathsum.paths.target import Target, find_target

# The number of predictions in a list, and of heads and edges that can be switched off at once.
TOP, MAX_SWITCHES = 8, 200


@dataclass(frozen=True, kw_only=True)
class WithoutParams(PredictionParams):
    """`off` lists the ablated heads and edges (`L0H3,L0H3→L1H0.k,L0H3@4→L1H0@9.k`).

    The answer contains the pattern of `head`, by default the head whose attention changed most.
    """

    off: str
    head: str | None = None


@dataclass(frozen=True)
class Measured:
    """A prediction in one of the two runs."""

    total: float
    probability: float
    rank: int


@dataclass(frozen=True, eq=False)
class WithoutAnswer(Record, kind="page-without"):
    """A prediction before and after, with each component's direct contribution to its logit.

    `parts` are the embedding, every head, every MLP, and positions with biases. In each run they
    add up to `total`, the logit relative to its baseline. `top_ids` are the strongest predictions
    of either run. `moved[head]` is the share of a head's attention at the position that moved to
    other sources; `pattern_before` and `pattern_after` are the patterns of `head`, None for a model
    without heads. `loss_before` and `loss_after` have one entry per position.
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
    trace, position, token, versus = find_prediction(session, params)
    target = find_target(trace, position, token, versus)
    off = tuple(dict.fromkeys(part.strip() for part in params.off.split(",") if part.strip()))
    if len(off) > MAX_SWITCHES:
        raise InputError(f"{len(off)} parts are switched off; at most {MAX_SWITCHES} are allowed")
    cut = without(trace, off)
    before, after = direct_parts(trace, target), direct_parts(cut, target)
    probabilities = torch.stack([run.logits_at(position)[0].softmax(-1) for run in (trace, cut)])
    top = probabilities.amax(0).topk(min(TOP, probabilities.shape[1])).indices
    # The moved share of a head's attention is half the absolute change of its row.
    shares = [
        (after[0, :, position] - before[0, :, position]).abs().sum(-1) / 2
        for before, after in zip(trace.patterns, cut.patterns, strict=True)
    ]
    shares = torch.cat([*shares, torch.zeros(0)])
    heads = trace.model.config.every_head
    head = heads[int(shares.argmax())] if heads else None
    if params.head is not None:
        head = trace.model.head(params.head).label
    return WithoutAnswer(
        off=off,
        position=position,
        token=token,
        before=_measure(trace, target),
        after=_measure(cut, target),
        top_ids=tuple(top.tolist()),
        top_before=probabilities[0, top],
        top_after=probabilities[1, top],
        parts=tuple(before),
        parts_before=torch.tensor([*before.values()]),
        parts_after=torch.tensor([*after.values()]),
        heads=heads,
        moved=shares,
        head=head,
        pattern_before=None if head is None else trace.pattern(head)[0].half(),
        pattern_after=None if head is None else cut.pattern(head)[0].half(),
        loss_before=answer_run(session, params).loss,
        loss_after=F.pad(trace_losses(cut)[0], (0, 1), value=torch.nan),
    )


def _measure(trace: Trace, target: Target) -> Measured:
    logits = trace.logits_at(target.positions)[0]
    logit = logits[int(target.tokens[0])]
    return Measured(
        total=float(target.of_rows(trace.uncapped_logits_at(target.positions))[0]),
        probability=float(logits.softmax(-1)[int(target.tokens[0])]),
        rank=int((logits > logit).sum()) + 1,
    )


@dataclass(frozen=True, kw_only=True)
class TextsParams(TextParams):
    """The clean text, a position in it, and the corrupted text, typed or as ids.

    The default corrupted text replaces the earlier copy of the token at the position or, without
    one, the previous token. The target is the logit of `token`, by default the clean prediction,
    minus the logit of the corrupted prediction.
    """

    position: int
    token: int | None = None
    other_text: str | None = None
    other_ids: str | None = None


@dataclass(frozen=True, eq=False)
class TwoTexts(Record, kind="page-texts"):
    """Logit of `token` minus that of `rival` at `position` on both texts, and patched.

    `broken[i]` is the difference on the clean text with the output of `parts[i]` patched from the
    corrupted text; `restored[i]` is the difference with the two texts exchanged.
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
    """Patch every head and MLP from one text into the other, in both directions."""
    clean = session.run(params).trace
    model, ids = clean.model, tuple(clean.tokens[0].tolist())
    position = find_position(len(ids), params.position)
    corrupted = _corrupted(session, params, ids, position)
    other = tuple(corrupted.tokens[0].tolist())
    predicted = int(clean.logits_at(position)[0].argmax())
    token = predicted if params.token is None else model.token_id(params.token)
    ranked = corrupted.logits_at(position)[0].argsort(descending=True).tolist()
    rival = next(other for other in ranked if other != token)
    parts = (
        *(str(head.id) for head in model.heads),
        *(f"mlp{layer}" for layer in range(model.config.n_layers) if model.config.mlp != "none"),
    )

    def difference(trace: Trace) -> float:
        at = trace.uncapped_logits_at(position)[0]
        return float(at[token] - at[rival])

    broken, restored = torch.zeros(2, len(parts))
    for index, part in enumerate(parts):
        session.progress(index, len(parts), f"patching {part}")
        broken[index] = difference(clean.patch({part: corrupted}))
        restored[index] = difference(corrupted.patch({part: clean}))
    return TwoTexts(
        ids=ids,
        pieces=tuple(shown_piece(model, each) for each in ids),
        other_ids=other,
        other_pieces=tuple(shown_piece(model, each) for each in other),
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
            f"the clean text has {len(ids)} tokens and the corrupted text {length}; patching needs "
            "the same number in both, because it replaces values position by position"
        )
    return trace


def _corrupt(model: Model, ids: tuple[int, ...], position: int) -> list[int]:
    """The text with the earlier copy of a token replaced by a token that does not occur in it.

    If the model has a tokenizer, both tokens agree in length, leading space, and letters or none.
    """
    earlier = [index for index in range(position) if ids[index] == ids[position]]
    index = earlier[-1] if earlier else max(position - 1, 0)
    old = ids[index]
    pool = [token for token in model.token_pool().ids().tolist() if token not in ids] or [old]
    similar = [token for token in pool if _shape(model, token) == _shape(model, old)] or pool
    # Deterministic, but different for different tokens.
    return [*ids[:index], similar[old % len(similar)], *ids[index + 1 :]]


def _shape(model: Model, token: int) -> tuple[bool, bool, int] | None:
    """The leading space, letters and length of a token; None if it has no text."""
    text = piece(model, token)
    if text is None:
        return None
    return text.startswith(" "), text.strip().isalpha(), len(text)
