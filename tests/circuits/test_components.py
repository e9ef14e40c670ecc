"""Composition by single directions, by subspaces and against other heads."""

from dataclasses import replace

import pytest
import torch

import pathsum as ps
from pathsum.base import schema
from pathsum.circuits import composition_by
from pathsum.circuits.composition_pairs import CompositionBy
from pathsum.model import Weights
from pathsum.model.store import MemoryStore

CONFIG = ps.Config(n_layers=2, n_heads=8, d_model=40, d_head=6, d_vocab=11, n_ctx=9)


def test_a_planted_subspace_has_kernel_one() -> None:
    model = ps.construct.virtual_head(dtype=torch.float64)
    best = composition_by(model, "kernel")
    planted = best["L0H0", "L1H0", "v"]
    assert planted.score == pytest.approx(1.0, abs=0.05) and planted.p <= 1e-6
    assert best.v.z[0, 2] == best.v.z[~best.v.z.isnan()].max()


def test_kernels_of_random_models_follow_their_null() -> None:
    z = []
    for seed in range(4):
        model = ps.random_model(CONFIG, seed=seed, dtype=torch.float64)
        found = composition_by(model, "kernel")
        z += [part.z[~part.z.isnan()] for part in (found.q, found.k, found.v)]
        expected = (found.q.score - found.q.excess)[:8, 8:]
        assert torch.allclose(expected, torch.tensor(6 / 40).double())
    z = torch.cat(z)
    assert len(z) == 4 * 3 * 64
    assert abs(float(z.mean())) < 0.15 and float(z.std()) == pytest.approx(1.0, abs=0.12)


def test_records_and_tables() -> None:
    assert schema(CompositionBy)["type"] == "object"
    found = composition_by(ps.construct.induction(), "kernel")
    assert "principal angles" in found.to_table().note


def test_permuted_and_direction_are_fair_on_random_models() -> None:
    config = CONFIG.replace(n_heads=8, d_model=48)
    for measure in ("permuted", "direction"):
        values: list[torch.Tensor] = []
        for seed in range(3):
            found = composition_by(ps.random_model(config, seed=100 + seed), measure)
            values += [part.p[~part.p.isnan()] for part in (found.q, found.k, found.v)]
        p = torch.cat(values)
        error = (0.05 * 0.95 / len(p)) ** 0.5
        assert float((p <= 0.05).double().mean()) < 0.05 + 4 * error, measure
        if measure != "direction":  # the best of many, its p times their number: on the safe side
            assert 0.4 < float(p.median()) < 0.6, measure


def test_permuted_directions_are_those_of_other_heads() -> None:
    """By definition: the spectra of two heads, the singular directions of two others."""
    model = ps.random_model(CONFIG, seed=1, dtype=torch.float64)
    found = composition_by(model, "permuted")
    n = CONFIG.n_heads

    def svd(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        U, S, _ = torch.linalg.svd(matrix)
        return U[:, : CONFIG.d_head], S[: CONFIG.d_head]

    writes = [svd(model.head((0, h)).ov.dense().T) for h in range(n)]
    reads = [svd(model.head((1, h)).qk.dense().T) for h in range(n)]  # what keys read
    for i in range(n):
        for j in range(n):

            def score(a: int, b: int, i: int = i, j: int = j) -> float:
                V, A = writes[a][0] * writes[i][1], reads[b][0] * reads[j][1]
                return float((V.T @ A).norm())

            own = score(i, j)
            share = sum(score(a, b) >= own - 1e-9 for a in range(n) for b in range(n)) / n**2
            assert float(found.k.p[i, n + j]) == pytest.approx(share)


def test_identical_heads_and_silent_heads_have_no_permuted_p() -> None:
    model = ps.random_model(CONFIG, seed=2, dtype=torch.float64)
    for layer in model.weights.layers:
        for name in ("W_Q", "W_K", "W_V", "W_O"):
            W = getattr(layer, name)
            W.copy_(W[:1].expand_as(W).clone())
    found = composition_by(model, "permuted")
    assert bool(found.k.p.isnan().all())
    assert any("same directions" in note for note in found.notes)
    other = ps.random_model(CONFIG, seed=2, dtype=torch.float64)
    other.weights.layers[0].W_O[0] = 0
    found, direction = (composition_by(other, measure) for measure in ("permuted", "direction"))
    for part in (found.k.p, direction.k.score, direction.k.p):
        assert bool(part[0].isnan().all()) and not bool(part[1, CONFIG.n_heads :].isnan().any())
    assert any("OV is zero" in note for note in found.notes)


def test_the_planted_edge_stands_out_by_every_measure() -> None:
    model = ps.construct.induction()
    found = composition_by(model, "permuted")
    assert float(found.k.p[0, 2]) == 0.25  # the best of 2 × 2
    assert float(composition_by(model, "direction").k.p[0, 2]) < 0.001
    text = " ".join(found.to_table().to_text(100).split())
    assert "only tests whether" in text and "pairs of heads of the two layers" in text


def test_what_a_p_means_is_said_below_every_table_of_pairs() -> None:
    table = composition_by(ps.construct.induction(), "kernel").to_table()
    assert "p only tests whether" in table.note and "random" in table.note


def test_a_floored_p_times_the_directions_tried_is_a_bound() -> None:
    found = composition_by(ps.construct.induction(), "direction")
    assert found.k.tried is not None
    tried = found.k.tried[0, 2]
    assert float(tried) > 1
    for p, written in ((1e-6 * tried, f"< {1e-6 * float(tried):.2g}"), (2e-6 * tried, "5.4e-05")):
        k = replace(found.k, p=torch.full_like(found.k.p, float(p)))
        table = replace(found, k=k).edges(["k"]).to_table()
        row = next(row for row in table.rows if row[0] == "L0H0→L1H0.k")
        assert table.columns[4].name == "p" and table.columns[4].write(row[4]) == written


def test_directions_of_rounding_have_no_p() -> None:
    """Heads of rank two: what else the decomposition returns is no direction of theirs."""
    model = ps.random_model(CONFIG, seed=1)
    flat = {name: tensor.clone() for name, tensor in model.weights.items()}
    for name, tensor in flat.items():
        if name.endswith(("W_V", "W_K")):
            tensor[..., 2:] = 0.0
    low = replace(model, weights=Weights(CONFIG, MemoryStore(flat)))
    assert composition_by(low, "direction").k.tried[0, 8] == 2
    weights = composition_by(low, "kernel").k
    assert abs(float(weights.score[0, 8] - weights.excess[0, 8]) - 2 / 40) < 1e-9
