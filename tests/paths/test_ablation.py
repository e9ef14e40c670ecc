"""Ablation: what each reference puts in a head's place."""

from typing import get_args

import pytest
import torch
from torch import Tensor

import pathsum as ps
from pathsum.base import Site, schema
from pathsum.base.errors import HeadError, InputError
from pathsum.model import Config, HeadId, random_model, trace_run
from pathsum.model.edit import Edit
from pathsum.model.forward import run_logits
from pathsum.model.reference import AblationReference
from pathsum.paths import Ablation, After, Reference, ablate, replace
from pathsum.paths.ablation import AblatedOutputs
from pathsum.text.token_pool import random_repeats

PROBE = random_repeats(range(27), 10, 4, 5, start_token=0)


def test_the_induction_head_costs_what_it_knows() -> None:
    model = ps.construct.induction()
    found = ablate(model, "L1H0", PROBE.tokens, from_position=20)
    assert found.loss.value < 0.01
    assert found.loss_without.value == pytest.approx(float(torch.tensor(27.0).log()), abs=1e-3)
    assert found.cost.clear_of_zero


def test_the_previous_token_head_acts_through_the_pattern() -> None:
    model = ps.construct.induction()
    full = ablate(model, "L0H0", PROBE.tokens, from_position=20)
    kept = ablate(model, "L0H0", PROBE.tokens, from_position=20, after=After.FREEZE_PATTERNS)
    assert full.cost.value > 9
    assert abs(kept.cost.value) < 1e-3


def test_idle_heads_cost_nothing_by_any_reference() -> None:
    model = ps.construct.induction()
    for reference in get_args(AblationReference):
        found = ablate(model, ["L0H1", (1, 1)], PROBE.tokens, reference=reference)
        assert [str(head) for head in found.heads] == ["L0H1", "L1H1"]
        assert abs(found.cost.value) < 1e-3


def test_the_mean_is_over_positions_of_the_text_after_the_first() -> None:
    model = ps.construct.induction()
    tokens, text = PROBE.tokens[:2], PROBE.tokens[2:]
    head = model.head("L1H0").id
    stand_in = AblatedOutputs(model, (head,), Reference.MEAN, [tokens], text)
    edit = stand_in.edits(model.trace(tokens), tokens)[0]
    truth = model.trace(text).z(1)[:, 0, 1:].mean((0, 1))
    assert isinstance(edit.value, Tensor) and str(edit.site) == "L1H0.z"
    torch.testing.assert_close(edit.value, truth)


def test_resampling_takes_another_sequence_and_is_seeded() -> None:
    model = ps.construct.induction()
    heads = (model.head("L1H0").id,)
    for seed in range(5):
        partners = AblatedOutputs(
            model, heads, Reference.RESAMPLE, [PROBE.tokens], seed=seed
        ).partners(PROBE.tokens)
        assert not bool((partners == PROBE.tokens).all(-1).any())
        assert sorted(partners.tolist()) == sorted(PROBE.tokens.tolist())
    found = [
        ablate(model, "L1H0", PROBE.tokens, reference=Reference.RESAMPLE, seed=seed).cost.value
        for seed in (1, 1, 2)
    ]
    assert found[0] == found[1]


def test_redirecting_to_the_first_token() -> None:
    model = ps.construct.induction()
    found = ablate(model, "L1H0", PROBE.tokens, reference=Reference.FIRST, from_position=20)
    # It copies the start token then, and is sure of it.
    assert found.loss_without.value == pytest.approx(10, abs=0.01)


def test_table_and_json() -> None:
    found = ps.ablate(ps.construct.induction(), "L1H0", PROBE.tokens)
    assert [row[0] for row in found.to_table().rows] == ["model", "without L1H0", "cost"]
    assert found.to_dict()["knockout"] == "zero"
    again = ps.ablate(ps.construct.induction(), "L1H0", PROBE.tokens, knockout="mean")
    assert again.to_dict()["knockout"] == "mean"
    assert set(schema(Ablation)["required"]) == set(found.to_dict())


