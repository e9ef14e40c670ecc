"""Parameters of questions: parsing, errors, and the key of an answer."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pathsum.base.errors import InputError
from pathsum.explorer.answers.prediction import PredictionParams
from pathsum.explorer.answers.text import AttentionParams
from pathsum.explorer.explorer import QUESTIONS, UnknownQuestionError, find_question
from pathsum.explorer.params import (
    MAX_CHARACTERS,
    ModelParams,
    answer_key,
    non_default_params,
    parse_params,
)


@given(st.text(st.characters(exclude_categories=["Cs"])), st.integers(0, 2**53 - 1))
def test_a_key_is_what_json_stringify_makes(text: str, number: int) -> None:
    found = answer_key("run", {"text": text, "step": number})
    name, _, rest = found.partition(":")
    assert name == "run"
    assert json.loads(rest) == {"step": number, "text": text}
    assert list(json.loads(rest)) == ["step", "text"]
    # JSON.stringify writes no spaces between, and escapes nothing beyond what JSON must.
    assert found.startswith(f'run:{{"step":{number},"text":"')
    assert "\\u" not in rest.replace("\\u00", "").replace("\\u001", "") or not text.isprintable()


def test_defaults_do_not_change_a_key() -> None:
    plain = parse_params(AttentionParams, {"example": 0})
    spelled = parse_params(AttentionParams, {"example": 0, "weighting": "attention"})
    assert non_default_params(plain) == non_default_params(spelled) == {"example": 0}
    assert non_default_params(
        parse_params(PredictionParams, {"text": "a", "position": 3, "versus": "none"})
    ) == {
        "text": "a",
        "position": 3,
        "versus": "none",
    }


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"positon": 1}, "no 'positon'; did you mean 'position'"),
        ({"text": "a"}, "the question lacks position"),
        ({"position": "3"}, "position is '3', but must be an integer"),
        ({"position": True}, "position is True, but must be an integer"),
        ({"position": 1.5}, "position is 1.5, but must be an integer"),
        ({"position": 2**60}, "position is 1152921504606846976, which is out of range"),
        ({"position": 0, "text": ["a"]}, r"text is \['a'\], but must be a string"),
        ({"position": 0, "text": None}, "text is null; leave it out"),
        ({"position": 0, "versus": 1.5}, "versus is 1.5, but must be a string or an integer"),
        ({"position": 0, "text": "a" * (MAX_CHARACTERS + 1)}, "200,001 characters; at most"),
    ],
)
def test_bad_parameters_are_rejected_with_a_reason(
    parameters: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        parse_params(PredictionParams, parameters)


def test_an_unknown_choice() -> None:
    with pytest.raises(InputError, match="choose 'attention', 'information' or 'effect'"):
        parse_params(AttentionParams, {"weighting": "size"})


def test_every_question_takes_a_model_and_a_step() -> None:
    for question in QUESTIONS:
        assert issubclass(question.params, ModelParams)
    assert len({question.name for question in QUESTIONS}) == len(QUESTIONS)


def test_an_unknown_question() -> None:
    with pytest.raises(UnknownQuestionError, match="no question 'atlass'; did you mean 'atlas'"):
        find_question("atlass")
