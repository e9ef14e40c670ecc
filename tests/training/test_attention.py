"""Attention in blocks is PyTorch's attention, forwards and backwards."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from pathsum.errors import FailedError
from pathsum.training import attention
from pathsum.training.attention import causal_attention


@settings(max_examples=25)
@given(
    batch=st.integers(1, 3),
    heads=st.integers(1, 3),
    length=st.sampled_from([1, 2, 63, 64, 65, 128, 150]),
    k=st.integers(1, 5),
    scale=st.floats(0.1, 3),
    seed=st.integers(0, 9),
)
def test_values_and_gradients_are_those_of_the_fused_kernel(
    batch: int, heads: int, length: int, k: int, scale: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    # As training makes them: heads side by side in one tensor.
    packed = torch.randn(batch, length, 3 * heads, k, dtype=torch.float64, generator=generator)
    outer = torch.randn(batch, heads, length, k, dtype=torch.float64, generator=generator)
    found: list[tuple[torch.Tensor, torch.Tensor]] = []
    for attend in (causal_attention, _fused):
        x = packed.clone().requires_grad_()
        mixed = attend(*x.transpose(1, 2).chunk(3, dim=1), scale)
        mixed.backward(outer)
        assert x.grad is not None
        found.append((mixed.detach(), x.grad))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


def _fused(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)


@pytest.mark.parametrize("case", ["long", "grouped", "half"])
def test_what_blocks_are_not_made_for_goes_to_the_fused_kernel(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention._InBlocks, "apply", lambda *_: pytest.fail("in blocks"))
    length = attention.LONGEST + 1 if case == "long" else 8
    q = torch.randn(1, 4, length, 2)
    kv = torch.randn(1, 2 if case == "grouped" else 4, length, 2)
    if case == "half":
        q, kv = q.bfloat16(), kv.bfloat16()
    assert causal_attention(q, kv, kv, 1.0).shape == q.shape


def test_a_second_derivative_is_refused() -> None:
    q = torch.randn(1, 1, 3, 2, requires_grad=True)
    with pytest.raises(FailedError, match="its gradient has none"):
        torch.autograd.grad(causal_attention(q, q, q, 1.0).sum(), q, create_graph=True)
