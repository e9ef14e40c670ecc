"""Heads as functions of tokens and offsets: inner products, and the null of random rotations.

A head's QK is its score as a function of destination token, source token and offset: content,
centered over sources (which softmax compares), plus a profile over offsets. Its OV is the effect of
each source token on each logit. Inner products are means over tokens, weighted by their frequency
in training, over offsets and over logits. For heads a and b with queries q, keys k, values v and
effects o by token, and profiles f,

    QK:  Σ E[qₐᵀ q_b] ∘ E[kₐᵀ k_b] + E[fₐ f_b]          OV:  Σ E[vₐᵀ v_b] ∘ E[oₐᵀ o_b]

where the products are d_head × d_head. Embeddings and unembeddings enter through d × d matrices
that all heads share.

With W = F R, F a frame of the stream and R = `root(W)`, these functions are linear in R_Q R_Kᵀ and
R_V R_Oᵀ. So one set of random frames gives every head of a layer in random directions, with its own
singular values, in its own stream: the same embeddings, positions, norms and biases
(`RotatedLayer`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.algebra.rotations import random_frames, root
from pathsum.base.options import batched
from pathsum.circuits.token_basis import TOKENS, position_scales
from pathsum.model import Config, Model
from pathsum.model.folding import fold_read, read_scales, unfolded
from pathsum.model.rotary import rotate
from pathsum.model.weights import for_query_heads


@dataclass(frozen=True, eq=False)
class LayerHeads:
    """The stored weights of one layer's heads and the inputs of their reads, in float64.

    Queries include the scale of scores, and gains of QK-norm are folded into W_Q, W_K and their
    biases. At the input of the reads, `mean` is the mean embedding, `shift` the bias of the norm
    and `positions` are the position vectors. `W_O` is transposed: its columns are the head's output
    directions.
    """

    W_Q: Float[Tensor, "head d k"]
    W_K: Float[Tensor, "head d k"]
    W_V: Float[Tensor, "head d k"]
    W_O: Float[Tensor, "head d k"]
    b_Q: Float[Tensor, "head k"]
    b_K: Float[Tensor, "head k"]
    mean: Float[Tensor, " d"]
    shift: Float[Tensor, " d"]
    gain: Float[Tensor, " d"] | None
    positions: Float[Tensor, "ctx d"] | None
    config: Config
    depth: int

    @property
    def mean_queries(self) -> Float[Tensor, "head k"]:
        """The mean query over tokens."""
        return (self.mean + self.shift) @ self.W_Q + self.b_Q

    @property
    def mean_values(self) -> Float[Tensor, "head k"]:
        """The mean value over tokens, without biases."""
        return self.mean @ self.W_V


class HeadFunctions:
    """All heads of a model, for tokens of the given frequencies and offsets below `window`.

    Layers above the first are represented by their direct path: the scales of their normalization
    and of QK-norm are taken to be the same for all tokens, and cosines do not depend on them.
    """

    def __init__(self, model: Model, frequencies: Float[Tensor, " vocab"], window: int) -> None:
        self.model, self.frequencies, self.window = model, frequencies, window

    @cached_property
    def layers(self) -> tuple[LayerHeads, ...]:
        """The heads of each layer."""
        return tuple(map(self._layer, range(self.model.config.n_layers)))

    @cached_property
    def offsets(self) -> tuple["Offsets", ...]:
        """The map from queries and keys to scores by offset, for each layer."""
        return tuple(Offsets(layer, self.window) for layer in self.layers)

    @cached_property
    def profiles(self) -> tuple[Float[Tensor, "head window"], ...]:
        """Scores by offset of the heads of each layer, centered over offsets."""
        return tuple(
            offsets.scores(
                offsets.queried @ with_row(layer.W_Q, layer.b_Q),
                offsets.keyed @ with_row(layer.W_K, layer.b_K),
            )
            for layer, offsets in zip(self.layers, self.offsets, strict=True)
        )

    def embeddings(self, depth: int, block: slice) -> Float[Tensor, "n d"]:
        """Embeddings of some tokens as folded reads see them, minus their mean over all."""
        return self._rows(depth, block) - self._means[depth]

    def unembeddings(self, block: slice) -> Float[Tensor, "n d"]:
        """Rows of W_Uᵀ, minus their mean over the vocabulary."""
        return self.model.weights.W_U[:, block].T.cpu().double() - self._mean_logits

    @cached_property
    def _mean_logits(self) -> Float[Tensor, " d"]:
        return self.model.weights.W_U.mean(-1, dtype=torch.float64).cpu()

    @cached_property
    def _means(self) -> tuple[Float[Tensor, " d"], Float[Tensor, " d"]]:
        """The mean embedding as the first layer reads it, and as deeper layers do."""
        first, deeper = torch.zeros(2, self.model.config.d_model, dtype=torch.float64)
        for block in _blocks(len(self.frequencies)):
            first += self.frequencies[block] @ self._rows(0, block)
            deeper += self.frequencies[block] @ self._rows(1, block)
        return first, deeper

    def _rows(self, depth: int, block: slice) -> Float[Tensor, "n d"]:
        rows = self.model.weights.W_E[block].cpu().double()
        return rows if depth or self._scales is None else rows * self._scales[block, None]

    @cached_property
    def _scales(self) -> Float[Tensor, " vocab"] | None:
        scales = read_scales(self.model.weights, 0)
        return None if scales is None else scales.cpu().double()

    def _layer(self, index: int) -> LayerHeads:
        config, raw = self.model.config, self.model.weights.attention[index]
        depth = 0 if index == 0 and self._scales is not None else 1

        def own(tensor: Tensor | None, otherwise: float, *shape: int) -> Tensor:
            """A tensor in float64 of the heads' shape, or a constant if the model lacks it."""
            values = torch.tensor(otherwise) if tensor is None else tensor
            values = values.cpu().double().expand(shape)
            return for_query_heads(values, config.n_heads, dim=0) if len(shape) > 1 else values

        kv, d, k = config.n_kv_heads, config.d_model, config.d_head
        q_gain = own(raw.q_norm_w, 1.0, config.n_heads, k) * config.score_scale
        k_gain = own(raw.k_norm_w, 1.0, kv, k)
        gain = None if raw.ln1_w is None else raw.ln1_w.cpu().double()
        return LayerHeads(
            W_Q=own(raw.W_Q, 0.0, config.n_heads, d, k) * q_gain[:, None],
            W_K=own(raw.W_K, 0.0, kv, d, k) * k_gain[:, None],
            W_V=own(raw.W_V, 0.0, kv, d, k),
            W_O=raw.W_O.cpu().double().mT,
            b_Q=own(raw.b_Q, 0.0, config.n_heads, k) * q_gain,
            b_K=own(raw.b_K, 0.0, kv, k) * k_gain,
            mean=unfolded(config.norm, self._means[depth], gain),
            shift=own(raw.ln1_b, 0.0, d),
            gain=gain,
            positions=self._positions(index, gain),
            config=config.at(index),
            depth=depth,
        )

    def _positions(
        self, index: int, gain: Float[Tensor, " d"] | None
    ) -> Float[Tensor, "ctx d"] | None:
        """Position vectors at the input of the stored reads; None if the model has none."""
        weights, config = self.model.weights, self.model.config
        if config.positions == "qk":
            # Added after the normalization, so neither gain nor scale applies.
            W_pos = weights.attention[index].W_pos
            assert W_pos is not None
            return W_pos.cpu().double() if bool(W_pos.any()) else None
        if config.positions != "residual":
            return None
        assert weights.W_pos is not None
        positions = weights.W_pos * position_scales(self.model, index)[:, None]
        return unfolded(config.norm, positions.cpu().double(), gain)


