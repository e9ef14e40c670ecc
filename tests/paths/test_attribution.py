import json

import pytest
import torch

import pathsum as ps
from pathsum.base import schema
from pathsum.base.errors import InputError, TokenError
from pathsum.paths import (
    DirectAttribution,
    LogitEffects,
    direct_attribution,
    effects_by_layer,
    logit_effects,
)


def test_the_induction_head_moves_the_token_that_comes_next() -> None:
    trace = ps.construct.induction().trace("a b c a b")
    effects = logit_effects(trace, "L1H0")
    assert int(effects.total[0, 4].argmax()) == 2
    assert bool(effects.total[0, -1].isnan().all())
    assert float(effects.composed[0, :-1].abs().max()) < 1e-3
    direct = direct_attribution(trace)
    assert float(direct["L1H0"][0, 4]) == pytest.approx(float(direct.total[0, 4]), abs=1e-3)


def test_a_virtual_head_is_composed_and_not_single() -> None:
    trace = ps.construct.virtual_head().trace("a b b c c")
    effects = logit_effects(trace, "L1H0")
    assert float(effects.single[0, :-1].abs().max()) < 1e-3
    # At "b" (3) the word two before is "a", which predicts "b": moved from where L0H0 put it.
    assert float(effects.composed[0, 3, 2]) == pytest.approx(float(effects.total[0, 3, 2]))


def test_targets_may_be_named() -> None:
    trace = ps.construct.induction().trace("a b c a")
    targets = torch.full_like(trace.tokens, 2)
    found = direct_attribution(trace, targets)
    assert not bool(found.values.isnan().any())
    with pytest.raises(InputError, match="one target for each"):
        direct_attribution(trace, targets[:, :2])
    with pytest.raises(TokenError, match="token id 99 is out of range"):
        logit_effects(trace, "L1H0", targets * 0 + 99)


def test_one_token_has_no_next() -> None:
    trace = ps.construct.induction().trace([1])
    with pytest.raises(InputError, match="a sequence of one token has no next token"):
        direct_attribution(trace)


def test_records_have_schemas_and_tables() -> None:
    trace = ps.construct.induction().trace("a b c a b")
    direct, effects = direct_attribution(trace), logit_effects(trace, "L1H0")
    for record, found in ((DirectAttribution, direct), (LogitEffects, effects)):
        assert set(json.loads(found.dumps())) == set(schema(record)["properties"])
        assert found.to_table().rows
    assert "reconstruction error" in direct.to_table().note
    # The last destination has no next token and counts neither in the mean nor in the number.
    known = effects.total[:, :-1]
    assert effects.to_table().rows[2][2] == pytest.approx(float(known.abs().sum(-1).mean()))


def test_effects_of_heads_that_share_values_sum_to_their_attribution() -> None:
    """With two query heads per value head and two value heads, head // 2 and head % 2 differ."""
    config = ps.Config(
        n_layers=2, n_heads=4, n_kv_heads=2, d_model=12, d_head=3, d_vocab=15, n_ctx=10
    )
    trace = ps.random_model(config, seed=1, dtype=torch.float64).trace([[1, 2, 3, 4, 5]])
    direct = direct_attribution(trace)
    for layer, effects in enumerate(effects_by_layer(trace)):
        for head in range(4):
            label = f"L{layer}H{head}"
            torch.testing.assert_close(
                effects[:, head].sum(-1), direct[label], equal_nan=True, rtol=1e-9, atol=1e-12
            )
            one = logit_effects(trace, label).total
            torch.testing.assert_close(effects[:, head], one, equal_nan=True, rtol=1e-9, atol=1e-12)
    why = trace.paths().toward(-1, 3)
    into = why.by_edge.values[:, :8].sum(0)
    torch.testing.assert_close(into, why.by_head.values, rtol=1e-9, atol=1e-12)
