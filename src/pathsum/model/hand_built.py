"""Parts of hand-built models: blocks of the residual stream, tensors to fill in, a vocabulary."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pathsum.algebra.rotations import seeded
from pathsum.base.errors import ConfigError, InputError
from pathsum.model.config import Config, Mlp, Positions
from pathsum.model.make import from_tensors
from pathsum.model.model import Model
from pathsum.text import Tokenizer

START = "<s>"
LETTERS = tuple("abcdefghijklmnopqrstuvwxyz")

# A score that wins a softmax over a few hundred others; half of it is where a head rests when
# nothing matches. e^-20 is what leaks to either side.
SURE = 40.0


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
    """Stacked tensors of zeros to be filled in, and the model they make."""

    def __init__(self, config: Config, dtype: torch.dtype) -> None:
        layers, heads, d, k = config.n_layers, config.n_heads, config.d_model, config.d_head
        self.config = config
        self.tensors = {
            "W_E": torch.zeros(config.d_vocab, d, dtype=dtype),
            "W_Q": torch.zeros(layers, heads, d, k, dtype=dtype),
            "W_K": torch.zeros(layers, heads, d, k, dtype=dtype),
            "W_V": torch.zeros(layers, heads, d, k, dtype=dtype),
            "W_O": torch.zeros(layers, heads, k, d, dtype=dtype),
            "W_U": torch.zeros(d, config.d_vocab, dtype=dtype),
        }
        if config.positions in ("qk", "residual"):
            self.tensors["W_pos"] = torch.zeros(config.n_ctx, d, dtype=dtype)
        if config.mlp != "none":
            m = config.d_mlp
            self.tensors["W_in"] = torch.zeros(layers, d, m, dtype=dtype)
            self.tensors["b_in"] = torch.zeros(layers, m, dtype=dtype)
            self.tensors["W_out"] = torch.zeros(layers, m, d, dtype=dtype)
        if config.gated:
            self.tensors["W_gate"] = torch.zeros(layers, d, config.d_mlp, dtype=dtype)
            self.tensors["b_gate"] = torch.zeros(layers, config.d_mlp, dtype=dtype)

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def query(self, layer: int, head: int, rows: Tensor, columns: Tensor, score: float) -> None:
        """Queries: stream dimensions `rows` in `columns`; a matching key scores `score`."""
        self["W_Q"][layer, head, rows, columns] = score / self.config.score_scale

    def key(self, layer: int, head: int, rows: Tensor, columns: Tensor) -> None:
        """Keys: stream dimensions `rows` in `columns`."""
        self["W_K"][layer, head, rows, columns] = 1.0

    def moves(self, layer: int, head: int, rows: Tensor, to: Tensor) -> None:
        """Values: dimensions `rows` at the source are written to `to`, one to one."""
        columns = torch.arange(len(rows))
        self["W_V"][layer, head, rows, columns] = 1.0
        self["W_O"][layer, head, columns, to] = 1.0

    def rests_on(self, layer: int, head: int, token: Tensor) -> None:
        """Where nothing matches, attend to the start token (0), through the head's last column."""
        last = torch.tensor([self.config.d_head - 1])
        self.query(layer, head, token, last.expand(len(token)), SURE / 2)
        self.key(layer, head, token[:1], last)

    def attends_one_back(self, layer: int, head: int, place: Tensor) -> None:
        """Attend to the position before; `place` are the one-hot dimensions of positions."""
        every = torch.arange(len(place))
        self.query(layer, head, place[1:], every[:-1], SURE)
        self.key(layer, head, place, every)

    def add_idle_heads(self, seed: int) -> None:
        """Give every head but the first of each layer small random weights.

        They do nothing, and compose with others by chance: composition scores ignore a head's size.
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
    """Layers whose embeddings fill the blocks `token` and `place`; logits read `out`."""
    token, out, place = blocks.rows("token"), blocks.rows("out"), blocks.rows("place")
    vocab, n_ctx = len(token), len(place)
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
    built = HandBuilt(config, dtype)
    built["W_E"][torch.arange(vocab), token] = 1.0
    built["W_pos"][torch.arange(n_ctx), place] = 1.0
    built["W_U"][out, torch.arange(vocab)] = float(logit)
    return built


def with_start(words: Sequence[str]) -> tuple[str, ...]:
    """The vocabulary: the start token, then the words."""
    if START in words:
        raise InputError(f"{START!r} is the start token's own text; choose other words")
    if not words:
        raise InputError("a model needs at least one word besides the start token")
    return (START, *words)
