"""A one-layer model that implements a list of skip-trigrams."""

from collections.abc import Sequence

import torch

from pathsum.errors import InputError
from pathsum.model.config import Config
from pathsum.model.construct.parts import SURE, Blocks, HandBuilt, with_start
from pathsum.model.model import Model

Triple = tuple[str, str, str]


def skip_trigrams(
    triples: Sequence[Triple],
    words: Sequence[str] = (),
    *,
    n_heads: int | None = None,
    n_ctx: int = 64,
    effect: float = 10.0,
    dtype: torch.dtype = torch.float32,
) -> Model:
    """A one-layer model that knows exactly the given `(source, destination, out)` triples.

    At the destination a head attends to the source, if it occurred before, and raises the
    logit of `out` by `effect`; otherwise it rests on the start token and nothing happens.

    A head scores f₁(destination, source) · f₂(source, out), so triples of one source that differ
    in both destination and out cannot share a head without forcing the cross terms too. They are
    spread over as many heads as that takes. With fewer heads (`n_heads=1`) they share heads, and
    the model has the paper's bugs.

    >>> model = skip_trigrams([("keep", "in", "mind"), ("keep", "at", "bay")])
    >>> model.config.n_heads
    2
    """
    groups = _heads_needed(triples)
    total = n_heads or len(groups)
    if total < 1:
        raise InputError("the list of triples is empty; give at least one")
    merged: list[list[Triple]] = [[] for _ in range(total)]
    for index, group in enumerate(groups):
        merged[index % total] += group
    named = [word for triple in triples for word in triple]
    vocabulary = with_start(tuple(dict.fromkeys([*words, *named])))
    token_id = {word: index for index, word in enumerate(vocabulary)}
    vocab = len(vocabulary)
    sources = max(len({source for source, _, _ in group}) for group in merged)
    blocks = Blocks(token=vocab, out=vocab)
    config = Config(
        n_layers=1,
        n_heads=total,
        d_model=blocks.width,
        d_head=sources + 1,
        d_vocab=vocab,
        n_ctx=n_ctx,
        positions="none",
        start_token=0,
    )
    built = HandBuilt(config, dtype)
    token, out = blocks.rows("token"), blocks.rows("out")
    built["W_E"][torch.arange(vocab), token] = 1.0
    built["W_U"][out, torch.arange(vocab)] = 1.0
    for head, group in enumerate(merged):
        built.rests_on(0, head, token, start=0, score=SURE / 2)
        column = {word: i for i, word in enumerate(dict.fromkeys(s for s, _, _ in group))}
        for source, destination, raised in group:
            at = torch.tensor([column[source]])
            here, there = token[token_id[source]], token[token_id[destination]]
            built.query(0, head, there[None], at, SURE)
            built.key(0, head, here[None], at)
            built["W_V"][0, head, here, at] = 1.0
            built["W_O"][0, head, at, out[token_id[raised]]] = effect
    return built.model("hand-built skip-trigrams", vocabulary)


def _heads_needed(triples: Sequence[Triple]) -> list[list[Triple]]:
    """Triples by head, so that no head is forced to know one that is not listed."""
    raised_by: dict[str, dict[str, list[str]]] = {}
    for source, destination, out in dict.fromkeys(triples):
        raised_by.setdefault(source, {}).setdefault(out, []).append(destination)
    heads: list[list[Triple]] = []
    for source, outs in raised_by.items():
        # Outs that share all their destinations make a full rectangle and can share a head.
        rectangles: dict[frozenset[str], list[str]] = {}
        for out, destinations in outs.items():
            rectangles.setdefault(frozenset(destinations), []).append(out)
        for index, (destinations, together) in enumerate(rectangles.items()):
            if index == len(heads):
                heads.append([])
            heads[index] += [(source, d, out) for out in together for d in sorted(destinations)]
    return heads