def test_bad_input() -> None:
    model = ps.construct.induction()
    with pytest.raises(HeadError, match="L1H9"):
        ablate(model, "L1H9", PROBE.tokens)
    with pytest.raises(InputError, match="no heads were given"):
        ablate(model, [], PROBE.tokens)
    with pytest.raises(InputError, match="one sequence only"):
        ablate(model, "L1H0", PROBE.tokens[:1], reference=Reference.RESAMPLE)
    with pytest.raises(InputError, match="does not average"):
        ablate(model, "L1H0", PROBE.tokens, text=PROBE.tokens)
    with pytest.raises(InputError, match="choose 'zero', 'mean', 'resample' or 'first_token'"):
        ablate(model, "L1H0", PROBE.tokens, reference="other")
    with pytest.raises(InputError, match="did you mean 'resample'"):
        ablate(model, "L1H0", PROBE.tokens, reference="resampl")


def test_logits_of_a_slice_are_those_of_the_whole_run() -> None:
    model = random_model(Config(2, 3, 16, 8, 27, 48), seed=4)
    edits = [Edit(Site(HeadId(0, 1), value="z"), torch.zeros(8))]
    whole = run_logits(model.weights, PROBE.tokens, edits)
    some = run_logits(model.weights, PROBE.tokens, edits, slice(20, None))
    torch.testing.assert_close(some, whole[:, 20:])


def test_targets_and_metrics_are_those_of_the_logits() -> None:
    model = random_model(Config(n_layers=2, n_heads=2, d_model=12, d_head=6, d_vocab=20, n_ctx=16))
    tokens = torch.randint(20, (5, 12), generator=torch.Generator().manual_seed(0))
    targets = torch.full_like(tokens, -1)
    targets[:, -1], targets[:2, 4] = tokens.sum(1) % 20, 3
    head = model.head("L0H1").id
    edited = trace_run(model, tokens, (Edit(Site(head, value="z"), torch.zeros(6)),))
    counted = targets >= 0

    def margin(logits: Tensor, wanted: Tensor) -> Tensor:
        return logits.max(-1).values - logits.gather(1, wanted[:, None])[:, 0]

    for metric, by_hand in (
        ("error", lambda at, wanted: (at.argmax(-1) != wanted).float()),
        (margin, margin),
    ):
        found = ablate(model, head, tokens, targets=targets, metric=metric)
        described = replace(
            model, head, tokens, pattern="first", targets=targets, metric=metric, reference="zero"
        )
        for logits, losses in (
            (model(tokens), (found.loss, described.loss)),
            (edited.logits, (found.loss_without, described.loss_ablated)),
        ):
            own = float(by_hand(logits[counted], targets[counted]).mean())
            assert [loss.value for loss in losses] == pytest.approx([own, own], abs=1e-6)
        assert found.predictions == described.predictions == 7
    assert found.unit == "metric" and "metric per prediction" in str(found.to_table().note)
    next_tokens = torch.cat((tokens[:, 1:], torch.full((5, 1), -1)), 1)
    assert ablate(model, head, tokens, targets=next_tokens).cost.value == pytest.approx(
        ablate(model, head, tokens).cost.value
    )


def test_a_metric_that_gives_no_number_per_prediction_is_an_error() -> None:
    model = ps.construct.induction()
    for metric, message in (
        (lambda logits, _: logits.mean(), r"shape \[\]; return one number for each of the"),
        (lambda logits, _: 3.0, "the metric returned float"),
        (lambda logits, _: logits[:, 0] / 0, "NaN or infinite"),
    ):
        with pytest.raises(InputError, match=message):
            ablate(model, "L1H0", PROBE.tokens, metric=metric)
        with pytest.raises(InputError, match=message):
            ps.term_importance(model, PROBE.tokens, metric=metric)
    with pytest.raises(InputError, match="metric is 'accuracy'; choose 'loss' or 'error'"):
        replace(model, "L1H0", PROBE.tokens, pattern="first", metric="accuracy")


def test_a_share_of_another_metric_is_compared_with_the_metric() -> None:
    model = ps.construct.induction()

    def tiny(logits: Tensor, targets: Tensor) -> Tensor:
        return 1e-6 * torch.nn.functional.cross_entropy(logits, targets, reduction="none")

    how = {"pattern": "induction", "from_position": 20}
    found = replace(model, "L1H0", PROBE.tokens, metric=tiny, **how)
    assert found.share is not None and found.share.value > 0.99
    idle = replace(model, "L1H1", PROBE.tokens, metric=tiny, **how)
    assert idle.share is None and "changes the metric by" in idle.why_no_share