class Offsets:
    """Scores by offset from position alone, as in `positional`: centered over offsets.

    `queried` times W_Q, with b_Q as its last row, gives the queries of `scores`, and `keyed` times
    W_K the keys. Rotary: the mean query against the mean key, rotated. Position vectors:
    Σ q[i] · k[i − Δ] over the destinations i that see every offset of the window, a correlation,
    which a Fourier transform turns into a product. It acts on positions and W_Q on directions, so
    one transform serves all heads.
    """

    def __init__(self, heads: LayerHeads, window: int) -> None:
        self.config, self.window = heads.config, window
        mean = (heads.mean + heads.shift)[None]
        queried = keyed = torch.cat((mean, torch.ones_like(mean[:, :1])), 1)
        if heads.positions is not None:
            constant = torch.ones_like(heads.positions[:, :1])
            queried = torch.cat((heads.positions + heads.shift, constant), 1)
            queried[: window - 1] = 0
            # A constant part of the keys is the same at all offsets, and centering removes it.
            keyed = torch.cat((heads.positions, 0 * constant), 1)
            self._late, self._size = len(keyed) - window + 1, len(keyed) + window
            queried, keyed = (
                torch.cat((hat.real, hat.imag))
                for hat in (torch.fft.rfft(x, self._size, dim=0) for x in (queried, keyed))
            )
        self.queried: Float[Tensor, "row d1"] = queried
        self.keyed: Float[Tensor, "row d1"] = keyed
        self._has_positions = heads.positions is not None

    def scores(
        self, queries: Float[Tensor, "*n row k"], keys: Float[Tensor, "*n row k"]
    ) -> Float[Tensor, "*n window"]:
        """Scores at the offsets 0 … window − 1."""
        if self._has_positions:
            (q, iq), (k, ik) = (x.unflatten(-2, (2, -1)).unbind(-3) for x in (queries, keys))
            product = torch.complex((q * k + iq * ik).sum(-1), (iq * k - q * ik).sum(-1))
            scores = torch.fft.irfft(product, self._size)[..., : self.window] / self._late
        elif self.config.positions == "rotary":
            positions = -torch.arange(self.window)
            repeated = keys.expand(*keys.shape[:-2], self.window, keys.shape[-1])
            scores = (rotate(self.config, repeated, positions) * queries).sum(-1)
        else:
            scores = queries.new_zeros(*queries.shape[:-2], self.window)
        return scores - scores.mean(-1, keepdim=True)


