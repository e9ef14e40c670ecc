"""The questions whose answers a report holds."""

import pytest
from tests.explorer.variants import ALL

from pathsum.explorer.explorer import Explorer
from pathsum.explorer.params import PlainParams, decode
from pathsum.explorer.report_contents import ReportQuestion, claim_pictures, report_questions


def test_the_tour_has_its_pictures_of_other_models() -> None:
    explorer = Explorer(["hand-built-induction"])
    found = [one for one in claim_pictures(explorer) if "model" in one.params]
    assert {one.params["model"] for one in found} == {"one-layer"}
    assert {one.name for one in found} == {"head", "run", "attention"}
    for one in found:  # and each has an answer
        assert explorer.ask(one.name, one.params)


def test_compared_models_are_shown_the_same_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pathsum.claims.claim.bundled_names", lambda: ())
    monkeypatch.setattr("pathsum.explorer.report_contents.PREDICTIONS", 1)
    monkeypatch.setattr("pathsum.explorer.answers.weights.MAX_PARAMETERS", 0)
    explorer = Explorer([ALL["two layers"](), ALL["no positions, three layers"]()], bundled=())
    other = explorer.session.models[1].name
    found = [one for one in report_questions(explorer) if one.params.get("model") == other]
    examples = decode(explorer.ask("model"))["examples"]
    for example in examples:
        same: PlainParams = {"model": other, "ids": ",".join(map(str, example["ids"]))}
        assert ReportQuestion("run", same) in found
        assert ReportQuestion("attention", same) in found
    got = decode(explorer.ask("attention", found[-1].params))
    assert len(got["heads"]) == 6  # all of the other model's


def test_models_that_cannot_be_compared_are_not_shown_foreign_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pathsum.claims.claim.bundled_names", lambda: ())
    monkeypatch.setattr("pathsum.explorer.report_contents.PREDICTIONS", 1)
    monkeypatch.setattr("pathsum.explorer.answers.weights.MAX_PARAMETERS", 0)
    explorer = Explorer([ALL["two layers"](), ALL["zero layers"]()], bundled=())
    other = explorer.session.models[1].name
    found = [one.name for one in report_questions(explorer) if one.params.get("model") == other]
    assert found == ["model"]
