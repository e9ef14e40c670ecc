"""Queries, keys and values by one parameter: value and gradients are those of the two products."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pathsum.training.packed import read_with_positions


def by_hand(
    x: torch.Tensor, table: torch.Tensor, weight: torch.Tensor, placed: int
) -> torch.Tensor:
    return torch.cat(((x + table) @ weight[:, :placed], x @ weight[:, placed:]), dim=-1)


@settings(max_examples=40)
@given(
    batch=st.integers(1, 3),
    places=st.integers(1, 5),
    d=st.integers(1, 6),
    n=st.integers(1, 9),
    share=st.floats(0, 1),
    seed=st.integers(0, 99),
)
def test_value_and_gradients(
    batch: int, places: int, d: int, n: int, share: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> torch.Tensor:
        made = torch.randn(shape, dtype=torch.float64, generator=generator)
        return made.requires_grad_()

    x, table, weight = drawn(batch, places, d), drawn(places, d), drawn(d, n)
    placed = round(share * n)
    ours, theirs = (read(x, table, weight, placed) for read in (read_with_positions, by_hand))
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    outer = drawn(batch, places, n).detach()
    mine = torch.autograd.grad(ours, (x, table, weight), outer)
    autograd = torch.autograd.grad(theirs, (x, table, weight), outer)
    for one, other in zip(mine, autograd, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_under_autocast_products_are_in_half() -> None:
    x, table, weight = torch.ones(1, 2, 4), torch.ones(2, 4), torch.ones(4, 6, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        packed = read_with_positions(x, table, weight, 4)
    assert packed.dtype == torch.bfloat16
    assert packed[0, 0].tolist() == [8, 8, 8, 8, 4, 4]
    packed.sum().backward()
    assert weight.grad is not None and weight.grad.dtype == torch.float32
