"""The network that is trained computes what the exported model computes."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.identities.configs import configs

from pathsum.model import Config
from pathsum.training.network import Network, sinusoid
from pathsum.training.recipe import Start


def tokens_for(config: Config, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(config.d_vocab, (2, config.n_ctx), generator=generator)


@settings(max_examples=40)
@given(
    configs(max_layers=3, causal=(True,)),
    st.sampled_from(["each", "shared"]),
    st.sampled_from([0.0, 0.25, 1.0]),
    st.integers(0, 1000),
)
def test_logits_equal_those_of_the_exported_model(
    config: Config, tables: str, scale: float, seed: int
) -> None:
    start = Start(position_tables=tables, later_position_scale=scale)  # pyright: ignore[reportArgumentType]
    network = Network(config, start, seed).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():  # gains and biases of norms begin at 1 and 0, which would hide a swap
        for parameter in network.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(0.1 * noise)
            parameter.copy_(parameter.float())  # an exported model is float32
    tokens = tokens_for(config, seed)
    model = network.to_model().to(torch.float64)
    torch.testing.assert_close(network.logits(tokens), model(tokens), rtol=1e-9, atol=1e-9)


def test_the_loss_is_that_of_the_logits() -> None:
    config = Config(1, 2, 8, 4, 11, 6)
    network = Network(config, Start(), 0)
    tokens = tokens_for(config, 0)
    chances = network.logits(tokens).log_softmax(-1)
    by_hand = -chances.gather(-1, tokens.roll(-1, 1)[..., None]).mean()
    torch.testing.assert_close(network(tokens, tokens.roll(-1, 1)), by_hand)


def test_every_parameter_learns() -> None:
    config = Config(2, 4, 8, 4, 11, 6, norm="layer", mlp="silu_gated", n_kv_heads=2, qk_norm="rms")
    network = Network(config, Start(), 0)
    tokens = tokens_for(config, 0)
    network(tokens, tokens.roll(-1, 1)).backward()
    still = [
        name
        for name, parameter in network.named_parameters()
        if parameter.grad is None or not bool(parameter.grad.any())
    ]
    assert still == []


def test_gains_before_attention_begin_as_asked() -> None:
    config = Config(2, 2, 8, 4, 11, 6, norm="rms", mlp="silu_gated")
    network = Network(config, Start(attention_gain=0.2), 0)
    begun = {
        name: float(p.detach().mean()) for name, p in network.named_parameters() if "ln" in name
    }
    assert {name.split(".")[-1]: round(gain, 6) for name, gain in begun.items()} == {
        "ln1_w": 0.2,
        "ln2_w": 1.0,
        "ln_f_w": 1.0,
    }


def test_a_shared_table_of_other_scale_is_exported_a_layer_each() -> None:
    config = Config(2, 2, 8, 4, 11, 6)
    model = Network(config, Start(position_tables="shared"), 0).to_model()
    first, second = (layer.W_pos for layer in model.weights.layers)
    assert first is not None
    assert second is not None
    torch.testing.assert_close(second, first * 0.25)


def test_the_same_seed_gives_the_same_weights() -> None:
    config = Config(1, 2, 8, 4, 11, 6)
    one, same, other = (Network(config, Start(), seed).W_E for seed in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


@pytest.mark.parametrize("d", [7, 8])
def test_the_sinusoid_has_amplitude_one_and_tells_neighbors_apart(d: int) -> None:
    table = sinusoid(64, d)
    assert table.shape == (64, d)
    assert float(table.abs().max()) <= 1.0
    nearness = table @ table.T
    assert bool((nearness.diagonal() > nearness.diagonal(1).max()).all())


def test_zero_layers_have_no_positions_to_learn() -> None:
    config = dataclasses.replace(Config(1, 2, 8, 4, 11, 6), n_layers=0)
    names = [name for name, _ in Network(config, Start(), 0).named_parameters()]
    assert names == ["W_E", "W_U"]
