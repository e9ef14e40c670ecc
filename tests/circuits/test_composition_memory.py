"""What composition holds does not grow with the depth of a model that has to be converted."""

import gc
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import pathsum as ps
from pathsum.circuits.composition import stored_factor
from pathsum.circuits.composition.reads_and_writes import sides
from pathsum.model import Config

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


def test_factors_that_are_not_held_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = half_precision(tmp_path, 6)
    held_before = converted_bytes()
    forms = sides(model, centered=False, offset=None)
    assert converted_bytes() - held_before > 5 * 4 * HEADS * D * K * 4
    del forms
    monkeypatch.setattr(stored_factor, "MOST_HELD", 0)
    model = ps.load(tmp_path)
    held_before = converted_bytes()
    forms = sides(model, centered=False, offset=None)
    # Inner factors [head, k, k] stay; no outer factor does, nor any MLP.
    assert converted_bytes() - held_before < 4 * 4 * HEADS * D * K * 4
    assert len(forms.write) == 5 * HEADS


@pytest.mark.parametrize("center", ["on", "off"])
def test_scores_are_the_same_held_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, center: str
) -> None:
    model = half_precision(tmp_path, 3)
    held = ps.composition(model, center=center)  # pyright: ignore[reportArgumentType]
    monkeypatch.setattr(stored_factor, "MOST_HELD", 0)
    again = ps.composition(ps.load(tmp_path), center=center)  # pyright: ignore[reportArgumentType]
    for kind in ("q", "k", "v"):
        torch.testing.assert_close(
            again.scores(kind).score, held.scores(kind).score, equal_nan=True
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
