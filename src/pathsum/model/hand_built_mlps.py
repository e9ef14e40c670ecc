"""Hand-built models whose answer lies behind an MLP (`construct` lists all of them)."""

from collections.abc import Mapping, Sequence

import torch

from pathsum.base.arguments import checked
from pathsum.base.errors import InputError
from pathsum.model.hand_built import (
    LETTERS,
    SURE,
    Blocks,
    HandBuilt,
    prepare_layers,
    with_start,
)
from pathsum.model.model import Model

# The input of an open gate and, negated, of a closed one: silu(-20) is zero to 4e-8.
OPEN = 20.0


@checked
def memory(
    table: Mapping[str, str] | None = None,
    words: Sequence[str] = LETTERS,
    *,
    n_ctx: int = 64,
    logit: float = 10.0,
    dtype: torch.dtype = torch.float32,
) -> Model:
    """A one-layer model with a key–value memory: after a word comes its entry in a table.

    L0H0 moves the token one position back into a block of its own. mlp0 has one neuron per entry,
    ReLU(2 · key − 1): it fires for one token of that block and writes the entry. By default each
    word's entry is the next of the list. Words without an entry predict nothing.

    >>> model = memory({"france": "paris", "japan": "tokyo"}, ["france", "japan", "is", "paris"])
    >>> model.token_text(int(model("france is")[-1].argmax()))
    'paris'
    """
    if table is None:
        table = {word: words[(i + 1) % len(words)] for i, word in enumerate(words)}
    vocabulary = with_start(tuple(dict.fromkeys([*words, *table.keys(), *table.values()])))
    built, blocks = _one_layer_with_mlp(vocabulary, n_ctx, len(table), logit, dtype)
    token_id = {word: index for index, word in enumerate(vocabulary)}
    for neuron, (key, value) in enumerate(table.items()):
        built["W_in"][0, blocks.rows("previous")[token_id[key]], neuron] = 2.0
        built["b_in"][0, neuron] = -1.0
        built["W_out"][0, neuron, blocks.rows("out")[token_id[value]]] = 1.0
    return built.model("hand-built memory", vocabulary)


@checked
def conjunction(
    table: Mapping[tuple[str, str], str] | None = None,
    words: Sequence[str] = LETTERS[:6],
    *,
    n_ctx: int = 64,
    logit: float = 10.0,
    dtype: torch.dtype = torch.float32,
) -> Model:
    """A one-layer model whose prediction is a function of the last two tokens together.

    L0H0 moves the token one position back into a block of its own. mlp0 has one neuron per pair,
    ReLU(previous + current − 1), which is AND. By default the positions of the two words in the
    list are added, modulo its length.

    >>> model = conjunction({("new", "york"): "city", ("new", "wave"): "band"})
    >>> model.token_text(int(model("new york")[-1].argmax()))
    'city'
    """
    if table is None:
        n = len(words)
        table = {(words[i], words[j]): words[(i + j) % n] for i in range(n) for j in range(n)}
    named = [word for pair, out in table.items() for word in (*pair, out)]
    vocabulary = with_start(tuple(dict.fromkeys([*words, *named])))
    built, blocks = _one_layer_with_mlp(vocabulary, n_ctx, len(table), logit, dtype)
    token_id = {word: index for index, word in enumerate(vocabulary)}
    for neuron, ((first, second), value) in enumerate(table.items()):
        built["W_in"][0, blocks.rows("previous")[token_id[first]], neuron] = 1.0
        built["W_in"][0, blocks.rows("token")[token_id[second]], neuron] = 1.0
        built["b_in"][0, neuron] = -1.0
        built["W_out"][0, neuron, blocks.rows("out")[token_id[value]]] = 1.0
    return built.model("hand-built conjunction", vocabulary)


@checked
def gated_value(
    words: Sequence[str] = LETTERS,
    switch: str = "!",
    *,
    n_ctx: int = 64,
    logit: float = 10.0,
    dtype: torch.dtype = torch.float32,
) -> Model:
    """A one-layer model that predicts the previous token, if a switch occurred in the text.

    L0H0 attends to the switch and opens the gates of mlp0. L0H1 moves the token one position back,
    which is the value that the gated (SwiGLU) neurons pass on. Without the switch, L0H0 rests on
    the start token, the gates are closed, and nothing is predicted.

    >>> model = gated_value()
    >>> model.token_text(int(model("a ! b c")[-1].argmax())), float(model("a b c")[-1].max()) < 1e-4
    ('b', True)
    """
    if switch in words:
        raise InputError(f"the switch {switch!r} is one of the words; choose another one")
    vocabulary = (*with_start(words), switch)
    vocab, start = len(vocabulary), 0
    blocks = Blocks(token=vocab, previous=vocab, gate=1, out=vocab, place=n_ctx)
    built = prepare_layers(
        *(blocks, 2, max(n_ctx, 2), "qk", logit, dtype),
        n_layers=1,
        mlp="silu_gated",
        d_mlp=vocab,
    )
    token, every = blocks.rows("token"), torch.arange(vocab)
    built.query(0, 0, token, torch.zeros(vocab, dtype=torch.long), SURE)
    built.key(0, 0, token[-1:], torch.tensor([0]))
    built.rests_on(0, 0, token)
    built.moves(0, 0, token[-1:], to=blocks.rows("gate"))
    built.attends_one_back(0, 1, blocks.rows("place"))
    built.moves(0, 1, token, to=blocks.rows("previous"))
    built["W_in"][0, blocks.rows("previous"), every] = 1.0 / OPEN
    built["W_in"][0, :, start] = 0.0
    built["W_gate"][0, blocks.rows("gate")] = 2 * OPEN
    built["b_gate"][0] = -OPEN
    built["W_out"][0, every, blocks.rows("out")] = 1.0
    return built.model("hand-built gated value", vocabulary)


def _one_layer_with_mlp(
    vocabulary: Sequence[str], n_ctx: int, neurons: int, logit: float, dtype: torch.dtype
) -> tuple[HandBuilt, Blocks]:
    """A previous-token head that writes to the block `previous`, and ReLU neurons to fill in."""
    vocab = len(vocabulary)
    blocks = Blocks(token=vocab, previous=vocab, out=vocab, place=n_ctx)
    built = prepare_layers(
        *(blocks, 1, max(n_ctx, vocab), "qk", logit, dtype),
        n_layers=1,
        mlp="relu",
        d_mlp=max(1, neurons),
    )
    built.attends_one_back(0, 0, blocks.rows("place"))
    built.moves(0, 0, blocks.rows("token"), to=blocks.rows("previous"))
    return built, blocks
