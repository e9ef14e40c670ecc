"""Inner products of what heads do, against the functions themselves; rotated heads, against models.

The functions are made here token by token and offset by offset.
"""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.identities.configs import models
from torch import Tensor

from pathsum.algebra.rotations import root
from pathsum.circuits.head_functions import Between, HeadFunctions, RotatedLayer, rotated_layers
from pathsum.circuits.positional import positional
from pathsum.circuits.qk_ov import token_keys, token_queries
from pathsum.circuits.token_basis import token_frequencies
from pathsum.model import Config, Head, Model, random_model
from pathsum.model.store import MemoryStore
from pathsum.model.weights import Weights

WINDOW = 3


def functions_of(head: Head) -> tuple[Tensor, Tensor]:
    """Scores by destination, source and offset, and effects on logits by source."""
    model = head.model
    keys = token_keys(head)
    content = token_queries(head) @ (keys - token_frequencies(model) @ keys).T
    content = content * model.config.score_scale
    offsets = torch.zeros(WINDOW, dtype=torch.float64)
    if model.config.positions != "none":
        offsets = positional(model, head.id, window=WINDOW).heads[0].score
    full = head.full_ov.dense()
    return content[..., None] + offsets, full - full.mean(1, keepdim=True)


@given(models(min_layers=1, max_layers=2, max_heads=3, causal=(True,)), st.integers(0, 99))
@settings(max_examples=12)
def test_inner_products_are_means_over_tokens_offsets_and_logits(model: Model, seed: int) -> None:
    # With QK-norm a query is not linear in the embedding; its scale is left out here.
    model = replace(model, weights=random_model_like(model, seed, qk_norm="none").weights)
    other = random_model_like(model, seed + 1)
    p = token_frequencies(model)
    one, two = (HeadFunctions(each, p, WINDOW) for each in (model, other))
    between = Between(one, two)
    for a in range(model.config.n_layers):
        for b in range(other.config.n_layers):
            qk, ov = between.products(a, b)
            for i, left in enumerate(h for h in model.heads if h.id.layer == a):
                for j, right in enumerate(h for h in other.heads if h.id.layer == b):
                    (f, f_ov), (g, g_ov) = functions_of(left), functions_of(right)
                    scores = torch.einsum("dso,dso,d,s->", f, g, p, p) / WINDOW
                    logits = torch.einsum("sv,sv,s->", f_ov, g_ov, p) / f_ov.shape[1]
                    assert float(qk[i, j]) == pytest.approx(float(scores), rel=1e-8, abs=1e-10)
                    assert float(ov[i, j]) == pytest.approx(float(logits), rel=1e-8, abs=1e-10)


def random_model_like(model: Model, seed: int, **changes: object) -> Model:
    """Another random model of a config, with biases and gains."""
    config = model.config.replace(**changes)
    return random_model(config, seed, dtype=torch.float64, biases=True, gains=True)


def with_heads_of(model: Model, layer: int, rotated: RotatedLayer) -> Model:
    """The model with the heads of a layer in the frames of the first draw."""
    frames = {
        "W_Q": rotated.query,
        "W_K": rotated.key,
        "W_V": rotated.value,
        "W_O": rotated.write,
    }
    flat = dict(model.weights.items())
    for name, frame in frames.items():
        own = flat[f"layers.{layer}.{name}"]
        columns = own.mT if name == "W_O" else own
        turned = frame[0] @ root(columns)
        flat[f"layers.{layer}.{name}"] = (turned.mT if name == "W_O" else turned).contiguous()
    return replace(model, weights=Weights(model.config, MemoryStore(flat)))


@pytest.mark.parametrize(
    "changes",
    [
        *({}, {"positions": "none"}, {"positions": "residual", "norm": "layer"}),
        *({"positions": "rotary", "norm": "rms", "n_kv_heads": 2}, {"d_model": 5}),
        *({"qk_norm": "rms"}, {"norm": "layer"}),
    ],
    ids=str,
)
def test_drawn_heads_are_those_of_a_model_with_rotated_heads(changes: dict[str, object]) -> None:
    size = {"n_layers": 2, "n_heads": 4, "d_model": 24, "d_head": 6, "d_vocab": 30, "n_ctx": 9}
    config = Config(**{**size, **changes})
    model = random_model(
        config, 1, dtype=torch.float64, biases=True, gains=config.qk_norm == "none"
    )
    other = random_model(config, 2, dtype=torch.float64, biases=True, gains=True)
    p = token_frequencies(model)
    one, two = HeadFunctions(model, p, WINDOW), HeadFunctions(other, p, WINDOW)
    generator = torch.Generator().manual_seed(0)
    for layer in range(2):
        rotated = next(rotated_layers(one.layers[layer], 8, 1, generator))
        made = HeadFunctions(with_heads_of(model, layer, rotated), p, WINDOW)
        profiles = rotated.profiles(one.offsets[layer])[0]
        torch.testing.assert_close(profiles, made.profiles[layer], rtol=1e-9, atol=1e-10)
        inside = Between(one, one)
        qk, ov = rotated.squares(inside.tokens(layer, layer), inside.logits)
        own_qk, own_ov = Between(made, made).products(layer, layer)
        qk = qk[0] + profiles.square().mean(-1)
        torch.testing.assert_close(qk, own_qk.diagonal(), rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(ov[0], own_ov.diagonal(), rtol=1e-9, atol=1e-10)
        for b, heads in enumerate(two.layers):
            seen = Between(one, two)
            qk, ov = rotated.products(heads, seen.tokens(layer, b), seen.logits)
            qk = qk[0] + profiles @ two.profiles[b].T / WINDOW
            truth = Between(made, two).products(layer, b)
            torch.testing.assert_close(qk, truth[0], rtol=1e-9, atol=1e-10)
            torch.testing.assert_close(ov[0], truth[1], rtol=1e-9, atol=1e-10)
