"""Matching through a lower head equals the dense matrix between tokens, on every variant."""

import torch
from hypothesis import given, settings
from tests.identities.configs import models
from torch import Tensor

from pathsum.algebra.spectrum import positivity
from pathsum.circuits.matching import embedding_product, matching_spectra, null_matching_spectra
from pathsum.circuits.qk_ov import token_qk
from pathsum.model import Head, Model, Path
from pathsum.model.folding import embeddings_as_read
from pathsum.model.symmetries import scrambled


def dense_matching(reader: Head, writer: Head) -> Tensor:
    """`W_E QK (OV)ᵀ W_Eᵀ` [query token, key token], averaged over offsets, keys centered."""
    model = reader.model
    queries = embeddings_as_read(model.weights, reader.id.layer)
    sources = embeddings_as_read(model.weights, writer.id.layer) @ writer.ov.dense()
    offsets = model.config.offsets if model.config.positions == "rotary" else range(1)
    qk = torch.stack([reader.qk_at(offset).dense() for offset in offsets]).mean(0)
    matrix = queries @ qk @ sources.T
    return matrix - matrix.mean(1, keepdim=True)


def power_sums(values: Tensor) -> Tensor:
    """What eigenvalues are told apart by without an order: Σ(λ/s)ⁿ, s the largest."""
    scaled = values / values.abs().max().clamp_min(1e-30)
    return torch.stack([(scaled**n).sum() for n in range(1, 5)])


@settings(max_examples=60)
@given(models(min_layers=2, max_layers=3))
def test_its_spectrum_is_that_of_the_dense_matrix(model: Model) -> None:
    for writer, reader in ((model.head(0, 0), model.heads[-1]), (model.heads[0], model.head(1, 0))):
        product = embedding_product(model, writer.id.layer)
        found = matching_spectra(model, [reader.id], writer.id, product)[0]
        dense = torch.linalg.eigvals(dense_matching(reader, writer))
        scaled = found * model.config.score_scale
        # Traces are exact where single eigenvalues of a nearly defective matrix are not.
        assert torch.allclose(scaled.sum(), dense.sum(), atol=1e-9 * float(dense.abs().max() + 1))
        assert torch.allclose(power_sums(scaled), power_sums(dense), atol=1e-6)


@settings(max_examples=24)
@given(models(min_layers=2, max_layers=3, positions=("qk", "residual", "none")))
def test_it_is_the_circuit_that_the_page_of_an_edge_shows(model: Model) -> None:
    writer, reader = model.head(0, 0), model.heads[-1]
    if model.config.qk_norm != "none":
        return  # there the query's scale is kept, token by token
    circuit = token_qk(model, reader.id, key_through=Path("embed", [writer.id]))
    product = embedding_product(model, 0)
    found = matching_spectra(model, [reader.id], writer.id, product)[0]
    trace = found.sum().real * model.config.score_scale
    assert torch.allclose(trace, circuit.trace(), atol=1e-9 * float(circuit.norm() + 1))


@settings(max_examples=36)
@given(models(min_layers=2, max_layers=2))
def test_matching_and_its_null_do_not_depend_on_the_basis(model: Model) -> None:
    other = scrambled(model, seed=5)
    readers = [head.id for head in model.heads if head.id.layer == 1]
    one, two = (
        matching_spectra(each, readers, (0, 0), embedding_product(each, 0))
        for each in (model, other)
    )
    for mine, theirs in zip(one, two, strict=True):
        assert torch.allclose(power_sums(mine), power_sums(theirs), atol=1e-6)
    for writer in ((0, 0), None):
        nulls = [
            null_matching_spectra(each, readers, writer, embedding_product(each, 0), draws=20)
            for each in (model, other)
        ]
        one, other_ratio = (positivity(null) for null in nulls)
        assert torch.allclose(one, other_ratio, atol=1e-5, equal_nan=True)
