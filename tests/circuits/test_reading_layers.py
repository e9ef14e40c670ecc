"""Analyses of weights read layer by layer, and hold a bounded number of converted layers."""

import gc
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import pathsum as ps
from pathsum.circuits.positional import positional
from pathsum.model import Config, Weights, store
from pathsum.model.store import MemoryStore

D, HEADS, K = 48, 3, 16


def half_precision(folder: Path, layers: int) -> ps.Model:
    """A bfloat16 checkpoint, which is computed in float32."""
    config = Config(
        layers, HEADS, D, K, 11, 16, positions="rotary", norm="rms", mlp="relu", d_mlp=64
    )
    model = ps.random_model(config, gains=True)
    stored = {name: model.weights.store.get(name).bfloat16() for name in model.weights.names}
    model.save(folder)
    save_file(stored, folder / "model.safetensors")
    return ps.load(folder)


def converted_bytes() -> int:
    """Bytes of live float32 tensors, each storage once, as large as a matrix of a layer."""
    gc.collect()
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for tensor in gc.get_objects()
        if issubclass(type(tensor), torch.Tensor)
        and (tensor.dtype, tensor.layout) == (torch.float32, torch.strided)
    }
    return sum(size for size in storages.values() if size >= 4 * HEADS * D * K)


class MakingStore(MemoryStore):
    """A store that makes a tensor whenever it is read, as one of quantized tensors does."""

    def copies(self, name: str) -> bool:
        return name in self.shapes

    def get(self, name: str) -> torch.Tensor:
        return super().get(name).clone()


OUTER = 4 * HEADS * D * K * 4
"""Bytes of one layer's outer factors in float32."""


def test_heads_alone_are_kept_up_to_a_bound_whatever_the_depth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "CONVERTED_HEAD_BYTES", 2 * OUTER + 4096)
    model = half_precision(tmp_path, 7)
    held_before = converted_bytes()
    ps.copying(model, measures="eigenvalues")
    positional(model)
    assert converted_bytes() - held_before < 4 * OUTER
    # What a run keeps is not read a second time for its heads.
    model(torch.tensor([1, 2, 3]))
    for layer in range(7):
        assert model.weights.attention[layer].W_Q is model.weights.layers[layer].W_Q


@pytest.mark.parametrize("center", ["on", "off"])
def test_scores_are_the_same_held_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, center: str
) -> None:
    mapped = half_precision(tmp_path, 3)
    tensors = {name: tensor.clone() for name, tensor in mapped.weights.items()}
    made = replace(mapped, weights=Weights(mapped.config, MakingStore(tensors)))
    held = ps.composition(made, center=center)  # pyright: ignore[reportArgumentType]
    monkeypatch.setattr(import_module("pathsum.circuits.composition"), "HELD_BYTES", 0)
    again = ps.composition(made, center=center)  # pyright: ignore[reportArgumentType]
    converted = ps.composition(mapped, center=center)  # pyright: ignore[reportArgumentType]
    for kind in ("q", "k", "v"):
        for other in (again, converted):
            torch.testing.assert_close(
                other.scores(kind).score, held.scores(kind).score, equal_nan=True
            )


def test_weights_alone_do_not_read_mlps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = half_precision(tmp_path, 3)
    read: list[str] = []
    plain = ps.Weights.read
    monkeypatch.setattr(
        ps.Weights, "read", lambda self, name: (read.append(name), plain(self, name))[1]
    )
    ps.composition(model)
    ps.copying(model)
    _ = model.head("L1H0").ov
    assert any("W_O" in name for name in read)
    assert [name for name in read if "W_in" in name or "W_out" in name] == []
    model(torch.tensor([1, 2, 3]))
    assert "layers.2.W_out" in read
    # A layer and its heads alone share one copy of what both have.
    assert model.weights.layers[1].W_Q is model.weights.attention[1].W_Q
