"""What a report records beside the tour's claims about other models than its own."""

from pathsum.pages.explorer import Explorer
from pathsum.pages.recorded import Recorded, beside_claims
from pathsum.pages.wire import decode


def test_the_tour_has_its_pictures_of_other_models() -> None:
    explorer = Explorer(["two-layer"])
    claims = decode(explorer.ask("paper", {}))["claims"]
    elsewhere = [claim for claim in claims if claim["model"] != "two-layer"]
    found = list(beside_claims(explorer))
    assert {one.parameters["model"] for one in found} == {claim["model"] for claim in elsewhere}
    bugs = next(claim for claim in elsewhere if claim["id"] == "one-bugs")
    head = bugs["view"].rpartition("hd=")[2]
    assert Recorded("trigrams", {"model": "one-layer", "head": head}) in found
    for one in found:  # and each has an answer
        assert explorer.ask(one.name, one.parameters)
