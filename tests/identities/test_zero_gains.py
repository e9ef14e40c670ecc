"""Gains of exactly 0 in norms after a block: a trained Gemma 3 has some."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.identities.configs import close, relative
from tests.sources import tiny
from torch import Tensor

import pathsum as ps
from pathsum.base.site import Site
from pathsum.model import Config, fold
from pathsum.model.edit import Edit
from pathsum.model.forward import run_logits
from pathsum.model.store import OverlayStore


@st.composite
def zero_gain_models(draw: st.DrawFn) -> ps.Model:
    """A random model with a norm after each block, whose gains are 0 in some dimensions."""
    mlp: Any = draw(st.sampled_from(["none", "silu_gated"]))
    config = Config(
        *(2, 2, draw(st.integers(4, 9)), 4, 11, 8),
        positions=draw(st.sampled_from(["rotary", "residual", "qk"])),
        norm="rms",
        norm_place=draw(st.sampled_from(["both", "after"])),
        mlp=mlp,
        d_mlp=0 if mlp == "none" else 7,
        n_kv_heads=draw(st.sampled_from([1, 2])),
        qk_norm=draw(st.sampled_from(["none", "rms"])),
    )
    seed, biases = draw(st.integers(0, 2**16)), draw(st.booleans())
    model = ps.random_model(config, seed, dtype=torch.float64, biases=biases, gains=True)
    zeros = draw(st.integers(1, config.d_model))
    changed = {
        name: tensor * (torch.arange(config.d_model) >= zeros)
        for name, tensor in model.weights.items()
        if name.endswith(("post1_w", "post2_w"))
    }
    return ps.Model(ps.Weights(config, OverlayStore(model.weights.store, changed)))


TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9, 2]])


@given(zero_gain_models())
@settings(max_examples=25)
def test_identities_hold(model: ps.Model) -> None:
    trace = model.trace(TOKENS)
    assert relative(trace.logits, model(TOKENS)) < 1e-10
    assert trace.paths().remainder() < 1e-10
    assert trace.scores("L1H1").remainder() < 1e-10
    assert trace.circuit(token=6, versus="mean", effects=False).remainder < 1e-9
    assert close(fold(model)(TOKENS), model(TOKENS))


@given(zero_gain_models())
@settings(max_examples=25)
def test_the_norm_measures_the_output_before_its_gain(model: ps.Model) -> None:
    trace, eps = model.trace(TOKENS), model.config.norm_eps
    for layer in range(2):
        stored = {n: model.weights.read_optional(f"layers.{layer}.{n}") for n in ("W_O", "b_O")}
        W_O, b_O = stored["W_O"], stored["b_O"]
        assert isinstance(W_O, Tensor)
        written = torch.einsum("bhpk,hkd->bpd", trace.z(layer), W_O)
        written = written if b_O is None else written + b_O
        scale = (written.square().mean(-1) + eps) ** -0.5
        assert close(trace.scales.write[layer], scale)


@given(zero_gain_models())
@settings(max_examples=15)
def test_an_ablated_head_is_a_head_without_output_weights(model: ps.Model) -> None:
    edited = model.edited({"L0H1": "zero"})
    nothing = torch.zeros(model.config.d_head, dtype=torch.float64)
    ablated = run_logits(model.weights, TOKENS, [Edit(Site.parse("L0H1.z"), nothing)])
    assert close(edited(TOKENS), ablated)


@pytest.mark.parametrize("case", ["gemma2", "gemma3", "olmo2"])
def test_logits_are_those_of_transformers(case: str) -> None:
    theirs = tiny.make(case)
    zero = 0.0 if case == "olmo2" else -1.0  # Gemma's gains are 1 + weight
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if "post_" in name and name.endswith("norm.weight"):
                parameter[:3] = zero
        expected = theirs(TOKENS).logits
    found = ps.from_hf(theirs)(TOKENS)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
