"""Composition: planted edges, the null's distribution, options, filters and errors."""

from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor

import pathsum as ps
from pathsum.base import schema
from pathsum.base.errors import HeadError, InputError
from pathsum.circuits.composition import Composition
from pathsum.circuits.composition_edges import Edges
from pathsum.circuits.reads_and_writes import KINDS
from pathsum.model import Model
from pathsum.model.store import MemoryStore
from pathsum.model.weights import Weights


def shape(**changes: Any) -> ps.Config:
    base = ps.Config(n_layers=3, n_heads=4, d_model=24, d_head=6, d_vocab=11, n_ctx=9)
    return base.replace(**changes)


def changed(model: Model, name: str, tensor: Tensor) -> Model:
    """The model with one stored tensor replaced."""
    flat = {**dict(model.weights.items()), name: tensor}
    return replace(model, weights=Weights(model.config, MemoryStore(flat)))


@pytest.mark.parametrize(
    ("build", "kind"),
    [
        (ps.construct.induction, "k"),
        (ps.construct.induction_by_q, "q"),
        (ps.construct.virtual_head, "v"),
    ],
)
def test_a_planted_composition_has_the_largest_excess(build: Any, kind: str) -> None:
    found = ps.composition(build())
    edges = found.edges()
    for best in (
        max(edges, key=lambda edge: edge.excess),
        max(edges, key=lambda edge: edge.z),
        min(edges, key=lambda edge: edge.p),
    ):
        assert (best.writer, best.reader, best.kind) == ("L0H0", "L1H0", kind)
    assert best.p <= 1e-4  # hand-built heads prefer axes
    assert sum(edge.p < 0.001 for edge in edges) == 1


def test_rows_write_columns_read_and_nan_elsewhere() -> None:
    found = ps.composition(ps.random_model(shape()))
    assert found.heads[:5] == ("L0H0", "L0H1", "L0H2", "L0H3", "L1H0")
    layer = torch.arange(12) // 4
    above = layer[None, :] > layer[:, None]
    for kind in KINDS:
        scores = found.scores(kind)
        for part in (scores.score, scores.excess, scores.z, scores.p, scores.null_sd):
            assert part.shape == (12, 12)
            assert torch.equal(~part.isnan(), above)
    assert torch.allclose((found.q.score - found.q.excess)[above], torch.tensor(24**-0.5).double())


def dense_score(model: Model, writer: str, reader: str, kind: str) -> float:
    OV, head = model.head(writer).ov.dense(), model.head(reader)
    M = {"q": head.qk.dense(), "k": head.qk.dense().T, "v": head.ov.dense()}[kind]
    return float((OV @ M).norm() / (OV.norm() * M.norm()))


def test_a_frobenius_norm_may_not_be_permuted() -> None:
    """The paper's first diagram was wrong because ‖W_O M W_V‖ was taken for ‖W_V W_O M‖."""
    model = ps.random_model(shape(), dtype=torch.float64)
    found = ps.composition(model)
    for kind in KINDS:
        ours = float(found.scores(kind).score[1, 6])
        assert ours == pytest.approx(dense_score(model, "L0H1", "L1H2", kind), abs=1e-12)
        writer, reader = model.head("L0H1"), model.head("L1H2")
        M = {"q": reader.qk.dense(), "k": reader.qk.dense().T, "v": reader.ov.dense()}[kind]
        cyclic = (writer.W_O @ M @ writer.W_V).norm() / (writer.ov.norm() * M.norm())
        assert abs(ours - float(cyclic)) > 0.01


@pytest.mark.parametrize("d_head", [2, 8, 24])
def test_scores_of_random_models_follow_the_null(d_head: int) -> None:
    """In mean, variance and the whole distribution of p, at several ranks."""
    config = shape(n_layers=3, n_heads=10, d_model=32, d_head=d_head)
    z, p = [], []
    for seed in range(3):
        found = ps.composition(ps.random_model(config, seed=seed, dtype=torch.float64))
        for kind in KINDS:
            scores = found.scores(kind)
            z.append(scores.z[~scores.z.isnan()])
            p.append(scores.p[~scores.p.isnan()])
    z, p = torch.cat(z), torch.cat(p).sort().values
    n = len(z)
    assert n == 3 * 3 * 300
    assert abs(float(z.mean())) < 0.08
    assert float(z.var()) == pytest.approx(1.0, abs=0.12)
    uniform = (torch.arange(n) + 0.5) / n
    assert float((p - uniform).abs().max()) < 1.9 / n**0.5
    for level in (0.05, 0.01):
        assert int((p < level).sum()) == pytest.approx(level * n, abs=4 * (level * n) ** 0.5)


