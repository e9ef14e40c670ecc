"""Parameters and keys: one question, one key, whoever asks."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pathsum.errors import InputError
from pathsum.explorer.answer_key import key
from pathsum.explorer.answers.attention import AttentionOf
from pathsum.explorer.answers.why import WhyOf
from pathsum.explorer.parameters import MOST_CHARACTERS, AboutModel, parse, said
from pathsum.explorer.questions import QUESTIONS, UnknownQuestionError, find_question


@given(st.text(st.characters(exclude_categories=["Cs"])), st.integers(0, 2**53 - 1))
def test_a_key_is_what_json_stringify_makes(text: str, number: int) -> None:
    found = key("run", {"text": text, "step": number})
    name, _, rest = found.partition(":")
    assert name == "run"
    assert json.loads(rest) == {"step": number, "text": text}
    assert list(json.loads(rest)) == ["step", "text"]
    # JSON.stringify writes no spaces between, and escapes nothing beyond what JSON must.
    assert found.startswith(f'run:{{"step":{number},"text":"')
    assert "\\u" not in rest.replace("\\u00", "").replace("\\u001", "") or not text.isprintable()


def test_defaults_do_not_change_a_key() -> None:
    plain = parse(AttentionOf, {"example": 0})
    spelled = parse(AttentionOf, {"example": 0, "weighting": "attention"})
    assert said(plain) == said(spelled) == {"example": 0}
    assert said(parse(WhyOf, {"text": "a", "position": 3, "versus": "raw"})) == {
        "text": "a",
        "position": 3,
        "versus": "raw",
    }


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"positon": 1}, "no parameter 'positon' here; did you mean 'position'"),
        ({"text": "a"}, "does not say 'position', and there is no default"),
        ({"position": "3"}, "position is '3'; a whole number would be right"),
        ({"position": True}, "position is 'True'; a whole number would be right"),
        ({"position": 1.5}, "position is '1.5'; a whole number"),
        ({"position": 2**60}, "no number that occurs here"),
        ({"position": 0, "text": ["a"]}, "a string would be right"),
        ({"position": 0, "text": None}, "a string would be right"),
        ({"position": 0, "text": "a" * (MOST_CHARACTERS + 1)}, "200,001 characters; at most"),
    ],
)
def test_bad_parameters_are_refused_in_words(parameters: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse(WhyOf, parameters)


def test_a_choice_that_is_none() -> None:
    with pytest.raises(InputError, match="'attention', 'information', 'effect'"):
        parse(AttentionOf, {"weighting": "size"})


def test_every_question_takes_a_model_and_a_step() -> None:
    for question in QUESTIONS:
        assert issubclass(question.asked, AboutModel)
    assert len({question.name for question in QUESTIONS}) == len(QUESTIONS)


def test_a_question_that_is_none() -> None:
    with pytest.raises(UnknownQuestionError, match="no question 'atlass'; did you mean 'atlas'"):
        find_question("atlass")
