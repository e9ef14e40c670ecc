"""Layers read by several threads at a time, as the explorer's workers do."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from pathsum.model import Config, random_model, store


def test_layers_may_be_read_by_several_threads_while_others_drop_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each reading drops what another thread has just read."""
    monkeypatch.setattr(store, "CONVERTED_HEAD_BYTES", 1)
    model = random_model(Config(4, 2, 8, 4, 11, 16)).to(torch.float64)
    expected = [model.weights.store.get(f"layers.{layer}.W_Q").double() for layer in range(4)]

    def read(piece: int) -> bool:
        return all(
            torch.equal(model.weights.attention[at % 4].W_Q, expected[at % 4])
            for at in range(piece, piece + 200)
        )

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(read, range(4)))
