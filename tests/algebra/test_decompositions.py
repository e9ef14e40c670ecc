"""Dense decompositions: what they reject, and the small functions around them."""

import re
from pathlib import Path

import pytest
import torch
from tests.algebra.factors import gaussian

import pathsum
from pathsum.algebra import decompositions
from pathsum.base.errors import InputError

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
    "inverse",
)
SOURCES = Path(pathsum.__file__).parent
# Functions of LAPACK that may crash, or return nonsense, on NaN and infinity.
LAPACK = re.compile(
    r"torch\.linalg\.(?!norm\b|vector_norm\b|matrix_norm\b)\w+|torch\.(svd|qr|pinverse|inverse|"
    r"cholesky\w*|lstsq|triangular_solve|lobpcg|pca_lowrank|svd_lowrank|matrix_exp)\b|"
    r"\.(inverse|pinverse|cholesky|svd|qr|logdet|slogdet|det)\(\)|(numpy|np|scipy)\.linalg"
)


@pytest.mark.parametrize("name", [*CHECKED, "pinv"])
@pytest.mark.parametrize(("bad", "kind"), [(torch.nan, "NaN"), (torch.inf, "infinite values")])
def test_input_that_is_not_finite_is_rejected(name: str, bad: float, kind: str) -> None:
    matrix = torch.eye(3)
    matrix[1, 1] = bad
    with pytest.raises(InputError, match=rf"shape \[3, 3\] contains {kind}.*use float64"):
        getattr(decompositions, name)(matrix)


@pytest.mark.parametrize("file", sorted(SOURCES.rglob("*.py")), ids=lambda file: file.stem)
def test_every_decomposition_goes_through_one_file(file: Path) -> None:
    if file == Path(decompositions.__file__):
        return
    found = LAPACK.search(file.read_text(encoding="utf-8"))
    assert found is None, f"{file} calls {found and found[0]}; use pathsum.algebra.decompositions"


def test_triangular_systems_and_singular_matrices() -> None:
    lower = torch.tensor([[2.0, 0.0], [1.0, 4.0]])
    solved = decompositions.solve_lower(lower, torch.eye(2))
    torch.testing.assert_close(solved, decompositions.inverse(lower))
    with pytest.raises(InputError, match="contains NaN"):
        decompositions.solve_lower(lower * torch.nan, torch.eye(2))
    with pytest.raises(InputError, match="is singular; it has no inverse"):
        decompositions.inverse(torch.ones(3, 3))


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


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64],
)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_one_number_that_is_not_finite_is_found_wherever_it_is(
    dtype: torch.dtype, bad: float
) -> None:
    for size in (1, 7, 33, 4099):
        numbers = torch.ones(size, dtype=dtype)
        assert decompositions.is_finite(numbers)
        for place in {0, size // 2, size - 1}:
            changed = numbers.clone()
            changed[place] = bad
            assert not decompositions.is_finite(changed)
            assert not decompositions.is_finite(changed.expand(2, size).T)
    assert decompositions.is_finite(torch.empty(0, 3, dtype=dtype))
