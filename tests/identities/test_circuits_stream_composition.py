"""Composition equals its dense definition on models of every variant, and survives symmetries."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.identities.configs import models
from torch import Tensor

from pathsum.algebra import principal_angles
from pathsum.circuits import composition, composition_by
from pathsum.circuits.composition_pairs import Directions
from pathsum.circuits.reads_and_writes import KINDS, read_factor, write_factor
from pathsum.model import Head, Model
from pathsum.model.symmetries import scrambled

TOLERANCE = 1e-9


def centering(model: Model, centered: bool) -> Tensor:
    d = model.config.d_model
    identity = torch.eye(d, dtype=torch.float64)
    return identity - 1 / d if centered else identity


def read_form(head: Head, kind: str, C: Tensor, offset: int | None) -> Tensor:
    """M Mᵀ, averaged over offsets where it depends on them and none is chosen."""
    if kind == "v":
        M = C @ head.ov.dense() @ C
        return M @ M.T
    config = head.model.config
    offsets = config.offsets if offset is None else [offset]
    total = torch.zeros_like(C)
    for place in offsets if config.positions == "rotary" else [0]:
        M = C @ head.qk_at(place).dense() @ C
        M = M.T if kind == "k" else M
        total = total + M @ M.T / (len(offsets) if config.positions == "rotary" else 1)
    return total


def close(one: Tensor, other: Tensor, tolerance: float = TOLERANCE) -> bool:
    return torch.allclose(one, other, atol=tolerance, rtol=tolerance, equal_nan=True)


@settings(max_examples=75)
@given(models(max_layers=3, max_heads=4), st.sampled_from(["auto", "on", "off"]), st.data())
def test_scores_and_moments_equal_their_definitions(model: Model, center: str, data: st.DataObject):
    rotary = model.config.positions == "rotary"
    offset = data.draw(st.sampled_from([None, 0, 3])) if rotary else None
    found = composition(model, center=center, offset=offset)  # pyright: ignore[reportArgumentType]
    centered = center == "on" or (center == "auto" and model.config.norm == "layer")
    d = model.config.d_model - centered
    assert found.dimension == d and found.centered == centered
    C = centering(model, centered)
    for kind in KINDS:
        scores = found.scores(kind)
        for j, reader in enumerate(model.heads):
            G = read_form(reader, kind, C, offset)
            for i, writer in enumerate(model.heads):
                if reader.id.layer <= writer.id.layer:
                    assert scores.score[i, j].isnan() and scores.p[i, j].isnan()
                    continue
                OV = C @ writer.ov.dense() @ C
                P = OV.T @ OV
                square = (P * G).sum() / (P.trace() * G.trace())
                assert abs(float(scores.score[i, j] ** 2 - square)) < TOLERANCE
                if d < 3:
                    continue
                P, G1 = P / P.trace(), G / G.trace()
                spread = ((P * P).sum() - 1 / d) * ((G1 * G1).sum() - 1 / d)
                variance = 2 / ((d - 1) * (d + 2)) * spread
                assert abs(float(scores.null_sd[i, j] ** 2 - variance)) < 1e-7 * float(variance + 1)


@settings(max_examples=45)
@given(models(max_layers=3, max_heads=4), st.integers(0, 99))
def test_scores_survive_every_symmetry(model: Model, seed: int):
    before, after = composition(model), composition(scrambled(model, seed))
    for kind in KINDS:
        one, other = before.scores(kind), after.scores(kind)
        assert close(one.score**2, other.score**2)
        # Where rotations change almost nothing, z divides rounding by almost nothing.
        firm = one.null_sd > 1e-4
        assert close(one.z[firm], other.z[firm], 1e-6)
        # Axes are no symmetry: only the p-value under rotations stays.
        assert close(one.p_rotations[firm], other.p_rotations[firm], 1e-6)


@settings(max_examples=36)
@given(models(min_layers=2, max_layers=3, max_heads=3), st.sampled_from(KINDS), st.data())
def test_components_of_a_pair_add_up(model: Model, kind: str, data: st.DataObject):
    rotary = model.config.positions == "rotary"
    offset = data.draw(st.sampled_from([None, 2])) if rotary else None
    if model.config.d_model == 2 and model.config.norm == "layer":
        return  # one dimension is left, and it may be empty
    writer, reader = model.heads[0], model.heads[-1]
    composed = composition(model, offset=offset)
    factors = (
        write_factor(writer, composed.centered),
        read_factor(reader, kind, composed.centered, offset),  # pyright: ignore[reportArgumentType]
    )
    own, read = (Directions.of([factor], model.weights.dtype) for factor in factors)
    cosines = (own.basis[0] @ read.basis[0].mT).square()
    share = own.shares[0][:, None] * read.shares[0] * cosines
    score = float(composed.scores(kind).score[0, -1])  # pyright: ignore[reportArgumentType]
    assert abs(float(share.sum()) - score**2) < TOLERANCE
    for directions in (own, read):
        assert abs(float(directions.shares.sum()) - 1) < TOLERANCE
    if offset is None and not rotary:
        kernel = composition_by(model, "kernel").scores(kind).score[0, -1]  # pyright: ignore[reportArgumentType]
        ranks = [int(each.ranks) for each in (own, read)]
        angles = principal_angles(own.basis[0][: ranks[0]].mT, read.basis[0][: ranks[1]].mT)
        assert abs(float(angles.cos().square().mean()) - float(kernel)) < 1e-6


@settings(max_examples=24)
@given(models(min_layers=2, max_layers=3, max_heads=3), st.integers(0, 99))
def test_the_projection_kernel_survives_every_symmetry(model: Model, seed: int):
    before, after = (composition_by(x, "kernel") for x in (model, scrambled(model, seed)))
    for kind in KINDS:
        assert close(before.scores(kind).score, after.scores(kind).score, 1e-6)
