"""The residual stream: who uses which dimensions, what is free, what deletes."""

from typing import Any

import pytest
import torch
from tests.circuits.test_composition import sparse_model

import pathsum as ps
from pathsum.base import schema
from pathsum.base.errors import HeadError, InputError
from pathsum.circuits import virtual_weights
from pathsum.circuits.bandwidth import Bandwidth, _own_position, head_deletions
from pathsum.circuits.dimensions import joint_use
from pathsum.circuits.virtual_weights import VirtualWeights
from pathsum.model.store import MemoryStore
from pathsum.model.symmetries import random_rotation, rotate_stream
from pathsum.model.weights import Weights


def shape(**changes: Any) -> ps.Config:
    base = ps.Config(n_layers=2, n_heads=2, d_model=20, d_head=5, d_vocab=40, n_ctx=9)
    return base.replace(**changes)


def test_hand_built_blocks_are_found_in_any_basis() -> None:
    """W_E writes a block of 27, W_U reads another; centering logits takes one dimension."""
    model = ps.construct.induction(dtype=torch.float64)
    turned = rotate_stream(model, random_rotation(model.config, 3))
    for one in (model, turned):
        found = ps.bandwidth(one)
        joint = found.joint
        assert (joint.both, joint.first_only, joint.second_only) == (0, 27, 26)
        assert joint.neither == 145 - 53
        assert found.embedding.effective == pytest.approx(27)
        assert found.unembedding.used == 26
        writes = {head.head: head.writes for head in found.heads}
        assert writes["L0H0"] == pytest.approx(27) and writes["L1H0"] == pytest.approx(27)
        assert found.stream[0].both == 27


def test_tied_variances_do_not_mix_what_two_matrices_use() -> None:
    """Two disjoint blocks of equal strength: of all bases that are a PCA one separates them."""
    turn = random_rotation(shape(), 5)
    first, second = turn[:, :7] @ turn[:, :7].T, turn[:, 7:14] @ turn[:, 7:14].T
    use = joint_use(first, second, 20)
    assert (use.both, use.first_only, use.second_only, use.neither) == (0, 7, 7, 6)
    assert joint_use(first, second, 20, tie=-1.0).both > 0  # no variances count as tied


def test_unused_dimensions_are_free() -> None:
    model = ps.random_model(shape(positions="none"), dtype=torch.float64)
    wide = shape(positions="none", d_model=26)
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in model.weights.items():
        bare = name.rsplit(".", 1)[-1]
        axis = -1 if bare in ("W_E", "W_O") else -2
        pad = tensor.new_zeros(
            [6 if i == axis % tensor.ndim else n for i, n in enumerate(tensor.shape)]
        )
        tensors[name] = torch.cat((tensor, pad), axis)
    stacked = {n: tensors[n] for n in ("W_E", "W_U")}
    for bare in ("W_Q", "W_K", "W_V", "W_O"):
        stacked[bare] = torch.stack([tensors[f"layers.{layer}.{bare}"] for layer in range(2)])
    padded = ps.from_tensors(wide, stacked)
    turned = rotate_stream(padded, random_rotation(wide, 1))
    for use in ps.bandwidth(turned).stream:
        assert use.free == 6
        assert use.both + use.written + use.read == 20


def planted_deletion(own_position: bool) -> ps.Model:
    """Random heads, but OV of L1H2 is minus a projection; it attends to its own place or evenly."""
    config = shape(n_heads=6, d_model=30)
    model = ps.random_model(config, dtype=torch.float64)
    raw = model.weights.layers[1]
    W_Q, W_K, W_O = raw.W_Q.clone(), raw.W_K.clone(), raw.W_O.clone()
    W_O[2] = -torch.linalg.pinv(raw.W_V[2])
    assert raw.W_pos is not None
    places = torch.nn.functional.normalize(raw.W_pos[:, :5], dim=-1) * own_position
    W_Q[2] = W_K[2] = torch.linalg.pinv(raw.W_pos) @ (20 * places)
    changed = {"layers.1.W_Q": W_Q, "layers.1.W_K": W_K, "layers.1.W_O": W_O}
    flat = {**dict(model.weights.items()), **changed}
    stacked = {n: flat[n] for n in ("W_E", "W_U", "W_pos")}
    for bare in ("W_Q", "W_K", "W_V", "W_O"):
        stacked[bare] = torch.stack([flat[f"layers.{layer}.{bare}"] for layer in range(2)])
    return ps.from_tensors(config, stacked)


