"""What the atlas draws of a large vocabulary instead of taking all of it."""

import pytest
import torch

import pathsum as ps
from pathsum.base import silent
from pathsum.circuits.qk_ov import token_ov
from pathsum.heads import probe_scores
from pathsum.heads.null import RandomHeads
from pathsum.heads.probe import attention_trace, repeats_probe
from pathsum.heads.score import layer_view
from pathsum.model.folding import centered_unembedding

CONFIG = ps.Config(2, 2, 6, 3, 90, 40, norm="rms", positions="rotary", rotary_fraction=2 / 3)


@pytest.fixture(scope="module")
def model() -> ps.Model:
    return ps.random_model(CONFIG, seed=1, dtype=torch.float64)


def test_each_drawn_token_has_its_nearest_neighbor_among_all(
    model: ps.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = model.weights.W_E - model.weights.W_E.mean(0)
    vectors = vectors / vectors.norm(dim=-1, keepdim=True)
    cosines = (vectors @ vectors.mT).fill_diagonal_(-1.0)
    nearest = cosines.argmax(-1)
    every = probe_scores.similar_pairs(model)
    monkeypatch.setattr(probe_scores, "PRODUCTS", 0)
    monkeypatch.setattr(probe_scores, "FEWEST_DRAWN", 12)
    some = probe_scores.similar_pairs(model, seed=3)
    assert 2 <= len(some) <= 12 < len(every)
    assert all(int(nearest[first]) == int(second) for first, second in some)
    sizes = [float(cosines[first, second]) for first, second in some]
    assert sizes == sorted(sizes, reverse=True)
    assert some.flatten().unique().numel() == 2 * len(some)
    assert not torch.equal(some, probe_scores.similar_pairs(model, seed=4)[: len(some)])


def test_ranks_of_second_pieces(model: ps.Model) -> None:
    ids = torch.randperm(CONFIG.d_vocab, generator=torch.Generator().manual_seed(0))
    words = ids[:21].reshape(3, 7).T
    probe = repeats_probe(model, 2)
    trace = attention_trace(model, probe.tokens)
    W_U = centered_unembedding(model.weights)
    for layer in range(CONFIG.n_layers):
        own = layer_view(trace, probe, layer, W_U).ov
        null = RandomHeads(model, 2, 0)
        scores = probe_scores.rank_second_pieces(null, layer, own, words, (ids[:20], ids))
        for head, score in enumerate(scores):
            rows = token_ov(model, (layer, head)).dense()[words[:, 0]]
            second = rows.gather(1, words[:, 2][:, None])
            dense = 2 * (rows < second).double().mean(1) - 1
            assert score.value == pytest.approx(float(dense.mean()), abs=1e-9)


def test_no_logits_are_computed_for_scores_of_heads(
    model: ps.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pathsum.model import transformer

    rows: list[int] = []
    unembed = transformer.unembed_uncapped

    def counted(weights: ps.Weights, stream: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows.append(stream.shape[1])
        return unembed(weights, stream)

    monkeypatch.setattr(transformer, "unembed_uncapped", counted)
    ps.atlas(model, tokens=[1, 2, 3, 4, 5, 1, 2], sequences=2, draws=99, progress=silent)
    assert not any(rows)
    _ = model.trace([1, 2, 3]).logits
    assert any(rows), "logits are computed here, and counted"
