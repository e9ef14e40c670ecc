"""Random rotations with a given spectrum: uniform frames, and the law of dense rotations."""

import pytest
import torch
from tests.algebra.factors import gaussian

from pathsum.algebra import Factored, rotations
from pathsum.algebra.rotations import (
    STOP_AT,
    TIE,
    random_frames,
    root,
    rotated_cores,
    rotated_ratios,
    rotated_spectra,
    sequential_p,
    significant_values,
    spectra_between,
)
from pathsum.algebra.spectrum import positivity
from pathsum.base.errors import InputError


def test_frames_are_orthonormal_and_uniform() -> None:
    frames = random_frames(4000, 5, 2, torch.Generator().manual_seed(0))
    eye = torch.eye(2, dtype=torch.float64).expand(4000, 2, 2)
    torch.testing.assert_close(frames.mT @ frames, eye)
    # Of a uniform direction in d dimensions every entry has variance 1/d and fourth moment
    # 3 / (d (d + 2)).
    assert float(frames.mean(0).abs().max()) < 4 * (0.2 / 4000) ** 0.5
    assert torch.allclose(frames.square().mean(0), torch.tensor(0.2).double(), atol=0.012)
    assert torch.allclose(frames.pow(4).mean(0), torch.tensor(3 / 35).double(), atol=0.012)
    with pytest.raises(InputError, match="3 orthonormal directions do not fit into 2 dimensions"):
        random_frames(1, 2, 3, torch.Generator())


def test_a_frame_times_the_root_has_the_gram_matrix() -> None:
    W = gaussian(1, 3, 9, 4)
    frames = random_frames(3, 9, 4, torch.Generator().manual_seed(1))
    rotated = frames @ root(W)
    torch.testing.assert_close(rotated.mT @ rotated, W.mT @ W)
    wide = gaussian(2, 3, 4, 9)
    assert root(wide) is wide  # d ≤ k: nothing smaller than W itself


def test_rounding_is_no_singular_value() -> None:
    line = Factored(torch.randn(20, 1), torch.randn(1, 20))
    twice = Factored(line.A.repeat(1, 3), line.B.repeat(3, 1))
    values = significant_values(twice)
    assert values.dtype == torch.float64 and int((values > 0).sum()) == 1
    # A matrix of rank one has a ratio of exactly 1 or −1 in every draw.
    ratios = rotated_ratios(torch.ones(20), values, 20, draws=50)
    assert torch.equal(ratios.abs().round(decimals=12), torch.ones(50, dtype=torch.float64))


@pytest.mark.parametrize("order", [1, 2])
def test_the_law_is_that_of_dense_matrices_rotated(order: int) -> None:
    """Products of matrices U D Vᵀ between C and C', each rotated at random on both sides."""
    d, r, draws = 7, 3, 4000
    C = [gaussian(3 + i, d, d) * torch.arange(1, d + 1) ** -1.0 for i in range(order)]
    D = [torch.tensor([1.0, 0.6, 0.1], dtype=torch.float64) ** (i + 1) for i in range(order)]
    around = [torch.linalg.svdvals(c) for c in C]
    ours = positivity(rotated_spectra(around, D, d, draws=2 * draws))
    generator = torch.Generator().manual_seed(9)
    product = torch.eye(d, dtype=torch.float64)
    for c, values in zip(C, D, strict=True):
        U, V = (
            torch.linalg.qr(torch.randn(draws, d, r, generator=generator).double())[0]
            for _ in range(2)
        )
        product = product @ (U * values) @ V.mT @ c
    top = torch.linalg.eigvals(product)
    dense = positivity(top)
    levels = torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9], dtype=torch.float64)
    assert len(ours) == draws
    gap = ours.abs().quantile(levels) - dense.abs().quantile(levels)
    assert float(gap.abs().max()) < 0.05


def test_more_values_than_dimensions_and_none_at_all() -> None:
    found = rotated_spectra([torch.ones(3)], [torch.tensor([1.0, 1, 1, 0])], 3, draws=10)
    assert found.shape == (5, 3)
    assert bool(rotated_ratios(torch.ones(3), torch.zeros(2, 3), 3, draws=4).isnan().all())


