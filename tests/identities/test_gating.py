"""Neurons as values times gates: identities of every activation, in float64."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.identities.configs import MLPS, Drawn, close, mlp_models_with_tokens
from torch import Tensor

import pathsum as ps
from pathsum.base.errors import InputError, NotExactError
from pathsum.model import Config, Model, Weights, activations, transformer
from pathsum.model.gating import (
    Neurons,
    gate_at_rest,
    gate_of,
    gate_secant,
    mean_slopes,
    neurons,
    neurons_of,
    router_part,
)
from pathsum.model.store import MemoryStore

SIZES: dict[str, Any] = {
    "n_layers": 2,
    "n_heads": 2,
    "d_model": 8,
    "d_head": 4,
    "d_vocab": 11,
    "n_ctx": 8,
}
EVERY = st.sampled_from(MLPS)


def config_of(mlp: str) -> Config:
    return Config(**SIZES).replace(mlp=mlp)


def scaled(model: Model, factor: float) -> Model:
    """The model with larger gates and inputs, so that some of them are clamped."""
    larger = ("W_in", "W_gate")
    flat = {
        name: tensor * factor if name.endswith(larger) else tensor
        for name, tensor in model.weights.items()
    }
    return replace(model, weights=Weights(model.config, MemoryStore(flat)))


def inputs(seed: int, scale: float = 6.0) -> Tensor:
    """Numbers of all sizes and both signs, 0 among them."""
    drawn = torch.randn(40, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.cat([drawn * scale, drawn * 1e-6, torch.zeros(1, dtype=torch.float64)])


@given(mlp_models_with_tokens(), st.sampled_from([1.0, 9.0]))
@settings(max_examples=80)
def test_value_times_gate_is_what_the_mlp_writes(drawn: Drawn, factor: float) -> None:
    model, tokens = drawn
    model = scaled(model, factor)
    trace = model.trace(tokens)
    for layer in range(model.config.n_layers):
        raw, found = model.weights.layers[layer], neurons_of(trace, layer)
        assert raw.W_out is not None
        written = found.activation @ raw.W_out
        if raw.b_out is not None:
            written = written + raw.b_out
        if raw.b_experts is not None:
            assert found.experts is not None
            written = written + found.experts @ raw.b_experts
        if model.config.norm_place != "before":
            written = transformer.normalize(model.config, written, raw.post2_w, None)[0]
        assert close(written, trace.mlp_outputs[layer])


@given(mlp_models_with_tokens(), st.sampled_from([1.0, 9.0]))
@settings(max_examples=40)
def test_values_follow_from_the_slope_of_the_clamp(drawn: Drawn, factor: float) -> None:
    model, tokens = drawn
    model = scaled(model, factor)
    read = model.trace(tokens).streams[0]
    before = activations.preactivations(model.weights.layers[0], read)[0]
    found = neurons(model.weights, 0, read)
    if model.config.mlp == "clamped_gated":
        assert found.value_slope is not None
        assert close(found.value_slope * before + 1, found.value)
    else:
        assert found.value_slope is None and close(found.value, before)


@given(EVERY, st.integers(0, 2**16))
@settings(max_examples=60)
def test_gates_and_secants(mlp: str, seed: int) -> None:
    config, g = config_of(mlp), inputs(seed)
    rest, gate, secant = gate_at_rest(config), gate_of(config, g), gate_secant(config, g)
    assert float(gate_of(config, g.new_zeros(1))) == rest
    torch.testing.assert_close(rest + secant * g, gate, rtol=1e-12, atol=1e-14)
    assert bool(torch.isfinite(secant).all())
    if mlp != "relu":
        # A derivative at 0 is the limit of secants.
        near = gate_secant(config, g.new_tensor([0.0, 1e-7]))
        assert math.isclose(float(near[0]), float(near[1]), rel_tol=1e-6)
    u = torch.randn(len(g), dtype=g.dtype, generator=torch.Generator().manual_seed(seed + 1))
    clamped = g.clamp(max=activations.CLAMP) if mlp == "clamped_gated" else g
    truth = activations.activation(config, clamped) * (u if config.gated else 1)
    torch.testing.assert_close(gate * (u if config.gated else g), truth, rtol=1e-11, atol=1e-14)


def drawn_neurons(config: Config, seed: int, scale: float) -> Neurons:
    generator = torch.Generator().manual_seed(seed)
    u, g = scale * torch.randn(2, 1, 3, 50, generator=generator, dtype=torch.float64)
    slope = None
    if config.mlp == "clamped_gated":
        clamped = u.clamp(-activations.CLAMP, activations.CLAMP)
        slope, u = clamped / u, clamped + 1
    elif not config.gated:
        g = u
    return Neurons(u, gate_of(config, g), g, slope)


def unclamped(found: Neurons) -> Tensor:
    return found.value if found.value_slope is None else (found.value - 1) / found.value_slope


@given(EVERY, st.integers(0, 2**16), st.sampled_from([1e-9, 1e-4, 1.0, 8.0]))
@settings(max_examples=120)
def test_mean_slopes_add_up_to_the_difference(mlp: str, seed: int, distance: float) -> None:
    config = config_of(mlp)
    before, other = drawn_neurons(config, seed, 6.0), drawn_neurons(config, seed + 1, 6.0)
    u = unclamped(before) + distance * (unclamped(other) - unclamped(before))
    g = before.gate_input + distance * (other.gate_input - before.gate_input)
    value, slope = u, None
    if mlp == "clamped_gated":
        value = u.clamp(-activations.CLAMP, activations.CLAMP) + 1
        slope = (value - 1) / u
    after = Neurons(value, gate_of(config, g), g, slope)
    by_value, by_gate = mean_slopes(config, before, after)
    if not config.gated:
        after, g = Neurons(u, gate_of(config, u), u), u
        by_value, by_gate = mean_slopes(config, before, after)
    total = by_value * (u - unclamped(before)) + by_gate * (g - before.gate_input)
    assert close(total, after.activation - before.activation, 1e-10)


@given(st.sampled_from(["silu_gated", "gelu_gated", "gelu", "gelu_tanh"]), st.integers(0, 2**16))
@settings(max_examples=20)
def test_mean_slopes_are_integrals(mlp: str, seed: int) -> None:
    config = config_of(mlp)
    before, after = drawn_neurons(config, seed, 2.0), drawn_neurons(config, seed + 1, 2.0)
    t = ((torch.arange(4000, dtype=torch.float64) + 0.5) / 4000)[:, None, None, None]
    u = before.value + t * (after.value - before.value)
    g = (before.gate_input + t * (after.gate_input - before.gate_input)).requires_grad_()
    gate = gate_of(config, g)
    (derivative,) = torch.autograd.grad(gate.sum(), g)
    by_value, by_gate = mean_slopes(config, before, after)
    # The midpoint rule of 4,000 points is good to (Δg)² / (24 · 4000²) times a second derivative.
    torch.testing.assert_close(by_value, gate.detach().mean(0), rtol=0, atol=2e-6)
    torch.testing.assert_close(by_gate, (derivative * u).mean(0), rtol=0, atol=5e-5)


@given(mlp_models_with_tokens(), st.integers(0, 2**16))
@settings(max_examples=40)
def test_two_runs_of_a_model_differ_by_slopes_and_the_router(drawn: Drawn, seed: int) -> None:
    model, tokens = drawn
    other = tokens[:, torch.randperm(tokens.shape[1], generator=torch.manual_seed(seed))]
    config, raw = model.config, model.weights.layers[0]
    one, two = (neurons_of(model.trace(text), 0) for text in (tokens, other))
    by_value, by_gate = mean_slopes(config, one, two)
    total = by_value * (unclamped(two) - unclamped(one))
    total = total + by_gate * (two.gate_input - one.gate_input)
    routed = router_part(config, one, two)
    assert (routed is None) == (raw.W_router is None)
    total = total if routed is None else total + routed
    assert close(total, two.activation - one.activation)


def test_a_permutation_of_neurons_permutes_them() -> None:
    model = ps.random_model(config_of("silu_gated"), dtype=torch.float64)
    order = torch.randperm(model.config.d_mlp, generator=torch.Generator().manual_seed(3))
    flat = dict(model.weights.items())
    for name, tensor in flat.items():
        if name.endswith(("W_in", "W_gate")):
            flat[name] = tensor[:, order]
        elif name.endswith("W_out"):
            flat[name] = tensor[order]
    permuted = replace(model, weights=Weights(model.config, MemoryStore(flat)))
    tokens = torch.tensor([[1, 2, 3]])
    mine, theirs = (neurons_of(one.trace(tokens), 1) for one in (model, permuted))
    torch.testing.assert_close(mine.activation[..., order], theirs.activation)


def test_messages() -> None:
    attention_only = ps.random_model(Config(**SIZES))
    with pytest.raises(InputError, match="this model has no MLPs, so it has no neurons; use a mod"):
        neurons_of(attention_only.trace([[1, 2]]), 0)
    config = config_of("gelu")
    object.__setattr__(config, "mlp", "swish_squared")
    with pytest.raises(NotExactError, match="mlp='swish_squared' is not known as a value times a"):
        gate_of(config, torch.zeros(1))


@pytest.mark.parametrize("mlp", ["solu", "solu_ln"])
def test_messages_about_mlps_without_gates_advise_what_there_is(mlp: str) -> None:
    config: Any = {**SIZES, "mlp": mlp}
    model, tokens = ps.random_model(Config(**config)), [[1, 2, 3], [2, 3, 1]]
    calls = (
        lambda: ps.neurons(model, "mlp0", tokens),
        lambda: ps.neuron(model, "mlp0.n1", tokens),
        lambda: model.trace(tokens).lens(),
        lambda: ps.mean_lens(model, tokens),
        lambda: ps.term_importance(model, tokens, mlps="linear"),
        lambda: ps.rule_agreement(model, tokens),
    )
    message = f"mlp='{mlp}' is not known as a value times a gate"
    for call in calls:
        with pytest.raises(NotExactError, match=message) as found:
            call()
        assert "mlps=" not in str(found.value)
