"""`Network`: the transformer as a trainable module, the same function as `pathsum.model`.

The queries, keys and values of all heads are one parameter and one matrix product; two products if
positions enter Q and K, because values then have another input. `to_model` returns the `Model` that
computes the same logits.

`causal_attention` makes training in bfloat16 on CPUs fast. The patterns of short contexts fit into
memory, so the backward pass consists of six plain products at the full rate of the matrix units.
PyTorch's fused kernel recomputes patterns and, in bfloat16, is slower.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from pathsum.algebra.rotations import seeded
from pathsum.base.errors import ConfigError
from pathsum.base.shapes import Logits, Stream, Tokens
from pathsum.model import Config, Model, from_tensors
from pathsum.model.activations import activation
from pathsum.model.rotary import rotate
from pathsum.text import Tokenizer
from pathsum.training.recipe import Start

# Longer contexts use PyTorch's fused attention, which does not store patterns.
MAX_CONTEXT = 512
_BLOCK = 128


class Network(nn.Module):
    """A transformer without biases and soft caps, with random initial weights."""

    def __init__(self, config: Config, start: Start, seed: int) -> None:
        super().__init__()
        if not config.causal:
            raise ConfigError(
                "causal=False cannot be trained: the target of each position is its next token, "
                "which the model would attend to; use causal=True"
            )
        self.config, self.start = config, start
        generator = seeded(seed)

        def draw(shape: tuple[int, ...], std: float) -> nn.Parameter:
            return nn.Parameter(torch.randn(shape, generator=generator) * std)

        d, vocab = config.d_model, config.d_vocab
        self.W_E = draw((vocab, d), start.embedding_std)
        if not config.tied:
            self.W_U = draw((d, vocab), start.unembedding_std * d**-0.5)
        table = sinusoid(config.n_ctx, d) * start.position_amplitude
        self.shares_table = config.positions == "residual" or (
            config.positions == "qk" and start.position_tables == "shared" and config.n_layers > 0
        )
        if self.shares_table:
            self.W_pos = nn.Parameter(table)
        table_per_layer = config.positions == "qk" and not self.shares_table
        self.layers = nn.ModuleList(
            Layer(
                config,
                start,
                draw,
                table if table_per_layer else None,
                position_scale(start, layer),
            )
            for layer in range(config.n_layers)
        )
        if config.norm != "none":
            self.ln_f_w = nn.Parameter(torch.ones(d))
        if config.norm == "layer":
            self.ln_f_b = nn.Parameter(torch.zeros(d))

    def forward(self, tokens: Tokens, targets: Tokens) -> Float[Tensor, ""]:
        """The mean loss over all targets."""
        return F.cross_entropy(self.logits(tokens).flatten(0, 1), targets.flatten())

    def logits(self, tokens: Tokens) -> Logits:
        """Logits at every position."""
        stream = F.embedding(tokens, self.W_E)
        shared: Tensor | None = self.W_pos[: tokens.shape[1]] if self.shares_table else None
        if shared is not None and self.config.positions == "residual":
            stream, shared = stream + shared, None
        for layer in self.layers:
            stream = layer(stream, shared)
        read = normalized(self.config, stream, self, "ln_f")
        return read @ (self.W_E.mT if self.config.tied else self.W_U)

    @torch.no_grad()
    def to_model(
        self,
        name: str = "training",
        tokenizer: Tokenizer | None = None,
        token_counts: Tensor | None = None,
    ) -> Model:
        """A `Model` with a copy of these weights."""
        tensors: dict[str, Tensor] = {
            key: value for key, value in self.named_parameters() if "." not in key
        }
        layers = [self.layer_tensors(layer) for layer in range(self.config.n_layers)]
        if self.config.positions == "qk":
            tensors.pop("W_pos", None)
        for key in layers[0] if layers else ():
            tensors[key] = torch.stack([each[key] for each in layers])
        copies = {
            key: value.detach().to("cpu", torch.float32, copy=True).contiguous()
            for key, value in tensors.items()
        }
        return from_tensors(
            self.config, copies, name=name, tokenizer=tokenizer, token_counts=token_counts
        )

    def layer_tensors(self, layer: int) -> dict[str, Tensor]:
        """The tensors of a layer, with the names of the paper."""
        config = self.config
        tensors: dict[str, Tensor] = dict(self.layers[layer].named_parameters())
        packed = tensors.pop("W_QKV").unflatten(1, (-1, config.d_head)).transpose(0, 1)
        kv = config.n_kv_heads
        tensors["W_Q"], tensors["W_K"], tensors["W_V"] = packed.split((config.n_heads, kv, kv))
        tensors["W_O"] = tensors["W_O"].unflatten(0, (config.n_heads, config.d_head))
        if config.positions == "qk":
            table = self.W_pos if self.shares_table else tensors["W_pos"]
            tensors["W_pos"] = table * position_scale(self.start, layer)
        return tensors


class Layer(nn.Module):
    """The heads and, if the config has one, the MLP of a layer."""

    def __init__(
        self,
        config: Config,
        start: Start,
        draw: Callable[[tuple[int, ...], float], nn.Parameter],
        table: Float[Tensor, "ctx d"] | None,
        scale: float,
    ) -> None:
        super().__init__()
        self.config, self.scale = config, scale
        self.stores_patterns = (
            config.positions != "rotary" and config.qk_norm == "none" and config.heads_per_kv == 1
        )
        d, k, m = config.d_model, config.d_head, config.d_mlp
        self.n_positional = (config.n_heads + config.n_kv_heads) * k
        self.W_QKV = draw((d, self.n_positional + config.n_kv_heads * k), d**-0.5)
        self.W_O = draw((config.n_heads * k, d), (config.n_heads * k) ** -0.5)
        self.W_pos = None if table is None else nn.Parameter(table.clone())
        if config.mlp != "none":
            self.W_in = draw((d, m), d**-0.5)
            self.W_out = draw((m, d), m**-0.5)
        if config.gated:
            self.W_gate = draw((d, m), d**-0.5)
        norms = ("ln1", "ln2") if config.mlp != "none" else ("ln1",)
        for norm in norms if config.norm != "none" else ():
            gain = start.attention_gain if norm == "ln1" else 1.0
            self.register_parameter(f"{norm}_w", nn.Parameter(torch.full((d,), gain)))
            if config.norm == "layer":
                self.register_parameter(f"{norm}_b", nn.Parameter(torch.zeros(d)))
        if config.qk_norm != "none":
            self.q_norm_w = nn.Parameter(torch.ones(k))
            self.k_norm_w = nn.Parameter(torch.ones(k))

    def forward(self, stream: Stream, shared: Float[Tensor, "pos d"] | None) -> Stream:
        """The stream after this layer."""
        attended = stream + self.attention(normalized(self.config, stream, self, "ln1"), shared)
        if self.config.mlp == "none":
            return attended
        source = stream if self.config.block == "parallel" else attended
        return attended + self.mlp(normalized(self.config, source, self, "ln2"))

    def attention(self, read: Stream, shared: Float[Tensor, "pos d"] | None) -> Stream:
        """The output of the heads."""
        config, length = self.config, read.shape[1]
        table = shared if self.W_pos is None else self.W_pos[:length]
        if table is None:
            packed = read @ self.W_QKV
        else:
            W_QK, W_V = self.W_QKV.tensor_split((self.n_positional,), dim=-1)
            packed = torch.cat(((read + table * self.scale) @ W_QK, read @ W_V), dim=-1)
        if self.stores_patterns and length <= MAX_CONTEXT and packed.device.type == "cpu":
            return causal_attention(packed, config.d_head, config.score_scale) @ self.W_O
        heads = packed.unflatten(-1, (-1, config.d_head)).transpose(1, 2)
        kv = config.n_kv_heads
        query, key, value = heads.split((config.n_heads, kv, kv), dim=1)
        if config.qk_norm != "none":
            query = F.rms_norm(query, query.shape[-1:], self.q_norm_w, config.norm_eps)
            key = F.rms_norm(key, key.shape[-1:], self.k_norm_w, config.norm_eps)
        if config.positions == "rotary":
            positions = torch.arange(length, device=read.device)
            query, key = rotate(config, query, positions), rotate(config, key, positions)
        z = F.scaled_dot_product_attention(
            query,
            key,
            value,
            is_causal=True,
            scale=config.score_scale,
            enable_gqa=config.heads_per_kv > 1,
        )
        return z.transpose(1, 2).flatten(2) @ self.W_O

    def mlp(self, read: Stream) -> Stream:
        """The output of the MLP."""
        before = read @ self.W_in
        if self.config.gated:
            return (activation(self.config, read @ self.W_gate) * before) @ self.W_out
        return activation(self.config, before) @ self.W_out


def normalized(config: Config, x: Stream, owner: nn.Module, norm: str) -> Stream:
    """The stream, normalized with `owner`'s parameters `{norm}_w` and `{norm}_b`."""
    if config.norm == "none":
        return x
    gain: Tensor = getattr(owner, f"{norm}_w")
    if config.norm == "rms":
        return F.rms_norm(x, x.shape[-1:], gain, config.norm_eps)
    return F.layer_norm(x, x.shape[-1:], gain, getattr(owner, f"{norm}_b"), config.norm_eps)