def test_a_head_that_deletes_stands_out_from_chance() -> None:
    found = ps.bandwidth(planted_deletion(own_position=True))
    deleting = [head.head for head in found.deleting if head.deletes]
    assert deleting == ["L1H2"]
    worst = next(head for head in found.deleting if head.head == "L1H2")
    assert worst.negative == pytest.approx(1.0)
    # OV is minus a projection of rank 5: tr OV = −5, ‖OV‖ = √5.
    assert worst.z == pytest.approx(-((5 * 30) ** 0.5))
    overlap = next(head for head in found.heads if head.head == "L1H2")
    assert overlap.overlap == pytest.approx(1.0) and overlap.closest == pytest.approx(0, abs=1e-4)


def test_a_negative_head_that_attends_elsewhere_does_not_delete() -> None:
    found = ps.bandwidth(planted_deletion(own_position=False))
    even = next(head for head in found.deleting if head.head == "L1H2")
    assert even.p <= 1e-6 and even.own_position < 0.3
    assert [head.head for head in found.deleting if head.deletes] == []
    # Every head of this model with a negative OV attends to places before its own.
    bundled = ps.bandwidth(ps.load("two-layer")).deleting
    assert sum(head.p < 0.01 / len(bundled) for head in bundled) > len(bundled) / 2
    assert max(head.own_position for head in bundled) < 0.5
    assert not any(head.deletes for head in bundled)


def test_where_weights_do_not_fix_the_attention_deletion_is_unknown() -> None:
    planted = planted_deletion(own_position=True)
    flat = dict(planted.weights.items())
    stacked = {n: flat[n] for n in ("W_E", "W_U", "W_pos")}
    for bare in ("W_Q", "W_K", "W_V", "W_O"):
        stacked[bare] = torch.stack([flat[f"layers.{layer}.{bare}"] for layer in range(2)])
    found = ps.bandwidth(
        ps.from_tensors(planted.config.replace(positions="residual"), stacked)
    ).deleting
    assert all(head.own_position != head.own_position for head in found)
    # A head whose OV is not negative does not delete, whatever it attends to.
    assert [head.head for head in found if head.deletes is not False] == ["L1H2"]
    assert next(head for head in found if head.head == "L1H2").deletes is None


def test_deletion_z_of_random_heads_is_standard() -> None:
    z = torch.tensor(
        [
            head.z
            for seed in range(4)
            for head in head_deletions(ps.random_model(shape(n_heads=20), seed=seed), False, 20)
        ]
    )
    assert abs(float(z.mean())) < 0.3 and 0.75 < float(z.std()) < 1.25


@pytest.mark.slow
def test_deletion_p_where_heads_prefer_axes() -> None:
    """Of 480 heads, 0.01 has a standard error of 0.005."""
    models = [sparse_model(seed) for seed in range(60)]
    heads = [head for model in models for head in ps.bandwidth(model).deleting if head.z == head.z]
    p = torch.tensor([head.p for head in heads], dtype=torch.float64)
    rotated = torch.special.ndtr(torch.tensor([head.z for head in heads], dtype=torch.float64))
    assert (p >= rotated).all()
    assert float((rotated < 0.001).double().mean()) > 0.005
    assert float((p < 0.001).double().mean()) < 0.004 and float((p < 0.01).double().mean()) < 0.02
    ratios = [
        head.scores["deleting_weights"].p
        for seed, model in enumerate(models)
        for head in ps.atlas(model, scores=["deleting_weights"], draws=100, seed=seed).heads
    ]
    known = [p for p in ratios if p is not None]
    assert len(known) > 400
    assert sum(p <= 0.01 for p in known) / len(known) < 0.03
    assert sum(p <= 0.05 for p in known) / len(known) < 0.08


def test_a_previous_token_head_does_not_attend_to_its_own_position() -> None:
    found = ps.bandwidth(ps.construct.induction())
    own = {head.head: head.own_position for head in found.deleting}
    assert own["L0H0"] < 0.01
    by_q = ps.bandwidth(ps.construct.induction_by_q()).deleting
    assert all(head.own_position != head.own_position for head in by_q)  # not from weights alone


def test_own_token_is_the_diagonal_of_full_qk() -> None:
    model = ps.random_model(shape(positions="none"), dtype=torch.float64)
    full = model.head("L1H1").full_qk.dense()
    centered = full - full.mean(1, keepdim=True)
    expected = centered.diagonal().mean() / centered.square().mean().sqrt()
    found = ps.bandwidth(model).deleting[3]
    assert found.own_token == pytest.approx(float(expected))