class Between:
    """Inner products between the heads of two models, or of a model and itself."""

    def __init__(self, first: HeadFunctions, second: HeadFunctions) -> None:
        self.first, self.second = first, second
        self._tokens: dict[tuple[int, int], Float[Tensor, "d e"]] = {}

    def products(
        self, a: int, b: int
    ) -> tuple[Float[Tensor, "head other"], Float[Tensor, "head other"]]:
        """QK and OV of each head of layer a of one model with each of layer b of the other."""
        first, second = self.first.layers[a], self.second.layers[b]
        tokens = self.tokens(a, b)

        def blocks(W: Tensor, between: Tensor, V: Tensor) -> Float[Tensor, "head other k l"]:
            # All heads side by side: two large products.
            (h, _, k), (o, _, m) = W.shape, V.shape
            columns, rows = (X.transpose(0, 1).flatten(1) for X in (W, V))
            return (columns.T @ (between @ rows)).view(h, k, o, m).transpose(1, 2)

        means = first.mean_queries[:, None, :, None] * second.mean_queries[:, None, :]
        queries = blocks(first.W_Q, tokens, second.W_Q) + means
        keys = blocks(first.W_K, tokens, second.W_K)
        means = first.mean_values[:, None, :, None] * second.mean_values[:, None, :]
        values = blocks(first.W_V, tokens, second.W_V) + means
        effects = blocks(first.W_O, self.logits, second.W_O)
        offsets = self.first.profiles[a] @ self.second.profiles[b].T / self.first.window
        return (queries * keys).sum((-2, -1)) + offsets, (values * effects).sum((-2, -1))

    def tokens(self, a: int, b: int) -> Float[Tensor, "d e"]:
        """Covariance over tokens of the inputs of the stored reads of layer a and of layer b."""
        first, second = self.first.layers[a], self.second.layers[b]
        depths = first.depth, second.depth
        if depths not in self._tokens:
            p = self.first.frequencies[:, None]
            total = torch.zeros(len(first.mean), len(second.mean), dtype=torch.float64)
            for block in _blocks(len(p)):
                weighted = self.first.embeddings(first.depth, block) * p[block]
                total += weighted.T @ self.second.embeddings(second.depth, block)
            self._tokens[depths] = total
        form = unfolded(self.second.model.config.norm, self._tokens[depths], second.gain)
        return unfolded(self.first.model.config.norm, form.T, first.gain).T

    @cached_property
    def logits(self) -> Float[Tensor, "d e"]:
        """Mean over the vocabulary of the product of two streams' effects on a logit."""
        first, second = self.first.model, self.second.model
        total = torch.zeros(first.config.d_model, second.config.d_model, dtype=torch.float64)
        for block in _blocks(first.config.d_vocab_out):
            total += self.first.unembeddings(block).T @ self.second.unembeddings(block)
        for model in (first, second):
            gain = model.weights.ln_f_w
            gain = None if gain is None else gain.cpu().double()
            total = fold_read(model.config.norm, total, gain).T
        return total / first.config.d_vocab_out


def with_row(
    W: Float[Tensor, "head d k"], bias: Float[Tensor, "head k"]
) -> Float[Tensor, "head d1 k"]:
    """A read with its bias as the last row."""
    return torch.cat((W, bias[:, None]), 1)


def _blocks(vocab: int) -> Iterator[slice]:
    for start in range(0, vocab, TOKENS):
        yield slice(start, start + TOKENS)