def test_skewed_heads_have_the_tail_that_p_says_and_not_the_normal_one() -> None:
    """Singular values ∝ 1/k: a third moment is needed, or one edge in fifty looks like z > 3."""
    config = shape(n_layers=2, n_heads=40, d_model=40, d_head=12)
    model = ps.random_model(config, dtype=torch.float64)
    falling = 1 / torch.arange(1.0, 13.0, dtype=torch.float64)
    flat = dict(model.weights.items())
    for layer in range(2):
        for name in ("W_Q", "W_K", "W_V"):
            columns = torch.linalg.qr(flat[f"layers.{layer}.{name}"])[0]
            flat[f"layers.{layer}.{name}"] = columns * falling
        rows = torch.linalg.qr(flat[f"layers.{layer}.W_O"].mT)[0].mT
        flat[f"layers.{layer}.W_O"] = rows.contiguous()
    found = ps.composition(replace(model, weights=Weights(config, MemoryStore(flat))))
    n = 3 * 1600
    above = found.edges(min_z=3.0)
    assert above.tested == n
    assert above.expected > 8 * 0.00135 * n
    assert above.found == pytest.approx(above.expected, abs=4 * above.expected**0.5)
    assert found.edges(max_p=0.01).found == pytest.approx(0.01 * n, abs=4 * (0.01 * n) ** 0.5)


def test_blocks_of_any_height_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    config = shape(n_layers=4, d_model=50, norm="layer", n_kv_heads=2, positions="rotary")
    model = ps.random_model(config, dtype=torch.float64, gains=True)
    model = changed(model, "layers.1.W_V", torch.zeros_like(model.weights.layers[1].W_V))
    module = import_module("pathsum.circuits.composition")
    whole = ps.composition(model)
    assert whole.k.score[4:8].isnan().all()
    for rows, held in ((50, 0), (16, 1 << 30), (7, 0)):
        monkeypatch.setattr(module, "BLOCK_ROWS", rows)
        monkeypatch.setattr(module, "HELD_BYTES", held)
        other = ps.composition(model)
        for kind in KINDS:
            for part in ("score", "excess", "z", "p", "null_sd", "skewness"):
                expected, found = (getattr(x.scores(kind), part) for x in (whole, other))
                torch.testing.assert_close(found, expected, equal_nan=True)


def test_one_edge_by_its_names() -> None:
    found = ps.composition(ps.construct.induction())
    edge = found["L0H0", "L1H0", "k"]
    assert (edge.score, edge.p) == (float(found.k.score[0, 2]), float(found.k.p[0, 2]))
    assert found[(0, 0), (1, 0), "k"] == edge
    with pytest.raises(HeadError, match="L0H1 cannot read what L1H0 writes"):
        _ = found["L1H0", "L0H1", "k"]
    with pytest.raises(HeadError, match="head L2H0 does not exist"):
        _ = found["L0H0", "L2H0", "k"]
    with pytest.raises(InputError, match="'q', 'k' and 'v'"):
        _ = found["L0H0", "L1H0", "x"]
    with pytest.raises(HeadError, match="L0H0→logits is not an edge between heads"):
        _ = found["L0H0→logits"]


def test_a_mapping_from_edges() -> None:
    found = ps.composition(ps.construct.induction())
    edges = found.edges()
    assert len(found) == edges.tested == 12
    assert set(found) == {str(one.edge) for one in edges}
    assert all(found[name] == edge for name, edge in found.items())
    assert "L0H0→L1H0.k" in found and "L1H0→L0H0.k" not in found
    row = next(row for row in found.to_dicts() if row["edge"] == "L0H0→L1H0.k")
    assert row["score"] == found["L0H0→L1H0.k"].score


def test_float32_weights_lose_nothing_that_matters() -> None:
    config = shape(d_model=64, n_heads=8, n_layers=2, d_head=16)
    model = ps.random_model(config, dtype=torch.float32)
    exact = ps.composition(model.to(torch.float64))
    for kind in KINDS:
        one, other = ps.composition(model).scores(kind), exact.scores(kind)
        assert torch.allclose(one.score, other.score, rtol=1e-5, equal_nan=True)
        assert torch.allclose(one.z, other.z, atol=1e-3, equal_nan=True)


@pytest.mark.parametrize("size", [1e-25, 1e25])
def test_the_size_of_a_head_does_not_matter(size: float) -> None:
    model = ps.random_model(shape())
    W_O = model.weights.layers[0].W_O.clone()
    W_O[1] *= size
    other = ps.composition(changed(model, "layers.0.W_O", W_O))
    assert torch.allclose(other.v.score, ps.composition(model).v.score, equal_nan=True)


