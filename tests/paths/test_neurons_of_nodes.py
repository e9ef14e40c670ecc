"""Neurons inside MLP nodes of a circuit: they add up, and carry modular addition."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.identities.configs import Drawn, mlp_models_with_tokens
from torch import Tensor

from pathsum.base.errors import InputError
from pathsum.model import Config, Model, construct, from_tensors
from pathsum.paths.circuit import find_circuit

P = 23


@given(mlp_models_with_tokens(), st.integers(0, 2**16), st.booleans())
@settings(max_examples=15)
def test_neurons_add_up_to_their_node(drawn: Drawn, seed: int, other: bool) -> None:
    model, tokens = drawn
    trace, token = model.trace(tokens[:1]), seed % model.config.d_vocab
    there = model.trace((3 * trace.tokens + 1) % model.config.d_vocab) if other else None
    found = find_circuit(trace, -1, token, "mean", 0.02, other=there, effects=False)
    for one in found.nodes:
        name = str(one.node.writer)
        if name.startswith("mlp") and not name.startswith("mlp_bias"):
            parts = found.neurons(one.node)
            assert len(parts) == model.config.d_mlp + 1
            assert parts.sum() == pytest.approx(one.value, abs=1e-9)


def test_other_nodes_have_no_neurons() -> None:
    found = construct.memory().trace("a b").circuit(effects=False)
    with pytest.raises(InputError, match="logits@2 has no neurons; name an MLP of the graph"):
        found.neurons(found.top)
    with pytest.raises(InputError, match="no node mlp7@2; it has logits@2, L0H0@2"):
        found.neurons("mlp7@2")


def modular_addition(steps: int = 400) -> tuple[Model, float]:
    """A one-layer transformer trained on a + b mod P, and the share of sums it gets right."""
    config = Config(1, 2, 48, 24, P + 1, 3, mlp="relu", d_mlp=128, positions="residual")
    draw = torch.Generator().manual_seed(0)
    shapes = {
        **dict.fromkeys(("W_Q", "W_K", "W_V"), (1, 2, 48, 24)),
        "W_O": (1, 2, 24, 48),
        "W_in": (1, 48, 128),
        "W_out": (1, 128, 48),
        "b_in": (1, 128),
        "W_E": (P + 1, 48),
        "W_pos": (3, 48),
        "W_U": (48, P + 1),
    }
    weights = {
        name: (torch.randn(shape, generator=draw) / shape[-2] ** 0.5).requires_grad_()
        for name, shape in shapes.items()
    }
    a, b = torch.meshgrid(torch.arange(P), torch.arange(P), indexing="ij")
    tokens = torch.stack([a.flatten(), b.flatten(), torch.full((P * P,), P)], 1)
    sums = (tokens[:, 0] + tokens[:, 1]) % P
    optimizer = torch.optim.Adam(weights.values(), lr=3e-3)
    logits = torch.empty(0)
    for _ in range(steps):
        logits = _logits(weights, tokens)
        loss = torch.nn.functional.cross_entropy(logits, sums)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    tensors = {name: tensor.detach() for name, tensor in weights.items()}
    model = from_tensors(config, tensors)
    return model, float((model(tokens)[:, -1].argmax(-1) == sums).double().mean())


def _logits(weights: dict[str, Tensor], tokens: Tensor) -> Tensor:
    """The logits at the last position, by the formulas of a transformer."""
    one = {name: tensor[0] if tensor.ndim > 2 else tensor for name, tensor in weights.items()}
    stream = one["W_E"][tokens] + one["W_pos"]
    query = torch.einsum("bd,hdk->bhk", stream[:, -1], one["W_Q"])
    key, value = (torch.einsum("bpd,hdk->bhpk", stream, one[name]) for name in ("W_K", "W_V"))
    pattern = (torch.einsum("bhk,bhpk->bhp", query, key) / 24**0.5).softmax(-1)
    moved = torch.einsum("bhp,bhpk,hkd->bd", pattern, value, one["W_O"])
    last = stream[:, -1] + moved
    last = last + (last @ one["W_in"] + one["b_in"][0]).relu() @ one["W_out"]
    return last @ one["W_U"]


@pytest.mark.slow
def test_both_operands_of_modular_addition_and_their_neurons() -> None:
    model, right = modular_addition()
    assert right > 0.99
    grid = torch.cartesian_prod(torch.arange(P), torch.arange(P), torch.tensor([P]))
    active = model.trace(grid)["mlp0.act"][:, 2].unflatten(0, (P, P))
    # How far each neuron varies with one operand while the other is fixed.
    varies = torch.stack([active.std(0).mean(0), active.std(1).mean(0)]) / active.std((0, 1))
    for a, b in ((3, 7), (20, 9), (11, 11), (0, 16), (14, 2), (22, 21)):
        circuit = model.trace([[a, b, P]]).circuit(effects=False)
        assert circuit.token == (a + b) % P
        names = {str(one.node) for one in circuit.nodes}
        assert {"embed@0", "embed@1", "mlp0@2"} <= names
        parts = circuit.neurons("mlp0@2")
        strongest = [str(name) for name, value in parts.ranked() if value > 0][:8]
        numbers = [int(name.partition(".n")[2]) for name in strongest if ".n" in name]
        assert len(numbers) >= 7
        assert sum(parts[f"mlp0.n{number}"] for number in numbers) > circuit.total / 4
        assert float(varies[:, numbers].min()) > 0.5