def test_a_sequential_p_counts_all_draws_unless_many_are_above() -> None:
    values, draws = torch.tensor([1.0, 0.7, 0.4, 0.1]).double(), 200
    null = rotated_ratios(torch.ones(12), values, 12, draws=draws)
    cores = rotated_cores([torch.ones(12)], 12, 4, draws=draws)
    ratios = torch.linspace(-1, 1, 101, dtype=torch.float64)
    found = sequential_p(ratios, cores, [values.expand(101, 4)])
    above = (null >= ratios[:, None]).sum(-1)
    few = above < STOP_AT
    assert bool(few.any() and (~few).any())
    assert torch.equal(found[few], (1 + above[few]).double() / (1 + draws))
    assert bool((found[~few] >= STOP_AT / draws).all())
    # Of a stopped one p is the share among those that were made.
    assert bool((found - (1 + above) / (1 + draws)).abs().max() < 0.25)
    none = sequential_p(torch.tensor([torch.nan, 1.5]), cores, [values.expand(2, 4)])
    assert bool(none[0].isnan()) and float(none[1]) == 1 / (1 + draws)


@pytest.mark.slow
def test_under_the_null_a_sequential_p_is_small_no_more_often_than_it_says() -> None:
    values, draws, tries = torch.tensor([1.0, 0.5, 0.2]).double(), 100, 3000
    own = rotated_ratios(torch.ones(9), values, 9, draws=tries, seed=1)[:tries]
    own = own[torch.randperm(tries, generator=torch.Generator().manual_seed(2))]
    found = list[torch.Tensor]()
    # Heads that share draws are not independent, so every few get their own.
    for seed, some in enumerate(own.split(3)):
        cores = rotated_cores([torch.ones(9)], 9, 3, draws=draws, seed=10 + seed)
        found.append(sequential_p(some, cores, [values.expand(len(some), 3)]))
    p = torch.cat(found)
    for alpha in (0.01, 0.05, 0.1, 0.2, 0.4):
        rate = float((p <= alpha).double().mean())
        error = (alpha * (1 - alpha) / tries) ** 0.5
        assert rate <= alpha + 3 * error
        assert rate >= 0.7 * alpha - 3 * error  # and it has power


@pytest.mark.parametrize(
    ("spectrum", "around"),
    [
        ([1.0] * 12, [1.0] * 30),  # bounds decide almost everything
        ([0.6**i for i in range(12)], [1.0 / (1 + i) for i in range(30)]),
        ([1.0, 0.5, 0.2] + [0.0] * 9, [1.0] * 30),  # determinants are 0
        ([1.0] + [0.0] * 11, [1.0] * 30),  # rank one: every ratio is 1 or −1, a tie
        ([1.0] * 12, [1.0, 0.1]),
        ([1.0] * 12, [0.0] * 30),  # no eigenvalues: no draw is above anything
    ],
)
def test_bounds_on_eigenvalues_count_the_draws_that_eigenvalues_count(
    spectrum: list[float], around: list[float]
) -> None:
    draws, many = 120, 41
    values = torch.tensor(spectrum, dtype=torch.float64)
    cores = rotated_cores([torch.tensor(around)], 30, 12, draws=draws, seed=3)
    ratios = torch.linspace(-1, 1, many, dtype=torch.float64)
    drawn = positivity(spectra_between(cores, [values]))
    least = ratios[:, None] - TIE
    above = ((drawn >= least).long() + (-drawn >= least).long()).cumsum(-1)
    used = 1 + (above[:, :-1] < STOP_AT).sum(-1)
    count = above.gather(-1, used[:, None] - 1)[:, 0]
    expected = (1 + count).double() / (1 + 2 * used)
    # A common scale of the matrices changes nothing, even one whose square overflows.
    for scale in (1.0, 1e200, 1e-200):
        found = sequential_p(ratios, cores, [(scale * values).expand(many, 12)])
        assert torch.equal(found, expected)


def test_eigenvalues_are_computed_only_where_bounds_leave_it_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decomposed: list[int] = []

    def counted(square: torch.Tensor) -> torch.Tensor:
        decomposed.append(len(square))
        return torch.linalg.eigvals(square)

    monkeypatch.setattr(rotations, "eigvals", counted)
    values = torch.linspace(1, 0.2, 32, dtype=torch.float64)
    cores = rotated_cores([torch.ones(200)], 200, 32, draws=200)
    ratios = torch.tensor([0.9, 0.3, 0.0, -0.5], dtype=torch.float64)
    sequential_p(ratios, cores, [values.expand(4, 32)])
    assert sum(decomposed) <= 4  # of some 230 that are compared with a ratio
