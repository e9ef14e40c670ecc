"""Principal components and slopes of loss vectors, against their definitions."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pathsum.training.curves import log_slopes, principal_components

SEEDS = st.integers(0, 10_000)


@settings(derandomize=True, deadline=None, max_examples=40)
@given(seed=SEEDS, steps=st.integers(1, 7), tokens=st.integers(1, 30))
def test_components_are_those_of_the_centered_vectors(seed: int, steps: int, tokens: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(steps, tokens, generator=generator, dtype=torch.float64)
    found = principal_components(vectors)
    U, S, _ = torch.linalg.svd(vectors - vectors.mean(0), full_matrices=False)
    expected = torch.zeros(steps, 2, dtype=torch.float64)
    count = min(2, len(S))
    expected[:, :count] = U[:, :count] * S[:count]
    torch.testing.assert_close(found.coordinates.abs(), expected.abs(), atol=1e-6, rtol=1e-6)
    total = float(S.square().sum())
    for share, value in zip(found.explained, [*S.tolist(), 0.0, 0.0], strict=False):
        assert abs(share - (value**2 / total if total > 1e-20 else 0.0)) < 1e-6
    assert found.coordinates[-1, 0] >= found.coordinates[0, 0]


@settings(derandomize=True, deadline=None, max_examples=40)
@given(
    level=st.floats(-5, 5),
    slope=st.floats(-3, 3),
    length=st.integers(1, 300),
)
def test_a_loss_that_is_straight_in_log_index_has_its_slope_everywhere(
    level: float, slope: float, length: int
) -> None:
    index = torch.arange(1, length + 1, dtype=torch.float64)
    found = log_slopes((level + slope * index.log())[None])
    torch.testing.assert_close(found.values, torch.full_like(found.values, slope))
    assert found.values.shape == (1, len(found.index))
    assert all(2 < place < length for place in found.index)
    assert bool(found.index) == (length >= 4)
