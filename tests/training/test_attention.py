"""Attention that keeps its patterns equals PyTorch's, values and gradients."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pathsum.training.network import causal_attention


@settings(max_examples=25)
@given(
    batch=st.integers(1, 3),
    length=st.sampled_from([1, 2, 7, 128, 256, 300]),
    heads=st.integers(1, 3),
    d_head=st.integers(1, 5),
    scale=st.floats(0.01, 3.0),
    seed=st.integers(0, 99),
)
def test_attention_and_its_gradient_are_those_of_pytorch(
    batch: int, length: int, heads: int, d_head: int, scale: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    size = (batch, length, 3 * heads * d_head)
    drawn = torch.randn(size, dtype=torch.float64, generator=generator)
    outer = torch.randn(batch, length, heads * d_head, dtype=torch.float64, generator=generator)
    ours, theirs = drawn.clone().requires_grad_(), drawn.clone().requires_grad_()
    z = causal_attention(ours, d_head, scale)
    split = theirs.unflatten(-1, (-1, d_head)).transpose(1, 2).split(heads, dim=1)
    fused = torch.nn.functional.scaled_dot_product_attention(*split, is_causal=True, scale=scale)
    expected = fused.transpose(1, 2).flatten(2)
    z.backward(outer)
    expected.backward(outer)
    torch.testing.assert_close(z, expected, rtol=1e-10, atol=1e-12)
    assert ours.grad is not None and theirs.grad is not None
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-9, atol=1e-11)


def test_attention_stays_in_the_precision_of_what_it_reads() -> None:
    packed = torch.randn(2, 9, 24, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", torch.bfloat16):
        half = causal_attention(packed.bfloat16(), 4, 0.5)
        whole = causal_attention(packed, 4, 0.5)
    assert half.dtype == torch.bfloat16
    assert whole.dtype == torch.float32
    torch.testing.assert_close(half.float(), whole, rtol=0.05, atol=0.05)
