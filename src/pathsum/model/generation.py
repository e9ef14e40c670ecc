"""Generation: a text continued token by token, with edits and a key–value cache.

Each step runs the last token only and attends to the keys and values of the others. If an edit is a
function, which may depend on all positions, each step runs all tokens again.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from pathsum.base.errors import ArgumentError, InputError
from pathsum.model.edited import edited
from pathsum.model.forward import run_logits
from pathsum.model.recording import KeyValues
from pathsum.model.sequences import OneSequence, require_causal, require_tokens_out
from pathsum.model.sites import find_hook

if TYPE_CHECKING:
    from pathsum.model.model import Model


@torch.no_grad()
def generate(
    model: "Model",
    text: OneSequence,
    n: int = 20,
    *,
    edits: Mapping[Any, Any] | None = None,
    temperature: float = 0.0,
    seed: int = 0,
) -> str:
    """Continue a text by `n` tokens: greedily or, given a temperature, by sampling.

    `edits` maps sites to their values in every step: the values of `edited` (`"zero"`, `"mean"`, a
    vector, another head's pattern) or functions, as `hooks` of `trace`. Each step runs the last
    token and reuses the keys and values of the others, except with functions, which may depend
    on all positions. Text and new tokens may not exceed the context.

    >>> from pathsum.model import construct
    >>> model = construct.induction()
    >>> model.generate("a b c a", 2)
    'a b c a b c'
    >>> model.generate("a b c a", 2, edits={"L1H0.pattern": "L0H0"})
    'a b c a c a'
    """
    require_tokens_out(model, "generating text")
    require_causal(model, "generating text")
    if n < 0:
        raise InputError(f"n={n} tokens cannot be generated; use 0 or more")
    if temperature < 0:
        raise InputError(f"temperature={temperature} is negative; use 0 for the most likely")
    ids, *extra = model.tokens(text).tolist()
    if extra:
        raise InputError(f"{1 + len(extra)} sequences were given; generate continues one")
    limit = model.config.n_ctx - len(ids)
    if n > limit:
        raise InputError(
            f"n={n} tokens after {len(ids)} exceed the context of {model.config.n_ctx}; "
            + (f"use n={limit} at most" if limit > 0 else "shorten the text")
        )
    ids = _continue(model, ids, n, edits or {}, temperature, torch.Generator().manual_seed(seed))
    start = [] if model.config.start_token is None else [model.config.start_token]
    if model.tokenizer is None:
        return " ".join(map(model.token_text, ids))
    return model.tokenizer.decode(ids[len(start) :] if ids[: len(start)] == start else ids)


def _continue(
    model: "Model",
    ids: list[int],
    n: int,
    edits: Mapping[Any, Any],
    temperature: float,
    draws: torch.Generator,
) -> list[int]:
    """The ids of a text and of n tokens after it."""
    if not isinstance(edits, Mapping):
        raise ArgumentError(f"edits is a {type(edits).__name__}; give a dict of sites and values")
    permanent = {name: value for name, value in edits.items() if not callable(value)}
    hooks = [find_hook(model, name, value) for name, value in edits.items() if callable(value)]
    if permanent:
        model = edited(model, permanent)
    past = KeyValues()
    for _ in range(n):
        if hooks:
            past = KeyValues()
        tokens = torch.tensor([ids[past.length :]], device=model.weights.device)
        logits = run_logits(model.weights, tokens, hooks, past=past)[0, -1].double().cpu()
        if temperature > 0:
            # At most 0 before the division, so that a tiny temperature does not overflow.
            probabilities = ((logits - logits.max()) / temperature).softmax(-1)
            ids = [*ids, int(torch.multinomial(probabilities, 1, generator=draws))]
        else:
            ids = [*ids, int(logits.argmax())]
    return ids
