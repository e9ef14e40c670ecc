"""Parts of hand-built models: blocks of the residual stream, tensors to fill in, a vocabulary.

Also the models whose prediction goes through an MLP; `construct` lists all of them.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from pathsum.algebra.rotations import seeded
from pathsum.base.errors import ConfigError, InputError
from pathsum.base.options import checked
from pathsum.model.config import Config, Mlp, Positions
from pathsum.model.make import from_tensors
from pathsum.model.model import Model
from pathsum.model.weights import layer_shapes, model_shapes, required_in_layer
from pathsum.text import Tokenizer

START = "<s>"
LETTERS = tuple("abcdefghijklmnopqrstuvwxyz")

# A score that dominates a softmax over a few hundred others; half of it is the score of the start
# token, where a head rests without a match. The leakage to either side is e^-20.
MATCH_SCORE = 40.0


class Blocks:
    """The residual stream divided into named blocks.

    >>> blocks = Blocks(token=3, out=3)
    >>> blocks.width, blocks.rows("out")
    (6, tensor([3, 4, 5]))
    """

    def __init__(self, **sizes: int) -> None:
        for name, size in sizes.items():
            if not size >= 1:
                raise ConfigError(f"{name} has size {size}; sizes are at least 1")
        self.width = sum(sizes.values())
        blocks = torch.arange(self.width).split(list(sizes.values()))
        self._rows = dict(zip(sizes, blocks, strict=True))

    def rows(self, name: str) -> Tensor:
        """The dimensions of a block."""
        return self._rows[name]


class HandBuilt:
    """The stacked tensors of a model, zero until they are filled in."""

    def __init__(self, config: Config, dtype: torch.dtype) -> None:
        self.config = config
        stacked = {
            name: (config.n_layers, *shape)
            for name, shape in layer_shapes(config).items()
            if name in (*required_in_layer(config), "b_in", "b_gate")
        }
        shapes = model_shapes(config) | stacked
        del shapes["b_U"]
        self.tensors = {name: torch.zeros(shape, dtype=dtype) for name, shape in shapes.items()}

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def query(self, layer: int, head: int, rows: Tensor, columns: Tensor, score: float) -> None:
        """Queries: stream dimensions `rows` in `columns`; a matching key scores `score`."""
        self["W_Q"][layer, head, rows, columns] = score / self.config.score_scale

    def key(self, layer: int, head: int, rows: Tensor, columns: Tensor) -> None:
        """Keys: stream dimensions `rows` in `columns`."""
        self["W_K"][layer, head, rows, columns] = 1.0

    def move(self, layer: int, head: int, rows: Tensor, to: Tensor) -> None:
        """Values: dimensions `rows` at the source are written to `to`, one to one."""
        columns = torch.arange(len(rows))
        self["W_V"][layer, head, rows, columns] = 1.0
        self["W_O"][layer, head, columns, to] = 1.0

    def rest_on_start(self, layer: int, head: int, token: Tensor) -> None:
        """Without a match, attend to the start token (0), through the head's last column."""
        last = torch.tensor([self.config.d_head - 1])
        self.query(layer, head, token, last.expand(len(token)), MATCH_SCORE / 2)
        self.key(layer, head, token[:1], last)

    def attend_one_back(self, layer: int, head: int, position: Tensor) -> None:
        """Attend to the previous position; `position` are the one-hot dimensions of positions."""
        columns = torch.arange(len(position))
        self.query(layer, head, position[1:], columns[:-1], MATCH_SCORE)
        self.key(layer, head, position, columns)

    def add_idle_heads(self, seed: int) -> None:
        """Give every head but the first of each layer small random weights.

        Their outputs are negligible, but they compose with others by chance: composition scores
        ignore a head's size.
        """
        for layer in range(self.config.n_layers):
            for head in range(1, self.config.n_heads):
                generator = seeded(seed * 10_007 + layer * 101 + head)
                for name, std in (("W_Q", 0.02), ("W_K", 0.02), ("W_V", 0.02), ("W_O", 1e-4)):
                    tensor = self[name][layer, head]
                    noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
                    tensor.copy_(noise.to(tensor.dtype) * std)

    def model(self, name: str, words: Sequence[str]) -> Model:
        """The finished model, with a tokenizer of its words."""
        return from_tensors(
            self.config, self.tensors, name=name, tokenizer=Tokenizer.of_words(words)
        )


def prepare_layers(
    blocks: Blocks,
    n_heads: int,
    d_head: int,
    positions: Positions,
    logit: float,
    dtype: torch.dtype,
    *,
    n_layers: int = 2,
    mlp: Mlp = "none",
    d_mlp: int = 0,
) -> HandBuilt:
    """Layers whose embeddings fill the blocks `token` and `position`; logits read `out`."""
    token, out, position = blocks.rows("token"), blocks.rows("out"), blocks.rows("position")
    vocab, n_ctx = len(token), len(position)
    config = Config(
        n_layers=n_layers,
        n_heads=n_heads,
        d_model=blocks.width,
        d_head=d_head,
        d_vocab=vocab,
        n_ctx=n_ctx,
        positions=positions,
        mlp=mlp,
        d_mlp=d_mlp,
        start_token=0,
    )
    if not abs(logit) <= torch.finfo(dtype).max:
        raise ConfigError(f"logit={logit} is out of range: it does not fit {dtype}")
    parts = HandBuilt(config, dtype)
    parts["W_E"][torch.arange(vocab), token] = 1.0
    parts["W_pos"][torch.arange(n_ctx), position] = 1.0
    parts["W_U"][out, torch.arange(vocab)] = float(logit)
    return parts


