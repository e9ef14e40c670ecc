"""The story of a text in words."""

import re
from string import Formatter

from tests.explorer.variants import ALL, NO_HEADS, two_copying_heads

from pathsum import load
from pathsum.base.sentence import plain_text
from pathsum.explorer.answers.model import shown_piece, token_label
from pathsum.explorer.explorer import Explorer
from pathsum.explorer.story import WORDS, Story

TEXT = "c a b d a b"


def told(explorer: Explorer, **asked: object) -> Story:
    got = explorer.answer("story", {"text": TEXT, **asked})
    assert isinstance(got, Story)
    return got


def test_induction_is_told_with_its_numbers() -> None:
    got = told(Explorer([ALL["hand-built induction"]()]))
    text = plain_text(got.sentence)
    expected = (
        "After “cabda”, the model predicts “b” with 99.9%, up from < 0.01% the first time. "
        "This is induction: L1H0 attends to “b”, which followed “a” before, because L0H0 moved "
        "“a” from the preceding position into its key and its query encodes the token “a”. "
        "Without L0H0, its attention there would be < 0.01% instead of 100%, and “b” would drop to "
        "< 0.01%."
    )
    assert text == expected


def test_spans_refer_to_heads_tokens_and_the_cell() -> None:
    got = told(Explorer([ALL["hand-built induction"]()]))
    (cell,) = [span for span in got.sentence if span.kind == "cell"]
    assert (cell.head, cell.position, cell.source) == (got.head, got.position, got.source)
    assert {span.head for span in got.sentence if span.kind == "head"} == {got.head, got.writer}
    positions = {span.position for span in got.sentence if span.kind == "token"}
    assert {got.position, got.reasons[0].wrote, None} == positions


def test_several_heads_and_mlps_are_told_together() -> None:
    got = told(Explorer([two_copying_heads()]))
    text = plain_text(got.sentence)
    assert "This is induction: 2 heads attend mostly to “b”, which followed “a” before: L1H" in text
    assert "without all of them, it would drop to" in text
    assert re.search(r"any one of them, “b” keeps at least \S+ \(L1H\d matters most\)", text)


def test_every_position_of_every_model_has_a_sentence() -> None:
    for name in ("two layers", "hand-built induction", NO_HEADS):
        explorer = Explorer([ALL[name]()])
        for position in range(4):
            got = explorer.answer("story", {"ids": "1,2,1,2", "position": position})
            assert isinstance(got, Story)
            text = plain_text(got.sentence)
            assert text.startswith("After “") and text.endswith(".")
            assert "  " not in text and " ." not in text and "{" not in text


def test_tokens_are_visible_and_quoted_alike() -> None:
    model = load("two-layer")
    word = model.encode(" the")[-1]
    assert token_label(model, word) == "the"
    blank = next(t for t in range(model.config.d_vocab) if shown_piece(model, t) == " ")
    assert token_label(model, blank) == "·"
    got = Explorer(["two-layer-mlp"]).answer("story", {"example": 0})
    assert isinstance(got, Story)
    text = plain_text(got.sentence)
    assert "replacement costs most" in text
    assert "'" not in text, text


def test_templates_have_named_slots_only() -> None:
    for template in WORDS.values():
        names = [name for _, name, _, _ in Formatter().parse(template) if name is not None]
        assert all(name.isidentifier() for name in names)