def position_scale(start: Start, layer: int) -> float:
    """The factor on a layer's position table."""
    return 1.0 if layer == 0 else start.later_position_scale


def sinusoid(n_ctx: int, d: int) -> Float[Tensor, "ctx d"]:
    """Sines and cosines of amplitude 1, from 0.75 π radians per position to one per context.

    The highest frequency is below π, so that the angle between neighbors is unambiguous for a
    previous-token head.
    """
    planes = torch.arange(0, d, 2, dtype=torch.float64)
    frequencies = 0.75 * math.pi * max(n_ctx / 2, 1.0) ** (-planes / d)
    angles = torch.arange(n_ctx, dtype=torch.float64)[:, None] * frequencies
    return torch.stack((angles.sin(), angles.cos()), -1).flatten(1)[:, :d].float()


def causal_attention(
    packed: Float[Tensor, "batch pos n"], d_head: int, scale: float
) -> Float[Tensor, "batch pos z"]:
    """softmax(scale · Q Kᵀ) V of every head; packed is [Q, K, V], with as many K, V as Q heads.

    Blocks of queries are multiplied with the keys up to the end of the block, which skips most of
    the masked cells.

    >>> packed = torch.tensor([[[0.0, 0.0, 1.0], [0.0, 0.0, 3.0]]])  # one head of one dimension
    >>> causal_attention(packed, d_head=1, scale=1.0).flatten().tolist()
    [1.0, 2.0]
    """
    return _CausalAttention.apply(packed, d_head, scale)


