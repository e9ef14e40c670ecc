"""`texts`: one prediction on two texts, and every part of the model taken from one to the other."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.base import Record
from pathsum.base.errors import InputError
from pathsum.explorer.answers.model import piece, shown_piece
from pathsum.explorer.params import TextParams
from pathsum.explorer.workbench import Workbench
from pathsum.model import Model, Trace


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

    `broken[i]` is the difference on the clean text with what `parts[i]` wrote taken from the
    corrupted one; `restored[i]` the difference on the corrupted text with it taken from the clean.
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


def texts(bench: Workbench, params: TextsParams) -> TwoTexts:
    """Patch every head and MLP from one text to the other, in both directions."""
    clean = bench.run(params).trace
    model, ids = clean.model, tuple(clean.tokens[0].tolist())
    if not 0 <= params.position < len(ids):
        raise InputError(f"there is no position {params.position}: the text has {len(ids)} tokens")
    corrupted = _corrupted(bench, params, model, ids)
    token, rival = _tokens(clean, corrupted, params)
    parts = (
        *(str(head.id) for head in model.heads),
        *(f"mlp{layer}" for layer in range(model.config.n_layers) if model.config.mlp != "none"),
    )

    def difference(trace: Trace) -> float:
        at = trace.uncapped_logits_at(params.position)[0]
        return float(at[token] - at[rival])

    patched: list[tuple[float, float]] = []
    for place, part in enumerate(parts):
        bench.progress(place, len(parts), f"taking {part} from one text to the other")
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
        position=params.position,
        token=token,
        rival=rival,
        clean=difference(clean),
        corrupted=difference(corrupted),
        parts=parts,
        broken=broken,
        restored=restored,
    )


def _corrupted(bench: Workbench, params: TextsParams, model: Model, ids: tuple[int, ...]) -> Trace:
    text, other = params.other_text, params.other_ids
    if text is None and other is None:
        other = ",".join(map(str, _made(model, ids, params.position)))
    about = TextParams(model=params.model, step=params.step, text=text, ids=other)
    trace = bench.run(about).trace
    length = trace.tokens.shape[1]
    if length != len(ids):
        raise InputError(
            f"the clean text has {len(ids)} tokens and the corrupted one {length}; patching needs "
            "the same number, so that every position has a partner"
        )
    return trace


def _made(model: Model, ids: tuple[int, ...], position: int) -> list[int]:
    """The text with the earlier copy of a token replaced by one that does not occur.

    If the model has a tokenizer, the new token looks like the old one: letters or none, a leading
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


def _tokens(clean: Trace, corrupted: Trace, params: TextsParams) -> tuple[int, int]:
    """The target, and the best other prediction of the corrupted text."""
    at = params.position
    best: Float[Tensor, " vocab"] = clean.logits_at(at)[0]
    token = int(best.argmax()) if params.token is None else clean.model.token_id(params.token)
    ranked = corrupted.logits_at(at)[0].argsort(descending=True).tolist()
    return token, next(other for other in ranked if other != token)
