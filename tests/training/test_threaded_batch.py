"""A batch in parts on threads: loss and gradients of the whole batch, weights in one memory."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.identities.configs import configs

from pathsum.model import Config
from pathsum.training.batching import ThreadedBatch
from pathsum.training.network import Network
from pathsum.training.recipe import Start


@settings(max_examples=25)
@given(configs(max_layers=2), st.integers(1, 3), st.integers(1, 2), st.integers(0, 99))
def test_loss_and_gradients_are_those_of_the_whole_batch(
    config: Config, parts: int, each: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(config.d_vocab, (parts * each, config.n_ctx), generator=generator)
    targets = tokens.roll(-1, 1)
    whole, split = (Network(config, Start(), seed).double() for _ in range(2))
    expected = whole(tokens, targets)
    expected.backward()
    loss = ThreadedBatch(split, parts).learn(tokens, targets)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-10)
    for (name, one), other in zip(split.named_parameters(), whole.parameters(), strict=True):
        assert one.grad is not None, name
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-8, atol=1e-12)


def test_a_step_moves_the_weights_of_all_parts() -> None:
    config = Config(2, 2, 8, 4, 11, 6)
    network = Network(config, Start(), 0)
    parts = ThreadedBatch(network, 2)
    tokens = torch.randint(11, (4, 6), generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.01, fused=True)
    losses: list[float] = []
    for _ in range(30):
        losses.append(parts.learn(tokens, tokens.roll(-1, 1)).item())
        optimizer.step()
        optimizer.zero_grad()
    assert losses[-1] < losses[0] / 2
    for own, its in zip(network.parameters(), parts.networks[1].parameters(), strict=True):
        assert own.data_ptr() == its.data_ptr()
        assert its.grad is None


def test_other_threads_keep_their_number() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        config = Config(1, 2, 8, 4, 11, 6)
        tokens = torch.zeros(2, 6, dtype=torch.long)
        ThreadedBatch(Network(config, Start(), 0), 2).learn(tokens, tokens)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_every_thread_multiplies_in_half_precision_where_asked() -> None:
    config = Config(2, 2, 8, 4, 11, 6)
    tokens = torch.randint(11, (4, 6), generator=torch.Generator().manual_seed(0))
    losses: dict[bool, float] = {}
    gradients: dict[bool, torch.Tensor] = {}
    for half in (False, True):
        network = Network(config, Start(), 0)
        losses[half] = ThreadedBatch(network, 2, half).learn(tokens, tokens.roll(-1, 1)).item()
        assert network.W_U.grad is not None and network.W_U.grad.dtype == torch.float32
        gradients[half] = network.W_U.grad
    assert losses[True] != losses[False]
    assert losses[True] == pytest.approx(losses[False], rel=0.02)
    torch.testing.assert_close(gradients[True], gradients[False], rtol=0.1, atol=0.01)