def test_zero_layers_have_spectra_and_no_heads() -> None:
    found = ps.bandwidth(ps.random_model(shape(n_layers=0)))
    assert found.heads == () and len(found.stream) == 1
    assert found.embedding.used == 19  # of 20: the last holds 0.0044, under a tenth of 1/20


def test_record_tables_and_schema(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    model = ps.random_model(shape(mlp="gelu"), biases=True)
    found = ps.bandwidth(model)
    assert found.to_dict()["format"] == "pathsum-bandwidth"
    assert schema(Bandwidth)["properties"]["heads"]["type"] == "array"
    Console(width=80).print(found)
    out = capsys.readouterr().out
    for words in ("Joint PCA", "layer 0", "unembed", "L1H1"):
        assert words in out
    assert max(map(len, out.splitlines())) <= 80


def test_virtual_weights_are_named_and_timed() -> None:
    model = ps.random_model(shape(mlp="relu", d_mlp=9, positions="residual"))
    found = virtual_weights(model, "mlp0", "L1H1.k")
    assert found.matrix.shape[0] == 9
    assert "matrix" not in found.to_dict() and "_matrix" not in found.to_dict()
    assert schema(VirtualWeights)["properties"]["score"]["type"] == ["number", "null"]
    virtual_weights(model, "L0H0", "mlp0")  # a serial block: the MLP reads what heads wrote
    parallel = ps.random_model(shape(mlp="relu", d_mlp=9, block="parallel"))
    with pytest.raises(InputError, match="mlp0 cannot read what L0H0 writes"):
        virtual_weights(parallel, "L0H0", "mlp0")
    with pytest.raises(InputError, match=r"L0H1\.q cannot read what L0H0 writes"):
        virtual_weights(model, "L0H0", "L0H1.q")
    with pytest.raises(InputError, match="write nothing to the stream"):
        virtual_weights(parallel, "pos", "logits")
    with pytest.raises(InputError, match="'embd' does not name a writer; .*'embed'"):
        virtual_weights(model, "embd", "logits")
    with pytest.raises(InputError, match="mlp7 does not exist"):
        virtual_weights(model, "embed", "mlp7")
    with pytest.raises(HeadError, match="head L5H0 does not exist"):
        virtual_weights(model, "L5H0", "logits")
    with pytest.raises(InputError, match="this model has no MLPs"):
        virtual_weights(ps.random_model(shape()), "mlp0", "logits")


def test_virtual_weights_of_a_planted_path() -> None:
    model = ps.construct.virtual_head()
    assert virtual_weights(model, "L0H0", "L1H0.v").p <= 1e-6
    assert virtual_weights(model, "L0H0", "logits").score == pytest.approx(0, abs=1e-6)
    assert virtual_weights(model, "L1H0", "logits").z > 10


@pytest.mark.parametrize(
    "changes",
    [{}, {"score_cap": 0.5}, {"windows": (3, None)}, {"sinks": True}],
    ids=["plain", "cap", "window", "sinks"],
)
def test_attention_to_the_own_position_is_that_of_a_run_without_content(
    changes: dict[str, Any],
) -> None:
    sizes = {"n_layers": 2, "n_heads": 4, "d_model": 8, "d_head": 4, "d_vocab": 9, "n_ctx": 12}
    config = ps.Config(**sizes, n_kv_heads=2, **changes)
    tensors = dict(ps.random_model(config, dtype=torch.float64).weights.items())
    draw = torch.Generator().manual_seed(1)
    for layer in range(2):
        for name, kv in (("b_Q", 4), ("b_K", 2)):
            tensors[f"layers.{layer}.{name}"] = torch.randn(kv, 4, generator=draw).double()
        if config.sinks:
            tensors[f"layers.{layer}.sinks"] = torch.randn(4, generator=draw).double()
        tensors[f"layers.{layer}.W_O"] = torch.zeros_like(tensors[f"layers.{layer}.W_O"])
    tensors["W_E"] = torch.zeros_like(tensors["W_E"])
    model = ps.Model(Weights(config, MemoryStore(tensors)), "without content")
    trace = model.trace(torch.zeros(1, 12, dtype=torch.long))
    for layer in range(2):
        own = trace.patterns[layer][0].diagonal(dim1=-2, dim2=-1)[:, 1:].mean(-1)
        torch.testing.assert_close(_own_position(model, layer), own)
