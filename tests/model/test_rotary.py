"""Rotary positions are rotations, and only the offset between two of them is seen."""

import cmath
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import pathsum as ps
from pathsum.model.config import RotaryPairing
from pathsum.model.rotary import angular_frequencies, mean_cos_sin, rotate

PAIRINGS = ["halves", "adjacent"]


def config(pairing: RotaryPairing, fraction: float = 1.0) -> ps.Config:
    return ps.Config(
        n_layers=1,
        n_heads=1,
        d_model=8,
        d_head=8,
        d_vocab=9,
        n_ctx=20,
        positions="rotary",
        rotary_pairing=pairing,
        rotary_fraction=fraction,
        rotary_base=100.0,
    )


def turned(x: torch.Tensor, place: int, pairing: RotaryPairing) -> torch.Tensor:
    return rotate(config(pairing), x[None], torch.tensor([place]))[0]


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_a_plane_turns_like_a_complex_number(pairing: RotaryPairing) -> None:
    x = torch.randn(8, dtype=torch.float64)
    planes = (
        [(i, i + 4) for i in range(4)]
        if pairing == "halves"
        else [(2 * i, 2 * i + 1) for i in range(4)]
    )
    found = turned(x, 3, pairing)
    for plane, (one, other) in enumerate(planes):
        angle = 3 * 100.0 ** (-2 * plane / 8)
        wanted = complex(x[one], x[other]) * cmath.exp(1j * angle)
        assert complex(found[one], found[other]) == pytest.approx(wanted)


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_only_the_offset_matters(pairing: RotaryPairing) -> None:
    query, key = torch.randn(2, 8, dtype=torch.float64)
    at = turned(query, 11, pairing) @ turned(key, 7, pairing)
    torch.testing.assert_close(at, turned(query, 4, pairing) @ key)
    assert (at - query @ key).abs() > 1e-3


def test_what_lies_past_the_rotary_width_stays() -> None:
    x = torch.randn(1, 8)
    half = rotate(config("halves", 0.5), x, torch.tensor([5]))
    assert torch.equal(half[:, 4:], x[:, 4:])
    assert not torch.allclose(half[:, :4], x[:, :4])
    assert len(angular_frequencies(config("halves", 0.5))) == 2


@pytest.mark.parametrize("offsets", [range(1), range(7), range(64), range(5, 6), range(3, 1000)])
def test_means_over_offsets_are_those_of_a_sum(offsets: range) -> None:
    speed = torch.tensor([0.0, 1e-9, 1e-4, 0.3, -1.0, 2.0, math.pi, 2 * math.pi, 7.0])
    speed = speed.double()
    angles = torch.tensor(offsets, dtype=torch.float64)[:, None] * speed
    cos, sin = mean_cos_sin(speed, offsets)
    torch.testing.assert_close(cos, angles.cos().mean(0), rtol=0, atol=1e-11)
    torch.testing.assert_close(sin, angles.sin().mean(0), rtol=0, atol=1e-11)


def test_a_device_without_float64() -> None:
    """MPS has none; the meta device stands in, with an eye on every dtype that reaches it."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class No64(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            found = func(*args, **(kwargs or {}))
            for tensor in tree_leaves(found):
                if isinstance(tensor, torch.Tensor) and tensor.device.type == "meta":
                    assert tensor.dtype != torch.float64, func
            return found

    with No64():
        rotated = rotate(config("halves"), torch.empty(2, 3, 8, device="meta"), torch.arange(3))
    assert (rotated.shape, rotated.dtype) == ((2, 3, 8), torch.float32)


def test_composition_leaves_a_device_without_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ps.random_model(ps.Config(2, 2, 8, 4, 9, 8))
    moved: list[object] = []

    def to(self: ps.Model, dtype: object = None, device: object = None) -> ps.Model:
        moved.append(device)
        return model

    monkeypatch.setattr(ps.Model, "to", to)
    weights = SimpleNamespace(config=model.config, device=SimpleNamespace(type="mps"))
    stand_in = ps.Model.__new__(ps.Model)
    object.__setattr__(stand_in, "weights", weights)
    ps.composition(stand_in)
    assert moved == ["cpu"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("fraction", [1.0, 0.5])
@pytest.mark.parametrize("pairing", PAIRINGS)
def test_other_precisions_rotate_alike(
    pairing: RotaryPairing, fraction: float, dtype: torch.dtype
) -> None:
    """Half precision has no complex numbers, so its planes are turned another way."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 5, 8, generator=generator).to(dtype)
    places = torch.arange(5)
    found = rotate(config(pairing, fraction), x, places)
    truth = rotate(config(pairing, fraction), x.double(), places)
    assert found.dtype == dtype
    # Cosine, sine, two products and a sum are rounded.
    size = 4 * float(truth.abs().max()) * torch.finfo(dtype).eps
    assert float((found.double() - truth).abs().max()) <= size
    assert float((found - x).abs().max()) > 0.1
