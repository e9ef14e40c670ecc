"""Weights: a model's tensors, read and checked on first use.

Loaders in `pathsum.sources` build them; analyses read them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.algebra.decompositions import is_finite
from pathsum.base import HeadId
from pathsum.base.errors import WeightsError, near_misses
from pathsum.base.options import checked_methods
from pathsum.model.config import Config
from pathsum.model.store import Layers, RoundedStore, Store

if TYPE_CHECKING:
    from pathsum.base.site import Site
    from pathsum.model.edit import Edit


Number = TypeVar("Number", int, Int[Tensor, " n"])


def kv_head(config: Config, head: Number) -> Number:
    """The key/value head of a query head, both counted within their layer."""
    return head // config.heads_per_kv


def for_query_heads(shared: Tensor, n_heads: int, dim: int = -3) -> Tensor:
    """One entry along `dim` per query head, from one per key/value head."""
    copies = n_heads // shared.shape[dim]
    return shared if copies == 1 else shared.repeat_interleave(copies, dim=dim)


@dataclass(frozen=True, eq=False)
class LayerWeights:
    """One layer's tensors, by the names of the paper, rows first (see `pathsum.base.shapes`).

    `W_pos` is added to the inputs of W_Q and W_K in this layer (positions="qk" only). If a norm
    follows the heads (`Config.norm_place`), its gain `post1_w` is multiplied into `W_O` and `b_O`;
    `raw_W_O` and `raw_b_O` are without it, and give the norm's scale.
    With experts, `b_experts` is the output bias of each expert, and all share `b_out`. `index` is
    the layer's number.
    """

    W_Q: Float[Tensor, "head d k"]
    W_K: Float[Tensor, "kv d k"]
    W_V: Float[Tensor, "kv d k"]
    W_O: Float[Tensor, "head k d"]
    W_pos: Float[Tensor, "ctx d"] | None = None
    b_Q: Float[Tensor, "head k"] | None = None
    b_K: Float[Tensor, "kv k"] | None = None
    b_V: Float[Tensor, "kv k"] | None = None
    b_O: Float[Tensor, " d"] | None = None
    ln1_w: Float[Tensor, " d"] | None = None
    ln1_b: Float[Tensor, " d"] | None = None
    q_norm_w: Float[Tensor, "*head k"] | None = None
    k_norm_w: Float[Tensor, "*kv k"] | None = None
    sinks: Float[Tensor, " head"] | None = None
    W_in: Float[Tensor, "d m"] | None = None
    W_gate: Float[Tensor, "d m"] | None = None
    W_out: Float[Tensor, "m d"] | None = None
    b_in: Float[Tensor, " m"] | None = None
    b_gate: Float[Tensor, " m"] | None = None
    b_out: Float[Tensor, " d"] | None = None
    W_router: Float[Tensor, "d expert"] | None = None
    b_router: Float[Tensor, " expert"] | None = None
    b_experts: Float[Tensor, "expert d"] | None = None
    ln2_w: Float[Tensor, " d"] | None = None
    ln2_b: Float[Tensor, " d"] | None = None
    post1_w: Float[Tensor, " d"] | None = None
    post2_w: Float[Tensor, " d"] | None = None
    raw_W_O: Float[Tensor, "head k d"] | None = None
    raw_b_O: Float[Tensor, " d"] | None = None
    index: int = 0


_NOT_STORED = ("raw_W_O", "raw_b_O", "index")
LAYER_NAMES = tuple(field.name for field in fields(LayerWeights) if field.name not in _NOT_STORED)
MLP_NAMES = (
    *("W_in", "W_gate", "W_out", "b_in", "b_gate", "b_out", "ln2_w", "ln2_b", "post2_w"),
    *("W_router", "b_router", "b_experts"),
)
ATTENTION_NAMES = tuple(name for name in LAYER_NAMES if name not in MLP_NAMES)
HALF = (torch.float16, torch.bfloat16)
DTYPES = (torch.float64, torch.float32, *HALF)  # that weights may have
MODEL_NAMES = ("W_E", "W_U", "W_pos", "b_U", "ln_f_w", "ln_f_b")


def layer_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor that a layer of this config may have."""
    d, k, m = config.d_model, config.d_head, config.d_mlp
    h, kv = config.n_heads, config.n_kv_heads
    shapes: dict[str, tuple[int, ...]] = {
        "W_Q": (h, d, k),
        "W_K": (kv, d, k),
        "W_V": (kv, d, k),
        "W_O": (h, k, d),
        "b_Q": (h, k),
        "b_K": (kv, k),
        "b_V": (kv, k),
        "b_O": (d,),
    }
    if config.positions == "qk":
        shapes["W_pos"] = (config.n_ctx, d)
    if config.norm != "none" and config.norm_place != "after":
        shapes["ln1_w"] = (d,)
    if config.norm == "layer":
        shapes["ln1_b"] = (d,)
    if config.norm_place != "before":
        shapes |= {"post1_w": (d,)} | ({} if config.mlp == "none" else {"post2_w": (d,)})
    if config.qk_norm == "rms":
        shapes |= {"q_norm_w": (k,), "k_norm_w": (k,)}
    if config.qk_norm in ("rms_per_head", "rms_all"):
        shapes |= {"q_norm_w": (h, k), "k_norm_w": (kv, k)}
    if config.sinks:
        shapes["sinks"] = (h,)
    if config.mlp != "none":
        shapes |= {"W_in": (d, m), "W_out": (m, d), "b_in": (m,), "b_out": (d,)}
        shapes |= {name.replace("1", "2"): (d,) for name in ("ln1_w", "ln1_b") if name in shapes}
    if config.gated:
        shapes |= {"W_gate": (d, m), "b_gate": (m,)}
    if config.n_experts:
        e = config.n_experts
        shapes |= {"W_router": (d, e), "b_router": (e,), "b_experts": (e, d)}
    return shapes


