"""Term importance on models whose answer is known, and what it refuses."""

import math

import pytest
import torch
from tests.paths.multi_run import multi_run_losses
from torch import Tensor

import pathsum as ps
from pathsum.base import schema
from pathsum.base.errors import HeadError, InputError, NotExactError, PathError, TokenError
from pathsum.paths import (
    MlpOutputs,
    Scales,
    TermImportance,
    TermSet,
    by_head,
    by_layer,
    by_virtual_head,
    head_set,
    term_importance,
)
from pathsum.text.token_pool import random_repeats

CONFIG = ps.Config(n_layers=2, n_heads=3, d_model=24, d_head=8, d_vocab=40, n_ctx=20)


def random_tokens(batch: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(40, (batch, length), generator=torch.Generator().manual_seed(seed))


def test_one_pass_in_float32_is_the_papers_repeated_runs() -> None:
    model, tokens = ps.random_model(CONFIG), random_tokens(4, 20)
    found = term_importance(model, tokens)
    torch.testing.assert_close(
        torch.tensor(found.loss), torch.tensor(multi_run_losses(model, tokens))
    )


def test_the_virtual_head_is_of_order_two() -> None:
    model = ps.construct.virtual_head()
    tokens = model.tokens("a k t b l u c m v d n w")
    found = term_importance(model, tokens, sets=by_virtual_head(model))
    assert abs(found.gain[1]) < 1e-3 < 2 < found.gain[2]
    best = max(found.sets, key=lambda terms: terms.given_others.value)
    assert best.name == "L0H0→L1H0"
    assert best.alone.value == pytest.approx(found.gain[2], abs=1e-3)


def test_induction_by_keys_is_of_order_one() -> None:
    model = ps.construct.induction()
    probe = random_repeats(range(27), 10, 4, 5, start_token=0)
    found = term_importance(model, probe.tokens, sets=by_layer(model), from_position=20)
    assert found.gain[1] > 3
    assert abs(found.gain[2]) < 1e-3
    layers = {terms.name: terms.given_others.value for terms in found.sets}
    assert abs(layers["layer 0"]) < 1e-3 < 3 < layers["layer 1"]


def test_losses_and_gains_fit_together() -> None:
    model, tokens = ps.random_model(CONFIG), random_tokens(4, 20)
    found = ps.term_importance(model, tokens)
    assert found.uniform == math.log(40)
    assert found.uniform - sum(found.gain) == pytest.approx(found.loss[-1])
    logits = model(tokens)[:, :-1]
    own = torch.nn.functional.cross_entropy(logits.reshape(-1, 40), tokens[:, 1:].reshape(-1))
    assert found.loss[-1] == pytest.approx(float(own), abs=1e-5)
    assert (found.sequences, found.predictions) == (4, 76)


def test_batches_of_different_lengths_weigh_by_predictions() -> None:
    model = ps.random_model(CONFIG)
    short, long = random_tokens(3, 5), random_tokens(2, 20)
    both = term_importance(model, iter([short, long]))
    parts = [term_importance(model, tokens) for tokens in (short, long)]
    for order in range(3):
        mean = (parts[0].loss[order] * 12 + parts[1].loss[order] * 38) / 50
        assert both.loss[order] == pytest.approx(mean)


def test_intervals_are_over_sequences() -> None:
    model, tokens = ps.random_model(CONFIG), random_tokens(6, 20)
    found = term_importance(model, tokens).gain_estimates[1]
    single = [term_importance(model, row[None]).gain[1] for row in tokens]
    stderr = torch.tensor(single).std() / math.sqrt(6)
    assert found.stderr == pytest.approx(float(stderr), rel=1e-3)
    assert found.low < found.value < found.high
    one = term_importance(model, tokens[:1]).gain_estimates[1]
    assert one.stderr is None


def test_no_layers_has_order_zero_only() -> None:
    model = ps.random_model(CONFIG.replace(n_layers=0))
    found = term_importance(model, random_tokens(2, 6))
    assert len(found.loss) == len(found.gain) == 1


def test_the_result_says_what_was_held_fixed() -> None:
    config = CONFIG.replace(norm="layer", mlp="gelu")
    model, tokens = ps.random_model(config), random_tokens(2, 6)
    frozen = term_importance(model, tokens)
    again = term_importance(model, tokens, scale=Scales.RECOMPUTED, mlps=MlpOutputs.RECOMPUTED)
    assert "leaves of order 0" in frozen.note
    assert "not a sum over paths" in again.note
    assert frozen.loss[-1] == pytest.approx(again.loss[-1], abs=1e-5)
    assert frozen.loss[0] != pytest.approx(again.loss[0], abs=1e-3)


def test_tables_and_json() -> None:
    model = ps.random_model(CONFIG)
    found = term_importance(model, random_tokens(2, 6), sets=by_head(model))
    assert [row["paths"] for row in found.to_table().to_dicts()][:2] == [
        "uniform guess",
        "order ≤ 0",
    ]
    assert len(found.sets_table().rows) == 6
    written = found.to_dict()
    assert written["format"] == "pathsum-term-importance"
    assert set(schema(TermImportance)["required"]) == set(written)


def test_progress_is_reported() -> None:
    steps: list[int] = []
    model = ps.random_model(CONFIG)
    term_importance(model, [random_tokens(1, 6)] * 3, progress=lambda done, *_: steps.append(done))
    assert steps == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("batches", "error", "says"),
    [
        (torch.tensor([[3]]), InputError, "at least two tokens"),
        ([], InputError, "there are no sequences"),
        (torch.zeros(2, 30, dtype=torch.long), TokenError, "n_ctx=20"),
        (torch.full((1, 4), 99), TokenError, "out of range"),
    ],
)
def test_bad_batches(batches: object, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        term_importance(ps.random_model(CONFIG), batches)  # pyright: ignore[reportArgumentType]


def test_positions_that_predict_nothing() -> None:
    with pytest.raises(InputError, match="from_position=4 or less"):
        term_importance(ps.random_model(CONFIG), random_tokens(2, 6), from_position=5)


@pytest.mark.parametrize("cap", ["score_cap", "logit_cap"])
def test_with_a_soft_cap_all_orders_together_are_the_model(cap: str) -> None:
    model, tokens = ps.random_model(CONFIG.replace(**{cap: 1.0})), random_tokens(2, 6)
    losses = -model(tokens).log_softmax(-1)[:, :-1].gather(-1, tokens[:, 1:, None])
    found = term_importance(model, tokens).loss[-1]
    assert float(found) == pytest.approx(float(losses.mean()), rel=1e-4)


def test_splits_that_would_not_be_exact() -> None:
    model = ps.random_model(CONFIG.replace(norm="rms", mlp="gelu"))
    tokens = random_tokens(2, 6)
    with pytest.raises(NotExactError, match="recomputed MLPs"):
        term_importance(model, tokens, sets=by_layer(model), mlps=MlpOutputs.RECOMPUTED)
    with pytest.raises(NotExactError, match="recomputed scale"):
        term_importance(model, tokens, sets=by_virtual_head(model), scale=Scales.RECOMPUTED)


def test_sets_that_mean_nothing() -> None:
    model, tokens = ps.random_model(CONFIG), random_tokens(2, 6)
    with pytest.raises(HeadError, match="L5H0"):
        term_importance(model, tokens, sets=[head_set("far", ["L5H0"])])
    with pytest.raises(PathError, match="out of order"):
        TermSet("down", [["L1H0", "L0H0"]])
    with pytest.raises(InputError, match="one length"):
        TermSet("mixed", [["L0H0"], ["L0H0", "L1H0"]])
    with pytest.raises(InputError, match="no heads"):
        TermSet("empty", [])
