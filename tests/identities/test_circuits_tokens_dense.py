"""Circuits between tokens equal the dense ones, and the model's own numbers, on every variant."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.identities.configs import models
from torch import Tensor

from pathsum.circuits.bigram import DirectPath
from pathsum.circuits.copying import copying, layer_eigenvalues
from pathsum.circuits.qk_ov import average_rotation, token_ov, token_qk
from pathsum.circuits.token_basis import token_product
from pathsum.circuits.trigrams import skip_trigrams
from pathsum.model import Model, Path
from pathsum.model.folding import embeddings_as_read, folded_unembedding


def close(a: Tensor, b: Tensor, tolerance: float = 1e-9) -> bool:
    scale = max(1.0, float(b.abs().max())) if b.numel() else 1.0
    return bool((a - b).abs().max() <= tolerance * scale) if b.numel() else True


def centered(dense: Tensor) -> Tensor:
    return dense - dense.mean(-1, keepdim=True)


@settings(max_examples=42)
@given(models(min_layers=1, max_layers=3))
def test_full_ov_is_the_dense_circuit_centered_over_the_vocabulary(model: Model) -> None:
    W_U, final = folded_unembedding(model.weights), model.config.n_layers - 1
    for head in model.heads:
        dense = embeddings_as_read(model.weights, head.id.layer) @ head.ov.dense() @ W_U
        assert close(head.full_ov.dense(), centered(dense))
        assert close(token_ov(model, head.id).dense(), centered(dense))
    path = Path("embed", [(layer, 0) for layer in range(final + 1)])
    dense = embeddings_as_read(model.weights, 0) @ path.ov(model).dense() @ W_U
    assert close(token_ov(model, path).dense(), centered(dense))


@settings(max_examples=42)
@given(models(min_layers=1, max_layers=2, positions=("none", "rotary")), st.data())
def test_token_qk_gives_the_scores_of_layer_0_up_to_a_constant_a_row(
    model: Model, data: st.DataObject
) -> None:
    vocab = model.config.d_vocab
    offset = data.draw(st.integers(0, 5))
    rotary = model.config.positions == "rotary"
    destination = data.draw(st.integers(0, vocab - 1))
    # The destination at `offset`, and every token in turn as the source at 0.
    tokens = torch.full((vocab, offset + 1), destination)
    if offset:
        tokens[:, 0] = torch.arange(vocab)
    scores = model.trace(tokens).attention_scores(0)[:, :, offset, 0]
    for head in model.heads[: model.config.n_heads]:
        qk = token_qk(model, head.id, offset=offset if rotary else None)
        expected = scores[:, head.id.head]
        if offset:
            assert close(qk.row(destination), expected - expected.mean())


@settings(max_examples=18)
@given(models(min_layers=1, max_layers=2, positions=("rotary",)))
def test_averaged_rotary_qk_is_the_mean_over_offsets(model: Model) -> None:
    head = model.heads[-1]
    each = [token_qk(model, head.id, offset=n).dense() for n in model.config.offsets]
    assert close(token_qk(model, head.id).dense(), torch.stack(each).mean(0))
    assert average_rotation(head).shape == (model.config.d_head, model.config.d_head)


@settings(max_examples=24)
@given(models(min_layers=2, max_layers=3, positions=("qk", "residual", "none")))
def test_token_qk_through_lower_heads_is_the_matrix_of_k_composition(model: Model) -> None:
    lower, upper = model.head(0, 0), model.head(1, 0)
    through = Path("embed", [lower.id])
    rows = embeddings_as_read(model.weights, 0) @ lower.ov.dense()
    plain = token_qk(model, upper.id, query_through=through, key_through=through)
    keys = rows @ upper.W_K
    expected = rows @ upper.W_Q @ (keys - keys.mean(0)).T * model.config.score_scale
    assert close(plain.dense(), expected)


@settings(max_examples=36)
@given(models(min_layers=0, max_layers=0, positions=("none", "qk", "rotary")))
def test_the_direct_path_of_a_model_with_no_layers_is_the_model(model: Model) -> None:
    every = torch.arange(model.config.d_vocab)
    assert close(DirectPath(model).rows(every), model(every[:, None])[:, 0])


@settings(max_examples=42)
@given(models(min_layers=1, max_layers=2))
def test_eigenvalues_from_the_shared_product_are_those_of_the_dense_circuit(model: Model) -> None:
    for layer in range(model.config.n_layers):
        product = token_product(model.weights, layer)
        values = layer_eigenvalues(model.weights, layer, product)
        for head in model.heads[layer * model.config.n_heads :][: model.config.n_heads]:
            dense = head.full_ov.dense()
            own = values[head.id.head]
            assert close(own.real.sum(), dense.trace())
            assert close(own.imag.sum(), torch.zeros((), dtype=torch.float64))
            # Σλ² is a trace as well, and Σ|λ| is only as accurate as an eigenvalue is.
            assert close((own**2).sum().real, (dense @ dense).trace())


@settings(max_examples=15)
@given(models(min_layers=1, max_layers=2, max_heads=2))
def test_the_ratio_is_the_one_of_the_dense_eigenvalues(model: Model) -> None:
    found = copying(model, measures="eigenvalues", draws=200)
    for one, head in zip(found.heads, model.heads, strict=True):
        dense = torch.linalg.eigvals(head.full_ov.dense())
        size = float(dense.abs().sum())
        if size > 1e-3:
            assert abs(one.ratio - float(dense.real.sum()) / size) < 1e-4
        assert one.ratio != one.ratio or -1 - 1e-9 <= one.ratio <= 1 + 1e-9


@settings(max_examples=24)
@given(
    models(causal=(True,), min_layers=1, max_layers=2, max_heads=3),
    st.integers(1, 12),
    st.booleans(),
)
def test_skip_trigrams_are_the_best_of_all_triples(model: Model, k: int, one_head: bool) -> None:
    k = min(k, model.config.d_vocab**2)
    head = model.heads[-1].id if one_head else None
    found = skip_trigrams(model, head, k)
    best: dict[tuple[int, int], float] = {}
    for each in [model.head(head)] if head else model.heads:
        qk = token_qk(model, each.id).dense().clamp(min=0)
        ov = token_ov(model, each.id).dense().clamp(min=0)
        # score[d, s, o], then the best destination, then the best head.
        table = (qk[:, :, None] * ov).amax(0)
        for s, o in table.nonzero().tolist():
            best[s, o] = max(best.get((s, o), 0.0), float(table[s, o]))
    expected = torch.tensor(sorted(best.values(), reverse=True)[:k], dtype=torch.float64)
    scores = torch.tensor([triple.score for triple in found], dtype=torch.float64)
    assert len(found) == len(expected)
    assert close(scores, expected)
    assert len({(t.source.id, t.out.id) for t in found}) == len(found)
    for triple in found:
        own = token_qk(model, triple.head).dense()[triple.destination.id, triple.source.id]
        assert abs(float(own) - triple.attention) <= 1e-9 * max(1.0, abs(float(own)))
        assert abs(triple.attention * triple.effect - triple.score) <= 1e-6 * triple.score
