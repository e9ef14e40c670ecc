import json

import pytest
import torch

import pathsum as ps
from pathsum.errors import InputError, TokenError
from pathsum.paths import DirectAttribution, LogitEffects, direct_attribution, logit_effects
from pathsum.result import schema


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
    assert "remainder" in direct.to_table().note
    # The last destination has no next token and counts neither in the mean nor in the number.
    known = effects.total[:, :-1]
    assert effects.to_table().rows[2][2] == pytest.approx(float(known.abs().sum(-1).mean()))
