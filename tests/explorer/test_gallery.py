"""The gallery of models: every model that comes with pathsum opens from it."""

from pathsum.explorer.answers.model import LESSONS, Gallery
from pathsum.explorer.explorer import Explorer
from pathsum.sources.named import FETCHED, known_names


def cards(models: list[str]) -> dict[str, tuple[str, bool]]:
    answer = Explorer(models).answer("gallery", {})
    assert isinstance(answer, Gallery)
    return {card.name: (card.group, card.opens) for card in answer.models}


def test_it_lists_every_named_model_with_a_lesson() -> None:
    found = cards(["hand-built-induction"])
    assert {*found} == {*known_names(), *FETCHED}
    assert {*LESSONS} <= {*found}


def test_models_that_must_be_fetched_open_by_a_command_only() -> None:
    found = cards(["hand-built-induction"])
    assert found["smollm2"] == ("fetched", False)
    assert found["hand-built-bugs"] == ("built by hand", True)
    assert found["zero-layer"] == ("trained", True)


def test_a_card_that_opens_is_answered() -> None:
    explorer = Explorer(["hand-built-induction"])
    for name in ("hand-built-bugs", "one-layer"):
        assert explorer.answer("model", {"model": name}).name == name
