"""The paper's claims: rules that can fail, verdicts over seeds, and what the tour measures."""

import json
import math
from pathlib import Path

import pytest
import torch
from tests.explorer.variants import ALL

from pathsum.base.errors import InputError
from pathsum.base.estimate import Estimate
from pathsum.claims import Paper, paper, verdict
from pathsum.claims.claim import (
    BarsPicture,
    Measurement,
    Outline,
    PointsPicture,
    Section,
    StacksPicture,
    Statement,
    measure,
)
from pathsum.claims.paper import SECTIONS, find_statement, open_subject
from pathsum.claims.stream import frequency_drift
from pathsum.claims.verdict import (
    SEEDS,
    VERDICTS,
    ClaimRule,
    OverSeeds,
    SeedValue,
    Verdict,
    over_seeds,
    summarize_seeds,
    verdict_over,
    write_seeds,
)
from pathsum.explorer.explorer import Explorer
from pathsum.explorer.params import decode
from pathsum.model import Model, construct

STATEMENTS = [one for section in SECTIONS for one in section.statements]
IDS = [one.id for one in STATEMENTS]
IN_TWO = [one.id for one in SECTIONS[3].statements]


def rule(name: str) -> ClaimRule:
    return find_statement(name)[1].rule


@pytest.fixture(scope="module")
def hand_built() -> Paper:
    return paper(construct.induction(), claims=["paths", "basis", "bandwidth", *IN_TWO])


@pytest.mark.parametrize("one", STATEMENTS, ids=IDS)
def test_every_rule_can_give_every_verdict(one: Statement) -> None:
    rule = one.rule
    step = 1 if rule.sense == "at least" else -1
    gap = abs(rule.holds - rule.partly)
    assert step * (rule.holds - rule.partly) > 0
    assert rule.verdict(rule.holds) == "holds"
    assert rule.verdict(rule.holds - step * gap / 2) == "partly"
    assert rule.verdict(rule.partly - step * gap / 2) == "does not hold"


@pytest.mark.parametrize("one", STATEMENTS, ids=IDS)
def test_every_rule_is_in_words_and_the_papers_own_value_holds(one: Statement) -> None:
    assert str(one.rule).startswith("holds if the ")
    assert f"{one.rule.sense} {one.rule.holds:g}" in str(one.rule)
    if one.paper_number is not None:
        assert one.rule.verdict(one.paper_number) == "holds" and one.paper_value


def test_a_value_that_is_no_number_has_no_verdict() -> None:
    with pytest.raises(InputError, match="the loss saved on the second copy is not a number"):
        rule("two-random").verdict(math.nan)


def test_ids_and_rules_are_unique() -> None:
    assert len(set(IDS)) == len(IDS)
    assert len({str(one.rule) for one in STATEMENTS}) == len(STATEMENTS)


@pytest.mark.parametrize(
    ("verdicts", "together"),
    [
        (["holds", "holds"], "holds"),
        (["holds", "not applicable"], "holds"),
        (["holds", "partly"], "partly"),
        (["holds", "does not hold"], "partly"),
        (["partly", "does not hold"], "partly"),
        (["does not hold", "does not hold"], "does not hold"),
        (["holds", "partly", *3 * ["does not hold"]], "does not hold"),
        (["not applicable"], "not applicable"),
    ],
)
def test_one_verdict_over_seeds(verdicts: list[Verdict], together: Verdict) -> None:
    assert verdict_over(verdicts) == together


def seed(number: int, value: float | None, tokens: int = 10_000_000) -> SeedValue:
    verdict = "not applicable" if value is None else rule("one-copying").verdict(value)
    return SeedValue(f"run-{number}", number, 1, tokens, value, None, None, verdict, "")


def test_seeds_are_summarized_with_an_interval_and_what_they_were_trained_on() -> None:
    found = summarize_seeds(
        rule("one-copying"), [seed(1, 0.5), seed(0, 1.0, 61_440_000), seed(2, 0.75)]
    )
    assert [one.seed for one in found.seeds] == [0, 1, 2] and found.verdict == "partly"
    assert found.mean is not None and found.mean.value == 0.75
    assert found.mean.low == pytest.approx(0.75 - 4.303 * 0.25 / math.sqrt(3), abs=1e-3)
    assert found.mean.high == 1.0  # a share is never above 1
    assert found.note == "3 seeds (tokens trained: 1 on 61.4 M, 2 on 10 M): 2 hold, 1 partly"
    assert summarize_seeds(rule("one-copying"), []) == OverSeeds(
        (), None, None, "not measured on other seeds"
    )
    assert summarize_seeds(rule("one-copying"), [seed(0, None)]).verdict == "not applicable"


