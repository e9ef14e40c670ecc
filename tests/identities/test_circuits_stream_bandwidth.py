"""Use of the stream: numbers that no change of basis moves, on models of every variant."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.identities.configs import models

from pathsum.circuits import bandwidth, virtual_weights
from pathsum.circuits.dimensions import joint_use
from pathsum.model import Config, Model, random_model
from pathsum.model.symmetries import scrambled


def near(one: float, other: float, tolerance: float = 1e-6) -> bool:
    if math.isnan(one) or math.isnan(other):
        return math.isnan(one) and math.isnan(other)
    return abs(one - other) <= tolerance * (1 + abs(one))


@settings(max_examples=36)
@given(models(max_layers=2, max_heads=3), st.integers(0, 99))
def test_bandwidth_survives_every_symmetry(model: Model, seed: int):
    before, after = bandwidth(model), bandwidth(scrambled(model, seed))
    for one, other in (
        (before.embedding, after.embedding),
        (before.unembedding, after.unembedding),
    ):
        assert torch.allclose(one.variance, other.variance, atol=1e-9)
    assert torch.allclose(before.joint.first, after.joint.first, atol=1e-6)
    assert torch.allclose(before.joint.second, after.joint.second, atol=1e-6)
    assert before.stream == after.stream
    for one, other in zip(before.heads, after.heads, strict=True):
        for name in ("reads_q", "reads_k", "reads_v", "writes", "overlap", "closest"):
            assert near(getattr(one, name), getattr(other, name), 1e-4)
    for one, other in zip(before.deleting, after.deleting, strict=True):
        assert near(one.negative, other.negative) and near(one.z, other.z)
        assert near(one.own_token, other.own_token)
        assert near(one.own_position, other.own_position)


@settings(max_examples=75)
@given(models(max_layers=2, max_heads=3), st.data())
def test_virtual_weights_are_the_product_of_write_and_read(model: Model, data: st.DataObject):
    config = model.config
    if config.d_model - (config.norm == "layer") < 2:
        return
    writes, reads = ["embed"], ["logits"]
    writes += ["pos"] if config.positions == "residual" else []
    for layer in range(config.n_layers):
        writes.append(f"L{layer}H0")
        reads += [f"L{layer}H0.{side}" for side in "qkv"]
        if config.mlp != "none":
            writes.append(f"mlp{layer}")
            reads += [f"mlp{layer}", f"mlp{layer}.u", f"mlp{layer}.g"]
    write = data.draw(st.sampled_from(writes))
    later = [read for read in reads if _time(model, read, 0) > _time(model, write, 1)]
    read = data.draw(st.sampled_from(later))
    found = virtual_weights(model, write, read)
    dense = found.matrix.dense()
    sizes = found.matrix.A.norm() * found.matrix.B.norm()
    assert near(float(dense.norm() / sizes), found.score, 1e-7)
    top = torch.linalg.svdvals(dense)[: len(found.singular_values)] / sizes
    assert torch.allclose(found.singular_values[: len(top)], top, atol=1e-7)
    other = virtual_weights(scrambled(model, 3), write, read)
    assert near(found.score, other.score) and (near(found.z, other.z) or config.d_model < 5)


@pytest.mark.parametrize("mlp", ["gelu", "silu_gated"])
def test_the_value_and_the_gate_of_an_mlp_are_reads_of_their_own(mlp: str):
    config = Config(1, 2, 12, 4, 20, 8, mlp=mlp, d_mlp=9)
    model = random_model(config, seed=1, dtype=torch.float64)
    layer = model.weights.layers[0]
    for side, W in (("u", layer.W_in), ("g", layer.W_gate if config.gated else layer.W_in)):
        assert W is not None
        found = virtual_weights(model, "embed", f"mlp0.{side}").matrix.dense()
        assert torch.allclose(found, model.weights.W_E @ W, atol=1e-9)


def _time(model: Model, name: str, written: int) -> tuple[int, int]:
    if name in ("embed", "pos"):
        return (-1, 0)
    if name == "logits":
        return (model.config.n_layers, 0)
    if name.startswith("mlp"):
        reads_at = 0 if model.config.block == "parallel" else 2
        return (int(name[3]), 3 if written else reads_at)
    return (int(name[1]), written)


@settings(max_examples=75)
@given(st.integers(3, 9), st.integers(1, 9), st.integers(1, 9), st.integers(0, 999))
def test_a_joint_pca_keeps_what_each_matrix_has(d: int, a: int, b: int, seed: int):
    generator = torch.Generator().manual_seed(seed)
    first = torch.randn(a, d, generator=generator, dtype=torch.float64)
    second = torch.randn(b, d, generator=generator, dtype=torch.float64)
    use = joint_use(first.T @ first, second.T @ second, d)
    assert near(float(use.first.sum()), 1.0) and near(float(use.second.sum()), 1.0)
    assert use.both + use.first_only + use.second_only + use.neither == d
