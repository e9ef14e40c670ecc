"""The questions whose answers a report holds."""

import pytest
from tests.explorer.variants import ALL

from pathsum.explorer.explorer import Explorer
from pathsum.explorer.report_contents import Recorded, claim_pictures, recorded
from pathsum.explorer.wire import decode


def test_the_tour_has_its_pictures_of_other_models() -> None:
    explorer = Explorer(["two-layer"])
    claims = decode(explorer.ask("paper", {}))["claims"]
    elsewhere = [claim for claim in claims if claim["model"] != "two-layer"]
    found = list(claim_pictures(explorer))
    assert {one.params["model"] for one in found} == {claim["model"] for claim in elsewhere}
    bugs = next(claim for claim in elsewhere if claim["id"] == "one-bugs")
    head = bugs["view"].rpartition("h=")[2]
    assert Recorded("trigrams", {"model": "one-layer", "head": head}) in found
    for one in found:  # and each has an answer
        assert explorer.ask(one.name, one.params)


def test_compared_models_are_shown_the_same_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pathsum.explorer.claims.claim.bundled_names", lambda: ())
    monkeypatch.setattr("pathsum.explorer.report_contents.PREDICTIONS", 1)
    explorer = Explorer([ALL["two layers"](), ALL["no positions, three layers"]()], bundled=())
    other = explorer.workbench.models[1].name
    found = [one for one in recorded(explorer) if one.params.get("model") == other]
    examples = decode(explorer.ask("model"))["examples"]
    for example in examples:
        same = {"model": other, "ids": ",".join(map(str, example["ids"]))}
        assert Recorded("run", same) in found and Recorded("attention", same) in found
    got = decode(explorer.ask("attention", found[-1].params))
    assert len(got["heads"]) == 6  # all of the other model's


def test_models_that_cannot_be_compared_are_not_shown_foreign_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pathsum.explorer.claims.claim.bundled_names", lambda: ())
    monkeypatch.setattr("pathsum.explorer.report_contents.PREDICTIONS", 1)
    explorer = Explorer([ALL["two layers"](), ALL["zero layers"]()], bundled=())
    other = explorer.workbench.models[1].name
    found = [one.name for one in recorded(explorer) if one.params.get("model") == other]
    assert found == ["model"]
