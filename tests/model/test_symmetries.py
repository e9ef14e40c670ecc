"""Symmetries refuse what would change the model; that they keep it is a property elsewhere."""

import pytest
import torch

import pathsum as ps
from pathsum.base.errors import InputError, NotExactError
from pathsum.model import Config, fold
from pathsum.model.symmetries import (
    change_query_basis,
    random_rotation,
    rotate_stream,
    scrambled,
    shift_unembedding,
)

CONFIG = Config(n_layers=2, n_heads=2, d_model=8, d_head=4, d_vocab=9, n_ctx=6)


def test_a_scrambled_model_is_really_another_one() -> None:
    model = ps.random_model(CONFIG, dtype=torch.float64)
    changed = scrambled(model)
    for name, tensor in model.weights.items():
        assert (changed.weights.read(name) - tensor).norm() > 0.1 * tensor.norm(), name


def test_a_matrix_that_is_no_rotation() -> None:
    with pytest.raises(InputError, match="R Rᵀ differs from the identity"):
        rotate_stream(ps.random_model(CONFIG), torch.ones(8, 8))


def test_gains_must_be_folded_first() -> None:
    model = ps.random_model(CONFIG.replace(norm="rms"), gains=True, dtype=torch.float64)
    with pytest.raises(NotExactError, match=r"fold\(model\) first"):
        rotate_stream(model, random_rotation(model.config))
    rotate_stream(fold(model), random_rotation(model.config))


def test_layer_norm_allows_only_rotations_that_fix_the_ones_vector() -> None:
    model = ps.random_model(CONFIG.replace(norm="layer"), dtype=torch.float64)
    with pytest.raises(NotExactError, match="fix the ones-vector"):
        rotate_stream(model, random_rotation(CONFIG))
    R = random_rotation(model.config)
    torch.testing.assert_close(torch.ones(8, dtype=torch.float64) @ R, torch.ones(8).double())


def test_queries_have_no_free_basis_under_rotary_positions() -> None:
    model = ps.random_model(CONFIG.replace(positions="rotary"))
    with pytest.raises(NotExactError, match="rotary positions and QK-norm"):
        change_query_basis(model, torch.eye(4).expand(2, 2, 4, 4))


def test_what_cannot_be_shifted() -> None:
    with pytest.raises(NotExactError, match="cannot be shifted alone"):
        shift_unembedding(ps.random_model(CONFIG.replace(tied=True)), torch.ones(8))
    with pytest.raises(NotExactError, match="a soft cap acts on each logit"):
        shift_unembedding(ps.random_model(CONFIG.replace(logit_cap=3.0)), torch.ones(8))


def test_a_gain_of_zero_cannot_be_folded_under_positions_in_qk() -> None:
    model = ps.random_model(CONFIG.replace(norm="rms"), gains=True)
    model.weights.store.get("layers.1.ln1_w")[3] = 0.0
    with pytest.raises(NotExactError, match="the gain before layer 1 is exactly 0"):
        fold(model)
