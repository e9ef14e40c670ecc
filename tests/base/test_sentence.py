"""Sentences as templates and spans."""

import pytest

from pathsum.base.sentence import Span, concat, fill, head_span, join_spans, plain_text, signed


def test_slots_take_text_spans_and_sentences() -> None:
    clause = fill("because {head} wrote", head=head_span("L0H1"))
    got = fill("{top} looks there {because} it.", top=head_span("L1H0"), because=clause)
    assert plain_text(got) == "L1H0 looks there because L0H1 wrote it."
    assert [span.head for span in got if span.kind == "head"] == ["L1H0", "L0H1"]
    assert [span.kind for span in got] == ["head", "text", "head", "text"]


def test_a_slot_without_a_value_is_an_error() -> None:
    with pytest.raises(KeyError):
        fill("{head} adds {share}", head="L1H0")


def test_pieces_are_joined_and_plain_text_is_merged() -> None:
    assert join_spans(["a", Span("b", "token"), "c"]) == (
        Span("a, "),
        Span("b", "token"),
        Span(", c"),
    )
    assert join_spans([]) == () and concat("a", "", "b") == (Span("ab"),)


def test_numbers_have_a_sign_unless_they_round_to_zero() -> None:
    assert [signed(value, 1) for value in (2.04, -2.06, -0.04)] == ["+2.0", "−2.1", "0.0"]
