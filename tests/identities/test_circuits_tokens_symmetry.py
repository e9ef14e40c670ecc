"""Every score between tokens survives the symmetries of the model."""

import math

import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.identities.configs import models

from pathsum.base.errors import NotExactError
from pathsum.circuits import bigram, clusters, copying, positional, skip_trigrams
from pathsum.circuits.token_basis import token_product
from pathsum.model import Model, Path
from pathsum.model.symmetries import scrambled


def same(model: Model, seed: int) -> Model:
    try:
        return scrambled(model, seed)
    except NotExactError:
        assume(False)
        raise


def agree(a: float, b: float, tolerance: float = 1e-6) -> bool:
    if math.isnan(a) or math.isnan(b):
        return math.isnan(a) == math.isnan(b)
    return abs(a - b) <= tolerance * max(1.0, abs(a))


@settings(max_examples=15)
@given(models(min_layers=1, max_layers=2, max_heads=2), st.integers(0, 99))
def test_copying(model: Model, seed: int) -> None:
    # A ratio of rounding errors is nobody's score.
    assume(float(torch.linalg.svdvals(token_product(model.weights, 0))[0]) > 1e-3)
    other = same(model, seed)
    circuits = [head.id for head in model.heads]
    paths = [Path("embed", [(0, 0), (1, 0)])] if model.config.n_layers > 1 else []
    first = copying(model, *circuits, *paths, draws=200)
    second = copying(other, *circuits, *paths, draws=200)
    for a, b in zip(first.heads, second.heads, strict=True):
        size = float(a.eigenvalues.abs().sum())
        if size < 1e-4:
            continue
        assert agree(a.ratio, b.ratio, 1e-4)
        assert agree(a.null_sd, b.null_sd, 1e-4)
        assert abs(a.p - b.p) <= 2 / 201
        assert (a.positive_diagonal, a.top_1, a.top_5) == (b.positive_diagonal, b.top_1, b.top_5)


@settings(max_examples=15)
@given(models(causal=(True,), min_layers=1, max_layers=2, max_heads=3), st.integers(0, 99))
def test_skip_trigrams(model: Model, seed: int) -> None:
    k = min(10, model.config.d_vocab**2)
    first, second = skip_trigrams(model, k=k), skip_trigrams(same(model, seed), k=k)
    for a, b in zip(first, second, strict=False):
        assert agree(a.score, b.score)


@settings(max_examples=18)
@given(models(min_layers=0, max_layers=2, max_heads=3), st.integers(0, 99))
def test_bigrams(model: Model, seed: int) -> None:
    other = same(model, seed)
    a, b = bigram(model, k=1), bigram(other, k=1)
    assert agree(a.mean_entropy, b.mean_entropy)
    assert agree(a.certain[0].entropy, b.certain[0].entropy)


@settings(max_examples=18)
@given(
    models(
        causal=(True,),
        min_layers=1,
        max_layers=2,
        max_heads=3,
        positions=("qk", "residual", "rotary"),
    ),
    st.integers(0, 99),
)
def test_offsets(model: Model, seed: int) -> None:
    first, second = positional(model, window=4), positional(same(model, seed), window=4)
    for a, b in zip(first.heads, second.heads, strict=True):
        assert torch.allclose(a.score, b.score, atol=1e-7, rtol=1e-6)
        assert torch.allclose(a.sd, b.sd, atol=1e-6, rtol=1e-5)
        assert agree(a.content, b.content)
        assert (a.attention is None) == (b.attention is None)


@settings(max_examples=12)
@given(models(min_layers=1, max_layers=1, max_heads=1, mlps=("none",)), st.integers(0, 99))
def test_clusters(model: Model, seed: int) -> None:
    assume(model.config.d_model > 3 and model.config.d_vocab > 4)
    first = clusters(model, "L0H0", modes=1, k=1).modes
    second = clusters(same(model, seed), "L0H0", modes=1, k=1).modes
    assume(len(first) == 1 and abs(first[0].eigenvalue) > 1e-3)
    assert agree(abs(first[0].eigenvalue), abs(second[0].eigenvalue), 1e-4)
