"""Term importance on held-out text, toward given targets, and by other metrics."""

import json
import math
from dataclasses import replace

import pytest
import torch

import pathsum as ps
from pathsum.base.errors import InputError
from pathsum.cli.main import main

CONFIG = ps.Config(n_layers=2, n_heads=2, d_model=12, d_head=6, d_vocab=20, n_ctx=16)
TOKENS = torch.randint(20, (5, 12), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def model() -> ps.Model:
    return ps.random_model(CONFIG, seed=0, dtype=torch.float64)


def test_held_out_text_is_the_default(model: ps.Model) -> None:
    found = ps.term_importance(replace(model, held_out=TOKENS))
    assert found.loss == ps.term_importance(model, TOKENS).loss
    with pytest.raises(InputError, match="comes with no held-out text"):
        ps.term_importance(model)


def test_next_tokens_as_targets_are_the_default(model: ps.Model) -> None:
    targets = torch.cat((TOKENS[:, 1:], torch.full((5, 1), -1)), 1)
    plain = ps.term_importance(model, TOKENS, from_position=3)
    given = ps.term_importance(model, TOKENS, targets=targets, from_position=3)
    assert given.loss == pytest.approx(plain.loss, rel=1e-12)
    assert given.predictions == plain.predictions == 5 * 8
    assert given.uniform == pytest.approx(math.log(20))


def test_all_orders_are_the_models_own_number_on_any_target(model: ps.Model) -> None:
    targets = torch.full_like(TOKENS, -1)
    targets[:, -1] = TOKENS.sum(1) % 20  # the answer at the end, as in algorithmic tasks
    logits = model(TOKENS)[:, -1]
    found = ps.term_importance(model, TOKENS, targets=targets)
    own = torch.nn.functional.cross_entropy(logits, targets[:, -1])
    assert found.loss[-1] == pytest.approx(float(own), rel=1e-9)
    errors = ps.term_importance(model, TOKENS, targets=targets, metric="error")
    assert errors.loss[-1] == pytest.approx(
        float((logits.argmax(-1) != targets[:, -1]).double().mean())
    )
    margin = ps.term_importance(
        model, TOKENS, targets=targets, metric=lambda at, ids: -at.gather(1, ids[:, None])[:, 0]
    )
    assert margin.loss[-1] == pytest.approx(-float(logits.gather(1, targets[:, -1:]).mean()))
    assert margin.uniform == 0.0 and "metric per prediction" in margin.note
    assert [column.name for column in margin.to_table().columns][1] == "metric"
    assert [column.name for column in errors.to_table().columns][1] == "share of errors"


def test_targets_that_do_not_fit_are_an_error(model: ps.Model) -> None:
    with pytest.raises(InputError, match=r"targets have shape \[5, 3\] and tokens \[5, 12\]"):
        ps.term_importance(model, TOKENS, targets=TOKENS[:, :3])
    with pytest.raises(InputError, match="the model has 20 outputs"):
        ps.term_importance(model, TOKENS, targets=TOKENS + 20)
    with pytest.raises(InputError, match="no position from 0 on has a target"):
        ps.term_importance(model, TOKENS, targets=torch.full_like(TOKENS, -1))


def test_in_context_learning_picks_positions_that_fit(model: ps.Model) -> None:
    own = ps.in_context_learning(replace(model, held_out=TOKENS))
    assert own.value == ps.in_context_learning(model, TOKENS, early=1, late=11).value


def test_the_command_says_what_it_measured_on(capsys: pytest.CaptureFixture[str]) -> None:
    for options, words in (
        ([], "held-out text"),
        (["--repeated"], "repeated random tokens"),
        (["--tokens", "1,2,3,4,5"], "the given tokens"),
    ):
        base = ["terms", "one-layer", "--sequences", "2", "--split", "none", "--json"]
        assert main([*base, *options]) == 0
        assert json.loads(capsys.readouterr().out)["note"].startswith(f"measured on {words}")
