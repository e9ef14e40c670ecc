"""Hand-written autograd functions equal what PyTorch computes, values and gradients."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pathsum.base.errors import FailedError
from pathsum.training.fused_ops import causal_attention, mean_loss, read_with_positions


@settings(max_examples=40)
@given(
    n=st.integers(1, 12),
    vocab=st.integers(1, 30),
    scale=st.sampled_from([0.0, 1.0, 300.0]),
    outer=st.floats(-3, 3),
    seed=st.integers(0, 9),
)
def test_value_and_gradient_are_those_of_cross_entropy(
    n: int, vocab: int, scale: float, outer: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(n, vocab, dtype=torch.float64, generator=generator) * scale
    targets = torch.randint(vocab, (n,), generator=generator)
    ours, theirs = drawn.clone().requires_grad_(), drawn.clone().requires_grad_()
    loss = mean_loss(ours, targets)
    expected = torch.nn.functional.cross_entropy(theirs, targets)
    (loss * outer).backward()
    (expected * outer).backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-12, abs=1e-12)
    assert ours.grad is not None and theirs.grad is not None
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-10, atol=1e-14)


def test_half_precision_is_widened_and_its_gradient_comes_back_in_half() -> None:
    logits = torch.randn(8, 50, generator=torch.Generator().manual_seed(0)).bfloat16()
    targets = torch.arange(8)
    given = logits.clone().requires_grad_()
    loss = mean_loss(given, targets)
    loss.backward()
    assert loss.dtype == torch.float32
    assert given.grad is not None and given.grad.dtype == torch.bfloat16
    wide = logits.float().requires_grad_()
    torch.nn.functional.cross_entropy(wide, targets).backward()
    assert wide.grad is not None
    torch.testing.assert_close(given.grad.float(), wide.grad, rtol=0.01, atol=1e-4)


def test_a_second_derivative_is_refused() -> None:
    logits = torch.zeros(2, 3, requires_grad=True)
    loss = mean_loss(logits, torch.tensor([0, 1]))
    with pytest.raises(FailedError, match="no second derivative"):
        torch.autograd.grad(loss, logits, create_graph=True)


def test_a_probability_too_small_for_its_type_keeps_its_digits() -> None:
    logits = torch.tensor([[0.0, -95.5, -400.0], [1.0, 2.0, 3.0]])
    for targets in (torch.tensor([1, 0]), torch.tensor([2, 1])):
        expected = torch.nn.functional.cross_entropy(logits.double(), targets).item()
        assert mean_loss(logits, targets).item() == pytest.approx(expected, rel=1e-6)


def by_hand(
    x: torch.Tensor, table: torch.Tensor, weight: torch.Tensor, n_positional: int
) -> torch.Tensor:
    return torch.cat(((x + table) @ weight[:, :n_positional], x @ weight[:, n_positional:]), dim=-1)


@settings(max_examples=40)
@given(
    batch=st.integers(1, 3),
    length=st.integers(1, 5),
    d=st.integers(1, 6),
    n=st.integers(1, 9),
    share=st.floats(0, 1),
    seed=st.integers(0, 99),
)
def test_the_packed_read_and_its_gradients_are_those_of_two_products(
    batch: int, length: int, d: int, n: int, share: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> torch.Tensor:
        made = torch.randn(shape, dtype=torch.float64, generator=generator)
        return made.requires_grad_()

    x, table, weight = drawn(batch, length, d), drawn(length, d), drawn(d, n)
    n_positional = round(share * n)
    ours, theirs = (read(x, table, weight, n_positional) for read in (read_with_positions, by_hand))
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    outer = drawn(batch, length, n).detach()
    mine = torch.autograd.grad(ours, (x, table, weight), outer)
    autograd = torch.autograd.grad(theirs, (x, table, weight), outer)
    for one, other in zip(mine, autograd, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_under_autocast_the_packed_read_is_in_half_precision() -> None:
    x, table, weight = torch.ones(1, 2, 4), torch.ones(2, 4), torch.ones(4, 6, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        packed = read_with_positions(x, table, weight, 4)
    assert packed.dtype == torch.bfloat16
    assert packed[0, 0].tolist() == [8, 8, 8, 8, 4, 4]
    packed.sum().backward()
    assert weight.grad is not None and weight.grad.dtype == torch.float32


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