def model_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor outside the layers."""
    d, out = config.d_model, config.d_vocab_out
    shapes: dict[str, tuple[int, ...]] = {"W_E": (config.d_vocab, d), "b_U": (out,)}
    if not config.tied:
        shapes["W_U"] = (d, out)
    if config.positions in ("qk", "residual"):
        shapes["W_pos"] = (config.n_ctx, d)
    if config.norm != "none":
        shapes["ln_f_w"] = (d,)
    if config.norm == "layer":
        shapes["ln_f_b"] = (d,)
    return shapes


def required_in_layer(config: Config) -> tuple[str, ...]:
    """Tensors that every layer of this config must have."""
    mlp = () if config.mlp == "none" else ("W_in", "W_out")
    gate = ("W_gate",) if config.gated else ()
    router = ("W_router",) if config.n_experts else ()
    sinks = ("sinks",) if config.sinks else ()
    return ("W_Q", "W_K", "W_V", "W_O", *mlp, *gate, *router, *sinks)


@checked_methods
class Weights:
    """A model's tensors, read and checked layer by layer on first use.

    Names and shapes are known without reading the tensors and are checked immediately. A tensor is
    checked for non-finite values when it is first read. Half precision only stores weights: they
    are rounded to it, and everything is computed from the rounded weights in float32, because
    products and eigenvalues in half precision are too coarse for any analysis.

    `layers[l]` has all tensors of a layer, `attention[l]` only the tensors of its heads, which
    suffice for weight-based analyses and read much less data. `edits` lists the edits made by
    `Model.edited`: some are in these weights, the others are applied in every run.
    """

    def __init__(
        self,
        config: Config,
        store: Store,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
        edits: "tuple[Edit, ...]" = (),
    ) -> None:
        if dtype in HALF:
            store, dtype = RoundedStore(store, dtype), torch.float32
        self.config = config
        self.store = store
        self.edits = edits
        _check_names_and_shapes(config, store.shapes)
        self.dtype = dtype or _computing_dtype(store)
        self.device = device or store.device("W_E")
        self.attention = Layers(self, ATTENTION_NAMES)
        self.layers = Layers(self, LAYER_NAMES, self.attention)

    @cached_property
    def W_E(self) -> Float[Tensor, "vocab d"]:
        """Token embeddings, one row per token."""
        return self.read("W_E")

    @cached_property
    def W_U(self) -> Float[Tensor, "d vocab"]:
        """The unembedding; W_Eᵀ if it is tied to the embedding."""
        return self.W_E.T if self.config.tied else self.read("W_U")

    @cached_property
    def mean_unembedding(self) -> Float[Tensor, " d"]:
        """The mean column of W_U, which the mean over the vocabulary reads."""
        return self.W_U.mean(1)

    @cached_property
    def W_pos(self) -> Float[Tensor, "ctx d"] | None:
        """The position table shared by all layers, if there is one."""
        return self.read_optional("W_pos")

    @cached_property
    def b_U(self) -> Float[Tensor, " vocab"] | None:
        """The bias of the logits."""
        return self.read_optional("b_U")

    @cached_property
    def ln_f_w(self) -> Float[Tensor, " d"] | None:
        """The gain of the normalization before the unembedding."""
        return self.read_optional("ln_f_w")

    @cached_property
    def ln_f_b(self) -> Float[Tensor, " d"] | None:
        """The bias of the normalization before the unembedding."""
        return self.read_optional("ln_f_b")

    @property
    def n_parameters(self) -> int:
        """The number of parameters, counted without reading them."""
        return sum(torch.Size(self.store.shapes[name]).numel() for name in self.names)

    @property
    def names(self) -> tuple[str, ...]:
        """Flat names of the stored tensors, in order."""
        return tuple(name for name in self.store.shapes if not _is_extra(name))

    def items(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor by flat name, read one at a time."""
        for name in self.names:
            yield name, self.read(name)

    def read(self, name: str) -> Tensor:
        """One tensor in the computing dtype; raises WeightsError if values are not finite."""
        stored = self.store.get(self._check_name(name))
        tensor = stored.to(dtype=self.dtype, device=self.device)
        if not is_finite(tensor):
            count = int((~torch.isfinite(tensor)).sum())
            raise WeightsError(
                f"{name} holds {count} numbers that are NaN or infinite (of {tensor.numel()}), so "
                "results would be too; the training run diverged, or the file is damaged"
            )
        return tensor

    def _check_name(self, name: str) -> str:
        if name not in self.store.shapes:
            raise WeightsError(f"there is no tensor {name!r}; there are {', '.join(self.names)}")
        return name

    def read_optional(self, name: str) -> Tensor | None:
        """One tensor, or None if the model has no tensor of that name."""
        return self.read(name) if name in self.store.shapes else None

    def to(self, dtype: torch.dtype | None = None, device: torch.device | None = None) -> "Weights":
        """The same weights in another dtype or on another device; see `Model.to`."""
        return Weights(
            self.config, self.store, dtype or self.dtype, device or self.device, self.edits
        )

    @cached_property
    def edited_edges(self) -> "frozenset[Site]":
        """Edited edges, which carry the same vector for every text."""
        return frozenset(edit.site for edit in self.edits if edit.site.is_edge)

    @cached_property
    def edited_patterns(self) -> frozenset[HeadId]:
        """Heads whose pattern was replaced by an edit of the model."""
        heads = (edit.site.head for edit in self.edits if edit.site.value == "pattern")
        return frozenset(head for head in heads if head is not None)

    def converts(self, name: str) -> bool:
        """Whether reading this tensor makes a copy."""
        converted = (
            self.store.dtypes[self._check_name(name)] != self.dtype or self.device.type != "cpu"
        )
        return converted or self.store.copies(name)


