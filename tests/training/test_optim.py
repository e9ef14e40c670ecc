import torch
from hypothesis import given
from hypothesis import strategies as st

from pathsum.training.optim import MatrixBlocks, Muon, orthogonalize


@given(st.sampled_from(["columns", "rows"]), st.integers(1, 4), st.integers(1, 5))
def test_blocks_split_and_join_again(side: str, count: int, width: int) -> None:
    blocks = MatrixBlocks(side, width)  # pyright: ignore[reportArgumentType]
    matrix = torch.arange(6.0 * count * width).view(6, count * width)
    matrix = matrix if side == "columns" else matrix.T.contiguous()
    assert torch.equal(blocks.join(blocks.split(matrix)), matrix)


def test_blocks_of_columns_are_heads() -> None:
    heads = torch.randn(3, 8, 4, generator=torch.Generator().manual_seed(0))  # head, d, k
    packed = heads.permute(1, 0, 2).flatten(1)
    assert torch.equal(MatrixBlocks("columns", 4).split(packed), heads.mT)


@given(st.integers(0, 1000))
def test_orthogonalize_keeps_directions_and_levels_lengths(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(3, 4, 12, generator=generator, dtype=torch.float64)
    u, _, vh = torch.linalg.svd(x, full_matrices=False)
    y = orthogonalize(x)
    rotated = u.mT @ y @ vh.mT  # diagonal if the singular vectors are kept
    singular = rotated.diagonal(0, 1, 2)
    torch.testing.assert_close(rotated, torch.diag_embed(singular), atol=1e-9, rtol=0)
    assert bool((singular > 0.3).all())
    assert bool((singular < 1.3).all())


@given(st.integers(0, 1000))
def test_orthogonalize_is_the_textbook_iteration(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2, 8, 32, generator=generator)
    # Singular values from 1 to 1e-4: what is small must not drown in rounding.
    x = x * torch.logspace(0, -4, 8)[:, None]
    y = x / x.norm(dim=(-2, -1), keepdim=True)
    for _ in range(5):
        gram = y @ y.mT
        y = 3.4445 * y + (-4.7750 * gram + 2.0315 * gram @ gram) @ y
    torch.testing.assert_close(orthogonalize(x), y, atol=1e-3, rtol=1e-3)


def test_a_step_is_the_orthogonalized_nesterov_momentum_of_each_block() -> None:
    generator = torch.Generator().manual_seed(1)
    weight = torch.nn.Parameter(torch.randn(6, 4, generator=generator))
    optimizer = Muon(
        [{"params": [weight], "blocks": MatrixBlocks("columns", 2)}], lr=0.1, momentum=0.9
    )
    before, momentum = weight.detach().clone(), torch.zeros(6, 4)
    for _ in range(2):
        weight.grad = torch.randn(6, 4, generator=generator)
        optimizer.step()
        momentum = 0.9 * momentum + 0.1 * weight.grad
        pushed = 0.1 * weight.grad + 0.9 * momentum
        steps = [orthogonalize(pushed[:, at : at + 2].T[None])[0].T for at in (0, 2)]
        before = before - 0.1 * torch.cat(steps, dim=1)
        torch.testing.assert_close(weight.detach(), before)


def test_a_gradient_of_zero_moves_nothing() -> None:
    weight = torch.nn.Parameter(torch.ones(4, 4))
    optimizer = Muon(
        [{"params": [weight], "blocks": MatrixBlocks("rows", 2)}], lr=0.1, momentum=0.9
    )
    weight.grad = torch.zeros(4, 4)
    optimizer.step()
    assert torch.equal(weight.detach(), torch.ones(4, 4))