def with_start(words: Sequence[str]) -> tuple[str, ...]:
    """The vocabulary: the start token, then the words."""
    if START in words:
        raise InputError(f"{START!r} is the start token's own text; choose other words")
    if not words:
        raise InputError("a model needs at least one word besides the start token")
    return (START, *words)


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

    L0H0 copies the previous token into a separate block. mlp0 has one neuron per entry,
    ReLU(2 · key − 1): it fires for one token of that block and writes the entry. By default each
    word's entry is the next of the list. Words without an entry predict nothing.

    >>> model = memory({"france": "paris", "japan": "tokyo"}, ["france", "japan", "is", "paris"])
    >>> model.token_text(int(model("france is")[-1].argmax()))
    'paris'
    """
    if table is None:
        table = {word: words[(i + 1) % len(words)] for i, word in enumerate(words)}
    vocabulary = with_start(tuple(dict.fromkeys([*words, *table.keys(), *table.values()])))
    parts, blocks = _one_layer_with_mlp(vocabulary, n_ctx, len(table), logit, dtype)
    token_id = {word: index for index, word in enumerate(vocabulary)}
    for neuron, (key, value) in enumerate(table.items()):
        parts["W_in"][0, blocks.rows("previous")[token_id[key]], neuron] = 2.0
        parts["b_in"][0, neuron] = -1.0
        parts["W_out"][0, neuron, blocks.rows("out")[token_id[value]]] = 1.0
    return parts.model("hand-built memory", vocabulary)


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

    L0H0 copies the previous token into a separate block. mlp0 has one neuron per pair,
    ReLU(previous + current − 1), which is AND. By default the positions of the two words in the
    list are added, modulo its length.

    >>> model = conjunction({("new", "york"): "city", ("new", "wave"): "band"})
    >>> model.token_text(int(model("new york")[-1].argmax()))
    'city'
    """
    if table is None:
        n = len(words)
        table = {(words[i], words[j]): words[(i + j) % n] for i in range(n) for j in range(n)}
    tokens = [word for pair, out in table.items() for word in (*pair, out)]
    vocabulary = with_start(tuple(dict.fromkeys([*words, *tokens])))
    parts, blocks = _one_layer_with_mlp(vocabulary, n_ctx, len(table), logit, dtype)
    token_id = {word: index for index, word in enumerate(vocabulary)}
    for neuron, ((first, second), value) in enumerate(table.items()):
        parts["W_in"][0, blocks.rows("previous")[token_id[first]], neuron] = 1.0
        parts["W_in"][0, blocks.rows("token")[token_id[second]], neuron] = 1.0
        parts["b_in"][0, neuron] = -1.0
        parts["W_out"][0, neuron, blocks.rows("out")[token_id[value]]] = 1.0
    return parts.model("hand-built conjunction", vocabulary)


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
    blocks = Blocks(token=vocab, previous=vocab, gate=1, out=vocab, position=n_ctx)
    parts = prepare_layers(
        *(blocks, 2, max(n_ctx, 2), "qk", logit, dtype),
        n_layers=1,
        mlp="silu_gated",
        d_mlp=vocab,
    )
    token, columns = blocks.rows("token"), torch.arange(vocab)
    parts.query(0, 0, token, torch.zeros(vocab, dtype=torch.long), MATCH_SCORE)
    parts.key(0, 0, token[-1:], torch.tensor([0]))
    parts.rest_on_start(0, 0, token)
    parts.move(0, 0, token[-1:], to=blocks.rows("gate"))
    parts.attend_one_back(0, 1, blocks.rows("position"))
    parts.move(0, 1, token, to=blocks.rows("previous"))
    parts["W_in"][0, blocks.rows("previous"), columns] = 1.0 / OPEN
    parts["W_in"][0, :, start] = 0.0
    parts["W_gate"][0, blocks.rows("gate")] = 2 * OPEN
    parts["b_gate"][0] = -OPEN
    parts["W_out"][0, columns, blocks.rows("out")] = 1.0
    return parts.model("hand-built gated value", vocabulary)


def _one_layer_with_mlp(
    vocabulary: Sequence[str], n_ctx: int, neurons: int, logit: float, dtype: torch.dtype
) -> tuple[HandBuilt, Blocks]:
    """A previous-token head that writes to the block `previous`, and ReLU neurons to fill in."""
    vocab = len(vocabulary)
    blocks = Blocks(token=vocab, previous=vocab, out=vocab, position=n_ctx)
    parts = prepare_layers(
        *(blocks, 1, max(n_ctx, vocab), "qk", logit, dtype),
        n_layers=1,
        mlp="relu",
        d_mlp=max(1, neurons),
    )
    parts.attend_one_back(0, 0, blocks.rows("position"))
    parts.move(0, 0, blocks.rows("token"), to=blocks.rows("previous"))
    return parts, blocks