@dataclass(frozen=True, eq=False)
class RotatedLayer:
    """The heads of a layer in random frames: n draws, whose frames all heads share.

    `roots` are those of W_Q, W_K, W_V and W_O.
    """

    heads: LayerHeads
    query: Float[Tensor, "n d r"]
    key: Float[Tensor, "n d r"]
    value: Float[Tensor, "n d r"]
    write: Float[Tensor, "n d r"]
    roots: tuple[Float[Tensor, "head r k"], ...]

    @cached_property
    def qk(self) -> Float[Tensor, "head r1 r"]:
        """R_Q R_Kᵀ; the last row, that of b_Q, has no frame."""
        return with_row(self.roots[0], self.heads.b_Q) @ self.roots[1].mT

    @cached_property
    def ov(self) -> Float[Tensor, "head r r"]:
        """R_V R_Oᵀ."""
        return self.roots[2] @ self.roots[3].mT

    def profiles(self, offsets: Offsets) -> Float[Tensor, "n head window"]:
        """Scores by offset, centered over offsets."""
        query, key, _, _ = self.roots

        def through(
            x: Float[Tensor, "row d1"],
            frames: Float[Tensor, "n d r"],
            roots: Float[Tensor, "head r k"],
            biases: Float[Tensor, "head k"],
        ) -> Float[Tensor, "n head row k"]:
            return (x[:, :-1] @ frames)[:, None] @ roots + x[:, -1:] * biases[:, None]

        return offsets.scores(
            through(offsets.queried, self.query, query, self.heads.b_Q),
            through(offsets.keyed, self.key, key, self.heads.b_K),
        )

    def squares(
        self, tokens: Float[Tensor, "d d"], logits: Float[Tensor, "d d"]
    ) -> tuple[Float[Tensor, "n head"], Float[Tensor, "n head"]]:
        """⟨f, f⟩ of QK, without its profile, and of OV."""
        mean = self.heads.mean + self.heads.shift
        queries = _with_constant(_form_in(self.query, tokens + mean.outer(mean)), mean @ self.query)
        keys = _form_in(self.key, tokens)
        mean = self.heads.mean
        values = _form_in(self.value, tokens + mean.outer(mean))
        effects = _form_in(self.write, logits)

        def square(L: Tensor, core: Tensor, R: Tensor) -> Float[Tensor, "n head"]:
            return ((L[:, None] @ core) * (core @ R[:, None])).sum((-2, -1))

        return square(queries, self.qk, keys), square(values, self.ov, effects)

    def products(
        self, other: LayerHeads, tokens: Float[Tensor, "d e"], logits: Float[Tensor, "d e"]
    ) -> tuple[Float[Tensor, "n head other"], Float[Tensor, "n head other"]]:
        """⟨f, g⟩ of QK, without profiles, and of OV, with the heads of another layer."""
        mean = self.heads.mean + self.heads.shift
        queries = tokens @ other.W_Q + mean[:, None] * other.mean_queries[:, None]
        values = tokens @ other.W_V + self.heads.mean[:, None] * other.mean_values[:, None]
        projected = _project(self.query, queries)
        row = other.mean_queries[:, None].expand(len(projected), -1, -1, -1)
        content = torch.cat((projected, row), -2) @ _project(self.key, tokens @ other.W_K).mT
        effects = _project(self.write, logits @ other.W_O)
        pairs = ((self.qk, content), (self.ov, _project(self.value, values) @ effects.mT))
        qk, ov = (cores.flatten(1) @ between.flatten(2).mT for cores, between in pairs)
        return qk, ov


def rotated_layers(
    heads: LayerHeads, n_others: int, draws: int, generator: torch.Generator
) -> Iterator[RotatedLayer]:
    """The heads of a layer, rotated `draws` times, for products with `others` heads."""
    head, d, k = heads.W_Q.shape
    r = min(d, k)
    profile_numbers = 0 if heads.positions is None else 4 * head * len(heads.positions) * k
    roots = tuple(map(root, (heads.W_Q, heads.W_K, heads.W_V, heads.W_O)))
    numbers = max(profile_numbers, 4 * d * r, 4 * n_others * r * k)
    for batch in batched(range(draws), 8 * numbers):
        frames = (random_frames(len(batch), d, r, generator) for _ in range(4))
        yield RotatedLayer(heads, *frames, roots=roots)


def _form_in(
    frames: Float[Tensor, "n d r"], between: Float[Tensor, "d d"]
) -> Float[Tensor, "n r r"]:
    return frames.mT @ (between @ frames)


def _with_constant(
    moments: Float[Tensor, "n r r"], means: Float[Tensor, "n r"]
) -> Float[Tensor, "n r1 r1"]:
    """Second moments of x and 1, from those of x and its means."""
    row = torch.nn.functional.pad(means, (0, 1), value=1.0)
    return torch.cat((torch.cat((moments, means[..., None]), -1), row[:, None]), -2)


def _project(
    frames: Float[Tensor, "n d r"], reads: Float[Tensor, "head d k"]
) -> Float[Tensor, "n head r k"]:
    """Fᵀ W for every draw and head, as one product."""
    head, d, k = reads.shape
    product = frames.mT @ reads.transpose(0, 1).reshape(d, head * k)
    return product.unflatten(-1, (head, k)).transpose(1, 2)