def test_an_error_has_no_negative_interval() -> None:
    found = summarize_seeds(rule("paths"), [seed(0, 1e-8), seed(1, 2e-6), seed(2, 1e-8)])
    assert found.mean is not None and found.mean.low == 0.0
    # A difference can be negative, and stays so.
    found = summarize_seeds(rule("two-direct"), [seed(0, -0.3), seed(1, 0.2), seed(2, 0.1)])
    assert found.mean is not None and found.mean.low is not None and found.mean.low < 0


def test_seeds_are_read_by_claim_and_depth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "seeds.json"
    write_seeds({"one-copying": [vars(seed(0, 0.5)), vars(seed(1, 1.0))]}, file)
    stored = verdict._stored(file)
    assert verdict._stored(tmp_path / "none.json") == {}
    monkeypatch.setattr(verdict, "_stored", lambda: stored)
    assert len(over_seeds("one-copying", rule("one-copying"), 1).seeds) == 2
    assert over_seeds("one-copying", rule("one-copying"), 2).seeds == ()
    assert over_seeds("two-k", rule("two-k")).note == "not measured on other seeds"


def test_the_stored_verdicts_are_those_of_the_rules() -> None:
    if not SEEDS.exists():
        pytest.skip("no seeds have been measured")
    stored = json.loads(SEEDS.read_text(encoding="utf-8"))["claims"]
    assert set(stored) <= set(IDS)
    by_id = {one.id: one.rule for one in STATEMENTS}
    for claim, values in stored.items():
        for one in values:
            expected = "not applicable"
            if one["value"] is not None:
                expected = by_id[claim].verdict(one["value"])
            assert one["verdict"] == expected, (claim, one["run"])


def test_hand_built_induction_has_the_circuit_and_not_the_losses(hand_built: Paper) -> None:
    for name in ("two-k", "two-previous", "two-induction", "two-mechanism", "two-corner"):
        assert hand_built[name].verdict == "holds", hand_built[name].measured
    # It knows no bigrams and no text, so on text its single heads are worth nothing.
    assert hand_built["two-direct"].verdict == "does not hold"
    assert hand_built["two-terms"].verdict == "not applicable"
    assert "so there is no share" in hand_built["two-terms"].note
    assert sum(hand_built.tally.values()) == len(hand_built.claims)
    assert set(hand_built.tally) == set(VERDICTS)


def test_a_random_model_fails_what_training_makes() -> None:
    found = paper(ALL["two layers"](), claims=IN_TWO)
    assert found["two-previous"].verdict == "does not hold"
    assert found["two-induction"].verdict == "does not hold"
    assert found["two-random"].verdict == "does not hold"
    for name in ("two-mechanism", "two-corner", "two-resting"):
        assert found[name].verdict == "not applicable" and found[name].value is None
        assert found[name].note


def test_induction_by_queries_fails_the_claim_of_k_composition() -> None:
    found = paper(construct.induction_by_q(), claims=["two-induction", "two-mechanism"])
    assert found["two-induction"].verdict == "holds"
    assert found["two-mechanism"].verdict == "does not hold"
    # A few claims are printed with the numbers of their bar charts.
    bars = found["two-mechanism"].picture
    assert isinstance(bars, BarsPicture)
    assert bars.title in str(found) and str(found).count(bars.bars[-1].name) == 1


def test_pictures_show_their_claim(hand_built: Paper) -> None:
    stream = hand_built["bandwidth"].picture
    assert isinstance(stream, StacksPicture) and stream.parts[-1] == "free"
    totals = {sum(row.parts) for row in stream.rows}
    assert len(totals) == 1 and len(stream.rows) == 3
    corner = hand_built["two-corner"].picture
    assert isinstance(corner, PointsPicture) and "OV" in corner.x and "QK" in corner.y
    assert {point.group for point in corner.points} == {"induction heads", "other heads"}
    cut = hand_built["two-mechanism"].picture
    assert isinstance(cut, BarsPicture)
    assert cut.bars[0].name == "L0H0→L1H0.k" and cut.bars[0].link.endswith(cut.bars[0].name)
    sums = hand_built["paths"].picture
    assert isinstance(sums, BarsPicture)
    assert sums.bars[-1].value == pytest.approx(sums.bars[-2].value, abs=1e-4)
    assert cut.title not in str(hand_built)
    kinds = [repr(one.picture) for one in hand_built.claims if one.picture is not None]
    assert len(set(kinds)) == len(kinds)  # each has one of its own


