"""Symmetries: changes of the weights that leave the model's function unchanged.

Every meaningful score is invariant under them, which gives a cheap test: scramble the model,
recompute the score, and expect the same number.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.algebra.decompositions import inverse, qr
from pathsum.algebra.rotations import seeded
from pathsum.base.errors import InputError, NotExactError
from pathsum.model.config import Config
from pathsum.model.folding import fold
from pathsum.model.model import Model
from pathsum.model.store import MemoryStore
from pathsum.model.weights import Weights, for_query_heads

_WRITES = ("W_E", "W_pos", "W_O", "b_O", "W_out", "b_out", "b_experts")
_READS = ("W_Q", "W_K", "W_V", "W_in", "W_gate", "W_router", "W_U")


def rotate_stream(model: Model, rotation: Float[Tensor, "d d"]) -> Model:
    """The model with its stream rotated: every write times R, every read times Rᵀ.

    Gains break this symmetry (fold them first), and LayerNorm allows only rotations that fix the
    ones-vector, because it removes that direction.
    """
    R = rotation.to(model.weights.dtype)
    identity = torch.eye(R.shape[0], dtype=R.dtype, device=R.device)
    tolerance = 1e-4 if R.dtype == torch.float32 else 1e-9
    if not torch.allclose(R @ R.T, identity, atol=tolerance):
        raise InputError("the matrix is not a rotation: R Rᵀ differs from the identity")
    if not _without_gains(model.weights):
        raise NotExactError(
            "the normalizations have gains or biases, which are tied to their basis; call "
            "fold(model) first"
        )
    ones = torch.ones(R.shape[0], dtype=R.dtype, device=R.device)
    if model.config.norm == "layer" and not torch.allclose(ones @ R, ones, atol=tolerance * 10):
        raise NotExactError(
            "LayerNorm removes the mean, so only rotations that fix the ones-vector are "
            "symmetries; random_rotation(config) draws one"
        )

    def change(name: str, tensor: Tensor, _: int) -> Tensor:
        if name in _WRITES:
            return tensor @ R
        return R.T @ tensor if name in _READS else tensor

    return _rebuilt(model, change)


def change_value_basis(model: Model, S: Float[Tensor, "layer kv k k"]) -> Model:
    """(W_V S, S⁻¹ W_O): another basis inside each head, the same OV."""
    inverses = for_query_heads(inverse(S), model.config.n_heads)

    def change(name: str, tensor: Tensor, layer: int) -> Tensor:
        if name == "W_V":
            return tensor @ S[layer]
        if name == "b_V":
            return (tensor[:, None] @ S[layer])[:, 0]
        return inverses[layer] @ tensor if name == "W_O" else tensor

    return _rebuilt(model, change)


def change_query_basis(model: Model, S: Float[Tensor, "layer kv k k"]) -> Model:
    """(W_Q S, W_K S⁻ᵀ): another basis for queries and keys, the same QK.

    Not on rotary models or with QK-norm, which both act inside that basis.
    """
    if model.config.positions == "rotary" or model.config.qk_norm != "none":
        raise NotExactError(
            "rotary positions and QK-norm act on the basis of queries and keys, so changing it "
            "changes the model"
        )
    dual = inverse(S).mT
    shared = for_query_heads(S, model.config.n_heads)

    def change(name: str, tensor: Tensor, layer: int) -> Tensor:
        if name in ("W_Q", "W_K"):
            return tensor @ (shared if name == "W_Q" else dual)[layer]
        if name in ("b_Q", "b_K"):
            return (tensor[:, None] @ (shared if name == "b_Q" else dual)[layer])[:, 0]
        return tensor

    return _rebuilt(model, change)


def shift_unembedding(model: Model, c: Float[Tensor, " d"]) -> Model:
    """W_U + c·1ᵀ: shifts all logits of a position together, so probabilities stay."""
    if model.config.logit_cap is not None:
        raise NotExactError(
            "a soft cap acts on each logit, so a common shift changes probabilities"
        )
    if model.config.tied:
        raise NotExactError(
            "W_U is W_Eᵀ here, so it cannot be shifted alone; use a model that is not tied"
        )
    return _rebuilt(model, lambda name, W, _: W + c[:, None] if name == "W_U" else W)


def random_rotation(config: Config, seed: int = 0) -> Float[Tensor, "d d"]:
    """A uniformly random rotation of the stream that is a symmetry for this config, in float64."""
    d = config.d_model
    if config.norm != "layer":
        return _haar(d, seed)
    # A basis whose first vector is the ones-vector; rotate the rest among themselves.
    start = torch.randn(d, d, dtype=torch.float64, generator=seeded(seed))
    start[:, 0] = 1.0
    basis = qr(start)[0]
    inner = torch.eye(d, dtype=torch.float64)
    inner[1:, 1:] = _haar(d - 1, seed + 1) if d > 1 else inner[1:, 1:]
    return basis @ inner @ basis.T


def scrambled(model: Model, seed: int = 0) -> Model:
    """An equivalent model: every symmetry that this one has, applied at random.

    Same probabilities; logits may be shifted position by position (see `shift_unembedding`).
    """
    config = model.config
    generator = seeded(seed)

    def near_identity() -> Tensor:
        shape = (config.n_layers, config.n_kv_heads, config.d_head, config.d_head)
        noise = torch.randn(shape, generator=generator, dtype=torch.float64)
        # Orthogonal times a mild stretch: far from the identity, yet well conditioned.
        stretch = 0.5 + torch.rand(shape[:-1], generator=generator, dtype=torch.float64)
        return (qr(noise)[0] * stretch[..., None, :]).to(model.weights.dtype)

    changed = rotate_stream(fold(model), random_rotation(config, seed))
    if config.n_layers:
        changed = change_value_basis(changed, near_identity())
        if config.positions != "rotary" and config.qk_norm == "none":
            changed = change_query_basis(changed, near_identity())
    if not changed.config.tied and config.logit_cap is None:
        c = torch.randn(config.d_model, generator=generator, dtype=torch.float64)
        changed = shift_unembedding(changed, c.to(model.weights.dtype))
    return changed


def _haar(d: int, seed: int) -> Float[Tensor, "d d"]:
    noise = torch.randn(d, d, dtype=torch.float64, generator=seeded(seed))
    Q, R = qr(noise)
    # Without the signs, QR's sign convention would make the draw non-uniform.
    return Q * R.diagonal().sign()


def _rebuilt(model: Model, change: Callable[[str, Tensor, int], Tensor]) -> Model:
    """The model with every tensor changed, given its name, itself and its layer (−1: none)."""
    outside = [str(edit) for edit in model.edits if edit.value is not None]
    if outside:
        raise NotExactError(
            f"this model has edits that are not in its weights ({'; '.join(outside)}), so a change "
            "of its weights alone is not a symmetry; use the model without them"
        )
    flat: dict[str, Tensor] = {}
    for name, tensor in model.weights.items():
        *_, layer, bare = ("-1", *name.split("."))
        flat[name] = change(bare, tensor, int(layer)).contiguous()
    return replace(model, weights=Weights(model.config, MemoryStore(flat)))


def _without_gains(weights: Weights) -> bool:
    """Whether the normalizations of these weights have neither gain nor bias."""
    names = ("ln1_w", "ln1_b", "ln2_w", "ln2_b", "ln_f_w", "ln_f_b", "post1_w", "post2_w")
    return all(
        bool((weights.read(name) == float(name.endswith("_w"))).all())
        for name in weights.names
        if name.rsplit(".", 1)[-1] in names
    )