def test_a_head_of_zeros_has_no_score_and_a_note_says_so() -> None:
    model = ps.random_model(shape())
    W_O = model.weights.layers[1].W_O.clone()
    W_O[2] = 0.0
    found = ps.composition(changed(model, "layers.1.W_O", W_O))
    assert found.q.score[6].isnan().all() and found.v.score[:, 6].isnan().all()
    assert not found.q.score[:4, 6].isnan().any()
    assert found.q.p[6].isnan().all() and found.q.z[6].isnan().all()
    assert "OV is zero, so there is no score as a writer: L1H2." in found.notes
    assert "OV is zero, so there is no score as a V reader: L1H2." in found.notes
    # Nothing to read for four heads above in three ways, and four below have nobody to be read by.
    assert found.edges().tested == 3 * 48 - 3 * 4 - 4


def test_a_head_that_writes_along_the_ones_vector_alone_is_empty_once_centered() -> None:
    model = ps.random_model(shape(norm="layer"), dtype=torch.float64)
    W_O = model.weights.layers[0].W_O.clone()
    W_O[0] = W_O[0].mean(-1, keepdim=True)
    model = changed(model, "layers.0.W_O", W_O)
    found = ps.composition(model)
    assert found.q.score[0].isnan().all()
    assert "OV is zero, so there is no score as a writer: L0H0." in found.notes
    # Not centered it has a norm, and nobody reads it.
    assert float(ps.composition(model, center="off").q.score[0, 4]) < 1e-6


def test_centering_is_on_where_the_model_removes_the_mean() -> None:
    for norm, centered in (("none", False), ("rms", False), ("layer", True)):
        found = ps.composition(ps.random_model(shape(norm=norm)))
        assert (found.centered, found.dimension) == (centered, 24 - centered)
    model = ps.random_model(shape(norm="layer"), gains=True)
    off = ps.composition(model, center="off")
    assert (off.centered, off.dimension) == (False, 24)
    assert any("not centered but LayerNorm" in note for note in off.notes)
    # Reads do not see the mean in any case; only a writer's own norm shrinks.
    above = ~off.k.score.isnan()
    assert bool((ps.composition(model).k.score[above] >= off.k.score[above] - 1e-6).all())


def test_a_shared_direction_inflates_scores_and_centering_takes_it_out() -> None:
    model = ps.random_model(shape(n_heads=8))
    flat = dict(model.weights.items())
    for layer in range(3):
        flat[f"layers.{layer}.W_O"] = flat[f"layers.{layer}.W_O"] + 0.5
        for name in ("W_Q", "W_K", "W_V"):
            flat[f"layers.{layer}.{name}"] = flat[f"layers.{layer}.{name}"] + 0.5
    shared = replace(model, weights=Weights(model.config, MemoryStore(flat)))
    inflated = ps.composition(shared).edges(max_p=0.01)
    assert any("along the ones-vector (random: 4.2%)" in note for note in inflated.notes)
    assert not any("ones-vector" in note for note in ps.composition(model).notes)
    assert inflated.found > 0.5 * inflated.tested
    centered = ps.composition(shared, center="on").edges(max_p=0.01)
    assert centered.found < 0.05 * centered.tested


def test_rotary_offsets_are_averaged_or_chosen() -> None:
    model = ps.random_model(shape(positions="rotary"), dtype=torch.float64)
    averaged = ps.composition(model)
    assert averaged.notes == ("Rotary positions: QK is averaged over offsets 0 to 8.",)
    chosen = ps.composition(model, offset=3)
    assert chosen.notes == ("Rotary positions: QK is taken at offset 3.",)
    OV, QK = model.head("L0H1").ov.dense(), model.head("L1H2").qk_at(3).dense()
    assert float(chosen.q.score[1, 6]) == pytest.approx(
        float((OV @ QK).norm() / (OV.norm() * QK.norm())), abs=1e-12
    )
    assert not torch.allclose(chosen.q.score, averaged.q.score, equal_nan=True)
    assert torch.allclose(chosen.v.score, averaged.v.score, equal_nan=True)


@pytest.mark.parametrize("n_layers", [0, 1])
def test_too_few_layers_give_no_edges_and_a_note(n_layers: int) -> None:
    found = ps.composition(ps.random_model(shape(n_layers=n_layers)))
    assert found.q.score.shape == (4 * n_layers, 4 * n_layers)
    assert bool(found.q.score.isnan().all())
    assert found.edges().tested == 0
    assert "no head is above another" in found.to_table().note
    assert "nothing to compose" in str(found) and "no head is above another" in str(found)


def test_bad_options_raise() -> None:
    model = ps.random_model(shape())
    with pytest.raises(InputError, match="offset=1 was given, but with positions='qk'"):
        ps.composition(model, offset=1)
    rotary = ps.random_model(shape(positions="rotary"))
    with pytest.raises(InputError, match="offset=9 is out of range"):
        ps.composition(rotary, offset=9)
    found = ps.composition(model)
    with pytest.raises(InputError, match="kinds is empty"):
        found.edges([])
    with pytest.raises(InputError, match="max_p=2 is not a probability"):
        found.edges(max_p=2.0)
    with pytest.raises(InputError, match="k=0 edges were requested"):
        found.edges(k=0)