class _CausalAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, packed: Tensor, d_head: int, scale: float) -> Tensor:
        batch, length, _ = packed.shape
        # One copy for all three: [3, batch · head, pos, d_head].
        heads = packed.view(batch, length, 3, -1, d_head).permute(2, 0, 3, 1, 4).contiguous()
        query, key, value = heads.flatten(1, 2)
        z = torch.empty_like(query)
        patterns: list[Tensor] = []
        with torch.autocast(packed.device.type, enabled=False):
            for start, end in _blocks(length):
                future = packed.new_full((end - start, end), -torch.inf).triu(start + 1)
                scores = torch.baddbmm(future, query[:, start:end], key[:, :end].mT, alpha=scale)
                patterns.append(scores.softmax(-1))
                torch.bmm(patterns[-1], value[:, :end], out=z[:, start:end])
        ctx.save_for_backward(heads, *patterns)
        ctx.scale = scale
        return z.view(batch, -1, length, d_head).transpose(1, 2).flatten(2)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None, None]:
        heads, *patterns = ctx.saved_tensors
        batch, length, d_head = heads.shape[1], heads.shape[3], heads.shape[4]
        query, key, value = heads.flatten(1, 2)
        to_z = outer[0].view(batch, length, -1, d_head).transpose(1, 2).contiguous().flatten(0, 1)
        gradient = torch.zeros_like(heads)
        to_query, to_key, to_value = gradient.flatten(1, 2)
        # The function that autograd itself calls, which has no public name.
        softmax_backward = torch.ops.aten._softmax_backward_data  # noqa: SLF001
        for (start, end), pattern in zip(_blocks(length), patterns, strict=True):
            to_pattern = torch.bmm(to_z[:, start:end], value[:, :end].mT)
            to_scores = softmax_backward(to_pattern, pattern, -1, pattern.dtype)
            torch.bmm(to_scores, key[:, :end], out=to_query[:, start:end])
            to_value[:, :end].baddbmm_(pattern.mT, to_z[:, start:end])
            to_key[:, :end].baddbmm_(to_scores.mT, query[:, start:end])
        gradient[:2] *= ctx.scale
        packed = gradient.permute(1, 3, 0, 2, 4)
        return packed.flatten(2), None, None


def _blocks(length: int) -> Iterator[tuple[int, int]]:
    """Blocks of queries as (start, end); a single block if the length is not divisible."""
    size = _BLOCK if length % _BLOCK == 0 else length
    return ((start, start + size) for start in range(0, length, size))