@lru_cache(maxsize=64)
def one_head(config: Config) -> Config:
    """The config of a layer of one head."""
    return config.replace(n_heads=1, n_kv_heads=1)


def layer_of_one_head(config: Config, layer: LayerWeights, head: int) -> LayerWeights:
    """A layer of one head, with the key/value head that it uses: it runs like any other layer."""
    kv = kv_head(config, head)

    def pick(tensor: Tensor | None, index: int) -> Tensor | None:
        return None if tensor is None else tensor[index : index + 1]

    def gain(tensor: Tensor | None, index: int) -> Tensor | None:
        return pick(tensor, index) if tensor is not None and tensor.ndim == 2 else tensor

    return replace(
        layer,
        W_Q=layer.W_Q[head : head + 1],
        W_K=layer.W_K[kv : kv + 1],
        W_V=layer.W_V[kv : kv + 1],
        W_O=layer.W_O[head : head + 1],
        raw_W_O=pick(layer.raw_W_O, head),
        b_Q=pick(layer.b_Q, head),
        b_K=pick(layer.b_K, kv),
        b_V=pick(layer.b_V, kv),
        q_norm_w=gain(layer.q_norm_w, head),
        k_norm_w=gain(layer.k_norm_w, kv),
        sinks=pick(layer.sinks, head),
    )


