"""Dense decompositions: what they reject, and the small functions around them."""

import pytest
import torch
from tests.algebra.factors import gaussian

from pathsum.algebra import decompositions
from pathsum.errors import InputError

CHECKED = (
    "eigh",
    "eigvalsh",
    "psd_root",
    "eig",
    "eigvals",
    "thin_svd",
    "svdvals",
    "qr",
    "triangle",
)


@pytest.mark.parametrize("name", [*CHECKED, "pinv"])
@pytest.mark.parametrize(("bad", "kind"), [(torch.nan, "NaN"), (torch.inf, "infinite values")])
def test_input_that_is_not_finite_is_rejected(name: str, bad: float, kind: str) -> None:
    matrix = torch.eye(3)
    matrix[1, 1] = bad
    with pytest.raises(InputError, match=rf"shape \[3, 3\] contains {kind}.*use float64"):
        getattr(decompositions, name)(matrix)


def test_roots_and_compact_factors_keep_the_gram_matrix() -> None:
    tall = gaussian(0, 50, 4)
    gram = tall.T @ tall
    for factor in (
        decompositions.psd_root(gram),
        decompositions.triangle(tall),
        decompositions.compact(tall),
    ):
        assert factor.shape == (4, 4)
        torch.testing.assert_close(factor.T @ factor, gram)
    torch.testing.assert_close(decompositions.gram_of_rows(tall, at_a_time=7), gram)
    short = gaussian(1, 3, 4)
    assert torch.equal(decompositions.compact(short), short)
