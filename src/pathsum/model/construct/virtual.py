"""Two layers: a pair of heads that acts as one, a virtual head."""

from collections.abc import Mapping, Sequence

import torch

from pathsum.errors import InputError
from pathsum.model.config import Config
from pathsum.model.construct.parts import LETTERS, Blocks, HandBuilt, with_start
from pathsum.model.model import Model


def virtual_head(
    mapping: Mapping[str, str] | None = None,
    words: Sequence[str] = LETTERS,
    *,
    n_ctx: int = 64,
    idle_heads: int = 1,
    logit: float = 10.0,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Model:
    """A two-layer model whose prediction comes from the virtual head L0H0 → L1H0 alone.

    Both heads attend one position back. L0H0 brings the token that stands there into a block that
    only L1H0 reads; L1H0 brings it one position further and turns it into a prediction. Together
    they attend two back, A[L1H0]·A[L0H0], with OV = OV[L0H0]·OV[L1H0] = `mapping` (by default each
    word predicts the next of the list). Neither head does anything alone.
    """
    vocabulary = with_start(words)
    vocab = len(vocabulary)
    token_id = {word: index for index, word in enumerate(vocabulary)}
    if mapping is None:
        mapping = {word: words[(i + 1) % len(words)] for i, word in enumerate(words)}
    for word in (*mapping.keys(), *mapping.values()):
        if word not in token_id:
            raise InputError(f"the mapping names {word!r}, which is not in the list of words")
    blocks = Blocks(token=vocab, carried=vocab, out=vocab, place=n_ctx)
    built = HandBuilt(
        Config(
            n_layers=2,
            n_heads=1 + idle_heads,
            d_model=blocks.width,
            d_head=max(n_ctx, vocab),
            d_vocab=vocab,
            n_ctx=n_ctx,
            positions="qk",
            start_token=0,
        ),
        dtype,
    )
    token, carried, out = blocks.rows("token"), blocks.rows("carried"), blocks.rows("out")
    every = torch.arange(vocab)
    built["W_E"][every, token] = 1.0
    built["W_pos"][torch.arange(n_ctx), blocks.rows("place")] = 1.0
    built["W_U"][out, every] = logit
    built.attends_one_back(0, 0, blocks.rows("place"))
    built.attends_one_back(1, 0, blocks.rows("place"))
    built.moves(0, 0, token, to=carried)
    sources = torch.tensor([token_id[word] for word in mapping])
    targets = torch.tensor([token_id[word] for word in mapping.values()])
    built.moves(1, 0, carried[sources], to=out[targets])
    built.add_idle_heads(1, seed)
    return built.model("hand-built virtual head", vocabulary)