def test_edges_are_filtered_sorted_and_counted() -> None:
    found = ps.composition(ps.random_model(shape(), dtype=torch.float64))
    every = found.edges()
    assert every.tested == every.found == len(every) == 3 * 48
    assert every.expected == pytest.approx(144)
    assert [e.z for e in every] == sorted((e.z for e in every), reverse=True)
    by_p = found.edges(("k",), max_p=0.2)
    assert all(e.kind == "k" and e.p <= 0.2 for e in by_p)
    assert [e.z for e in by_p] == sorted((e.z for e in by_p), reverse=True)
    assert by_p.expected == pytest.approx(0.2 * 48)
    assert by_p.found == int((found.k.p <= 0.2).sum())
    most = found.edges(min_z=1.0, k=3)
    assert all(e.z >= 1.0 for e in most) and len(most) <= 3
    assert 0 < most.expected < 144
    edge = by_p.edges[0]
    i, j = found.heads.index(edge.writer), found.heads.index(edge.reader)
    assert float(found.k.score[i, j]) == edge.score


def test_records_and_tables() -> None:
    found = ps.composition(ps.construct.induction())
    assert found.to_dict()["k"]["score"][0][2] == pytest.approx(0.172, abs=0.001)
    assert found.to_dict()["k"]["score"][0][0] is None
    assert schema(Composition)["properties"]["q"]["properties"]["score"]["type"] == "array"
    assert schema(Edges)["properties"]["edges"]["type"] == "array"
    text = found.to_table().to_text(width=80)
    assert "L0H0" in text and "0.12 expected under the null" in text
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80


def test_progress_is_reported() -> None:
    told: list[tuple[int, int]] = []
    ps.composition(
        ps.random_model(shape()), progress=lambda done, total, _: told.append((done, total))
    )
    assert told and told[-1][0] == told[-1][1]


def sparse_model(seed: int) -> Model:
    """Heads that use one axis of the stream in ten, so that a rotation is the wrong null."""
    config = ps.Config(n_layers=2, n_heads=4, d_model=32, d_head=8, d_vocab=20, n_ctx=8)
    draw = torch.Generator().manual_seed(seed)

    def tensor(*shape: int) -> Tensor:
        values = torch.randn(*shape, generator=draw, dtype=torch.float64)
        return values * (torch.rand(*shape, generator=draw) < 0.1)

    heads = {name: tensor(2, 4, 32, 8) for name in ("W_Q", "W_K", "W_V")}
    rest = {"W_E": tensor(20, 32), "W_pos": tensor(8, 32), "W_U": tensor(32, 20)}
    return ps.from_tensors(config, {**heads, **rest, "W_O": tensor(2, 4, 8, 32)})


def test_false_positives_where_heads_prefer_axes() -> None:
    rotated, both = [], []
    for seed in range(25):
        found = ps.composition(sparse_model(seed))
        for kind in ("q", "k", "v"):
            scores = found.scores(kind)
            there = ~scores.score.isnan()
            assert scores.p_axes is not None
            larger = torch.maximum(scores.p_rotations, scores.p_axes)
            assert torch.equal(larger[there], scores.p[there])
            rotated.append(scores.p_rotations[there])
            both.append(scores.p[there])
    rates = [float((torch.cat(each) <= 0.01).double().mean()) for each in (rotated, both)]
    assert rates[0] > 0.04  # of 1,200 edges: 0.01 has a standard error of 0.003
    assert rates[1] < 0.02
    edges = ps.composition(sparse_model(24)).edges(k=1)
    assert f"{edges.unlikely} of 48 (" in edges.table_note


def test_edges_that_pass_are_cut_on_a_text() -> None:
    model, text = ps.load("two-layer"), "The captain saw the captain and the captain saw him."
    passing = ps.composition(model).edges(max_p=0.01)
    found = passing.cut(model, text)
    assert passing.matter is None and "matter" not in passing.table_note
    tokens = model.trace(text).tokens
    for edge in found:
        changed = model.edited({edge.edge: "mean"}, tokens).trace(tokens).logits
        losses = [
            torch.nn.functional.cross_entropy(logits[0, :-1], tokens[0, 1:])
            for logits in (changed, model.trace(tokens).logits)
        ]
        assert edge.cost == pytest.approx(float(losses[0] - losses[1]), abs=1e-5)
    costs = {str(edge.edge): edge.cost or 0.0 for edge in found}
    assert found.matter == sum(cost > 0.01 for cost in costs.values())
    assert costs["L0H3→L1H0.k"] > 0.2 > 0.01 > costs["L0H2→L1H2.q"]
    assert f"{found.matter} of the {len(found)} edges shown" in found.table_note
