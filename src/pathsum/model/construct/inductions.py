"""Two layers: induction, `[a][b] … [a] → [b]`, by either of its two mechanisms."""

from collections.abc import Sequence

import torch

from pathsum.model.config import Config
from pathsum.model.construct.parts import LETTERS, SURE, Blocks, HandBuilt, with_start
from pathsum.model.model import Model


def induction(
    words: Sequence[str] = LETTERS,
    *,
    n_ctx: int = 64,
    idle_heads: int = 1,
    logit: float = 10.0,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Model:
    """A two-layer model with a previous-token head L0H0 and an induction head L1H0.

    L0H0 attends to the position before (positions enter Q and K only) and writes that
    token into a block of its own. The query of L1H0 matches its own token **in that block**: this
    is K-composition. So it attends to the token that followed last time, and copies it. Without a
    match it rests on the start token. Each layer has `idle_heads` more heads with small random
    weights.

    >>> induction()(induction().tokens("a b c a"))[0, -1].argmax()  # after "a" came "b"
    tensor(2)
    """
    vocabulary = with_start(words)
    vocab = len(vocabulary)
    blocks = Blocks(token=vocab, previous=vocab, out=vocab, place=n_ctx)
    built = HandBuilt(
        Config(
            n_layers=2,
            n_heads=1 + idle_heads,
            d_model=blocks.width,
            d_head=max(n_ctx, vocab + 1),
            d_vocab=vocab,
            n_ctx=n_ctx,
            positions="qk",
            start_token=0,
        ),
        dtype,
    )
    token, previous, out = blocks.rows("token"), blocks.rows("previous"), blocks.rows("out")
    place, every = blocks.rows("place"), torch.arange(vocab)
    built["W_E"][every, token] = 1.0
    built["W_pos"][torch.arange(n_ctx), place] = 1.0
    built["W_U"][out, every] = logit
    built.attends_one_back(0, 0, place)
    built.moves(0, 0, token, to=previous)
    built.query(1, 0, token, every, SURE)
    built.key(1, 0, previous, every)
    built.rests_on(1, 0, token, start=0, score=SURE / 2)
    built.moves(1, 0, token, to=out)
    built.add_idle_heads(1, seed)
    return built.model("hand-built induction", vocabulary)


def induction_by_q(
    words: Sequence[str] = LETTERS,
    *,
    n_ctx: int = 64,
    idle_heads: int = 1,
    logit: float = 10.0,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Model:
    """A two-layer model that reaches induction by Q-composition: pointer arithmetic.

    Positions are in the residual stream. L0H0 attends to earlier copies of its own token and
    writes their **positions**. L1H0's query takes that pointer, adds one, and its key is the plain
    position; so it attends to what followed, and copies it. No previous-token head is needed.
    """
    vocabulary = with_start(words)
    vocab = len(vocabulary)
    blocks = Blocks(token=vocab, out=vocab, place=n_ctx, pointer=n_ctx)
    built = HandBuilt(
        Config(
            n_layers=2,
            n_heads=1 + idle_heads,
            d_model=blocks.width,
            d_head=vocab + n_ctx + 1,
            d_vocab=vocab,
            n_ctx=n_ctx,
            positions="residual",
            start_token=0,
        ),
        dtype,
    )
    token, out = blocks.rows("token"), blocks.rows("out")
    place, pointer = blocks.rows("place"), blocks.rows("pointer")
    every = torch.arange(vocab)
    built["W_E"][every, token] = 1.0
    built["W_pos"][torch.arange(n_ctx), place] = 1.0
    built["W_U"][out, every] = logit
    # The same token, but not the position itself: its own position cancels the match.
    built.query(0, 0, token, every, SURE)
    built.key(0, 0, token, every)
    here = vocab + torch.arange(n_ctx)
    built.query(0, 0, place, here, -SURE)
    built.key(0, 0, place, here)
    built.rests_on(0, 0, token, start=0, score=SURE / 2)
    # The start token's position is not moved: resting there must leave no pointer.
    built.moves(0, 0, place[1:], to=pointer[1:])
    # With m earlier copies each pointer has weight 1/m, so 1/n_ctx of the score must suffice.
    built.query(1, 0, pointer[:-1], torch.arange(1, n_ctx), SURE * n_ctx)
    built.key(1, 0, place, torch.arange(n_ctx))
    built.rests_on(1, 0, token, start=0, score=SURE / 2)
    built.moves(1, 0, token, to=out)
    built.add_idle_heads(1, seed)
    return built.model("hand-built induction by Q-composition", vocabulary)