def test_the_tour_answers_without_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("nothing is measured")

    monkeypatch.setattr("pathsum.explorer.answers.whole_model.measure", fail)
    explorer = Explorer([construct.induction()])
    claims = decode(explorer.ask("paper"))["claims"]
    assert [one["id"] for one in claims] == IDS
    by_id = {one["id"]: one for one in claims}
    assert by_id["zero-bigram"]["model"] == "zero-layer"
    assert by_id["two-k"]["model"] == explorer.name
    assert by_id["one-copying"]["paper_value"] == "10 of 12 heads"


def test_a_claim_about_another_depth_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pathsum.claims.claim.bundled_names", lambda: ())
    explorer = Explorer([construct.induction()], bundled=())
    got = decode(explorer.ask("claim", {"claim": "zero-current"}))
    assert got["verdict"] == "not applicable" and got["value"] is None
    assert got["note"] == "This claim is about models with no layers, and this one has 2."


def test_an_unknown_claim_is_an_error() -> None:
    explorer = Explorer([construct.induction()], bundled=())
    with pytest.raises(InputError, match="there is no claim 'two-q'.*the claims are paths, basis"):
        explorer.ask("claim", {"claim": "two-q"})


def test_a_measurement_that_is_no_number_does_not_apply() -> None:
    odd = Statement(
        "odd", "", "", rule("one-copying"), lambda _: Measurement(Estimate(math.nan), "")
    )
    section = Section("odd", (odd,), lambda _: True, "any")
    found = measure(section, odd, open_subject(construct.induction()), open_subject)
    assert found.verdict == "not applicable" and "is not a number" in found.note
    assert isinstance(found.outline, Outline)


def test_an_unfinished_run_is_measured_at_its_last_snapshot(tmp_path: Path) -> None:
    construct.induction().save(tmp_path / "snapshots" / "step-000010")
    subject = open_subject(tmp_path)
    assert subject.name == tmp_path.name and subject.model.config.n_layers == 2


def test_links_name_a_model_that_stands_in() -> None:
    found = paper(construct.induction(), claims=["zero-current", "two-k"])
    assert found["zero-current"].view == "#/text?model=zero-layer&example=0"
    assert found["two-k"].view.startswith("#/composition?edge=L0H0")


def test_the_table_has_claims_seeds_and_both_verdicts(hand_built: Paper) -> None:
    table = hand_built.to_table()
    names = [column.name for column in table.columns]
    assert names == ["claim", "measured", "verdict", "seeds", "over seeds", "the paper"]
    assert len(table.rows) == len(hand_built.claims)
    assert "holds" in table.note and "partly" in table.note and "not applicable" in table.note
    with pytest.raises(KeyError, match="was not measured"):
        hand_built["zero-bigram"]


def test_a_bigram_table_leaves_frequencies_where_they_are() -> None:
    table = torch.tensor([[0.9, 0.1], [0.5, 0.5]])
    stays = torch.tensor([5000, 1000])  # 5/6 and 1/6 are what this table leaves alone
    plain = construct.bigram(table, ["a", "b"])
    settled = Model(plain.weights, tokenizer=plain.tokenizer, token_counts=stays)
    drift = frequency_drift(settled)
    assert drift is not None and abs(drift) < 1e-6
    moved = Model(plain.weights, tokenizer=plain.tokenizer, token_counts=stays.flip(0))
    drift = frequency_drift(moved)
    assert drift is not None and drift > 0.2
    assert frequency_drift(Model(plain.weights)) is None


def test_a_model_without_layers_sees_the_current_token_and_has_no_card() -> None:
    table = torch.tensor([[0.9, 0.1], [0.5, 0.5]])
    found = paper(construct.bigram(table, ["a", "b"]), claims=["zero-current", "zero-bigram"])
    assert found["zero-current"].verdict == "holds"
    assert found["zero-bigram"].verdict == "not applicable"
    assert "has no card" in found["zero-bigram"].note


@pytest.mark.slow
def test_every_claim_applies_to_a_bundled_model() -> None:
    found = paper("two-layer")
    assert [one.outline.id for one in found.claims] == IDS
    for one in found.claims:
        assert one.verdict != "not applicable", (one.outline.id, one.note)
        assert one.value is not None and one.picture is not None
        assert one.verdict == one.outline.rule.verdict(one.value.value)
        assert one.outline.model in ("zero-layer", "one-layer", "two-layer")