def _is_extra(name: str) -> bool:
    """Whether a stored tensor is not a weight: token counts, or a tensor of an edit."""
    return name == "token_counts" or name.startswith("edits.")


def list_dtypes() -> str:
    """The dtypes that weights may have, for error messages."""
    *names, last = map(str, DTYPES)
    return f"{', '.join(names)} or {last}"


def _computing_dtype(store: Store) -> torch.dtype:
    dtype = store.dtypes["W_E"]
    return torch.float32 if dtype in HALF else dtype


def _expected_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    layer, layers = layer_shapes(config), range(config.n_layers)
    stacked = {f"layers.{n}.{name}": shape for n in layers for name, shape in layer.items()}
    return model_shapes(config) | stacked


def _required(config: Config, shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    names = ["W_E"] if config.tied else ["W_E", "W_U"]
    names += [
        f"layers.{layer}.{name}"
        for layer in range(config.n_layers)
        for name in required_in_layer(config)
    ]
    if config.positions == "residual":
        names.append("W_pos")
    if config.positions == "qk" and "W_pos" not in shapes:
        # Either one table for all layers, or one per layer.
        each = [f"layers.{layer}.W_pos" for layer in range(config.n_layers)]
        names += each if any(name in shapes for name in each) else ["W_pos"] * bool(each)
    return names


def _check_names_and_shapes(config: Config, shapes: Mapping[str, tuple[int, ...]]) -> None:
    # Check before allocating per layer: a config may claim any number of layers.
    last = f"layers.{config.n_layers - 1}.W_Q"
    if config.n_layers > len(shapes) and last not in shapes:
        raise WeightsError(
            f"{last} is missing: the config says n_layers={config.n_layers}, and there are "
            f"{len(shapes)} tensors in all"
        )
    expected = _expected_shapes(config)
    for name, shape in shapes.items():
        if _is_extra(name):
            continue
        if name not in expected:
            raise WeightsError(_unexpected(config, name))
        if shape != expected[name]:
            raise WeightsError(
                f"{name} has shape {list(shape)}, but this config needs {list(expected[name])} "
                f"({_describe(config)})"
            )
    for name in _required(config, shapes):
        if name not in shapes:
            raise WeightsError(
                f"{name} is missing: a model with {_describe(config)} needs it, "
                f"with shape {list(expected[name])}"
            )


def _unexpected(config: Config, name: str) -> str:
    bare = name.rsplit(".", 1)[-1]
    if bare in (*LAYER_NAMES, *MODEL_NAMES):
        return f"{name} is given, but a model with {_describe(config)} does not have it"
    names = [*MODEL_NAMES, *LAYER_NAMES]
    return f"{name} is not a tensor's name{near_misses(bare, names)} ({', '.join(names)})"


def _describe(config: Config) -> str:
    names = ["n_layers", "n_heads", "d_model", "d_head", "d_vocab", "n_ctx", "positions", "norm"]
    names += ["mlp", "d_mlp"] if config.mlp != "none" else ["mlp"]
    names += ["n_experts"] if config.n_experts else []
    names += ["n_kv_heads"] if config.n_kv_heads != config.n_heads else []
    names += ["d_vocab_out"] if not config.predicts_tokens else []
    names += ["tied"] if config.tied else []
    return ", ".join(f"{name}={getattr(config, name)!r}" for name in names)
