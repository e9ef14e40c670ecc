"""One pair of heads, direction by direction, and the projection kernel."""

from dataclasses import replace
from typing import Any

import pytest
import torch

import pathsum as ps
from pathsum.base import schema
from pathsum.base.errors import HeadError, InputError
from pathsum.circuits import composition_by, pair_components
from pathsum.circuits.composition_pairs import CompositionBy, PairComparison, PairComponents
from pathsum.model import Model, Weights
from pathsum.model.store import MemoryStore

CONFIG = ps.Config(n_layers=2, n_heads=8, d_model=40, d_head=6, d_vocab=11, n_ctx=9)


def all_kinds(model: Model) -> PairComparison:
    kinds: tuple[Any, ...] = ("q", "k", "v")
    return PairComparison(tuple(pair_components(model, "L0H0", "L1H0", kind) for kind in kinds))


def test_one_planted_direction_is_found_where_whole_heads_hide_it() -> None:
    """The weakest written direction is what the reader asks for: alone it is certain."""
    generator = torch.Generator().manual_seed(0)
    model = ps.random_model(CONFIG, dtype=torch.float64)
    flat = {n: torch.stack([getattr(layer, n) for layer in model.weights.layers]) for n in _NAMES}
    direction = torch.randn(40, generator=generator, dtype=torch.float64)
    direction /= direction.norm()
    flat["W_O"][0, 1, 5] = 0.3 * direction
    flat["W_Q"][1, 2, :, 4] = direction
    for name in ("W_E", "W_U", "W_pos"):
        flat[name] = getattr(model.weights, name)
    pair = pair_components(ps.from_tensors(CONFIG, flat), "L0H1", "L1H2", "q")
    # The direction is the weakest that is written: it hardly counts in the score of whole heads.
    weakest = pair.cosine[-1]
    assert (
        float(pair.written[-1]) < 0.05 and float(pair.share[-1].sum()) < 0.5 * pair.whole.score**2
    )
    assert float(weakest.square().sum()) > 0.8  # by chance 6/40
    assert float(pair.p_cosine[-1].min()) < 1e-3


_NAMES = ("W_Q", "W_K", "W_V", "W_O")


def test_a_planted_subspace_has_kernel_one() -> None:
    model = ps.construct.virtual_head(dtype=torch.float64)
    pair = pair_components(model, "L0H0", "L1H0", "v")
    assert pair.kernel.score == pytest.approx(1.0, abs=0.05) and pair.kernel.p <= 1e-6
    best = composition_by(model, "kernel")
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


def test_bad_pairs_raise() -> None:
    model = ps.random_model(CONFIG)
    with pytest.raises(HeadError, match="L0H1 cannot read what L1H0 writes"):
        pair_components(model, "L1H0", "L0H1", "q")
    with pytest.raises(HeadError, match="head L0H9 does not exist"):
        pair_components(model, "L0H9", "L1H0", "q")
    flat = {n: torch.stack([getattr(layer, n) for layer in model.weights.layers]) for n in _NAMES}
    flat["W_O"][0, 3] = 0.0
    for name in ("W_E", "W_U", "W_pos"):
        flat[name] = getattr(model.weights, name)
    with pytest.raises(InputError, match="L0H3 writes nothing: its matrix is zero"):
        pair_components(ps.from_tensors(CONFIG, flat), "L0H3", "L1H0", "k")


def test_records_and_tables() -> None:
    model = ps.construct.induction()
    pair = pair_components(model, (0, 0), (1, 0), "k")
    text = pair.to_table().to_text(width=80)
    assert "L0H0 → L1H0, K-composition" in text and "Projection kernel" in text
    for record in (PairComponents, PairComparison, CompositionBy):
        assert schema(record)["type"] == "object"
    compared = all_kinds(model)
    assert [row["by"] for row in compared.to_table().to_dicts()] == ["q", "k", "v"]
    assert len(compared.to_dict()["kinds"]) == 3
    assert "by chance" in [column.name for column in compared.to_table().columns]
    assert "principal angles" in composition_by(model, "kernel").to_table().note


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
    model = ps.construct.induction()
    pair = all_kinds(model)
    for table in (composition_by(model, "kernel").to_table(), pair.to_table()):
        assert "p only tests whether" in table.note and "random" in table.note
    assert "of which there are" in pair.kinds[0].to_table().note


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
    pair = pair_components(low, "L0H0", "L1H0", "k")
    assert pair.p_cosine.shape == pair.cosine.shape == (6, 6)
    assert int((~pair.p_cosine.isnan()).sum()) == 4
    assert not bool(pair.p_cosine[:2, :2].isnan().any())
    assert abs(float(pair.share.sum()) - pair.whole.score**2) < 1e-9
