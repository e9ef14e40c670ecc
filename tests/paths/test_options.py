"""Options of interventions: the member, its string, or an error that lists the choices."""

from typing import Any

import pytest

import pathsum as ps
from pathsum.base.errors import InputError, TokenError
from pathsum.paths import After, CopyingPart, Reference

MODEL = ps.construct.induction()
TOKENS = MODEL.tokens("a b " * 8)


@pytest.mark.parametrize("reference", [Reference.ZERO, Reference.MEAN, Reference.FIRST])
def test_a_reference_is_its_string(reference: Any) -> None:
    member = ps.ablate(MODEL, "L1H0", TOKENS, reference=reference)
    string = ps.ablate(MODEL, "L1H0", TOKENS, reference=reference.value)
    assert string.cost.value == member.cost.value and string.knockout is reference


def test_what_follows_an_edit_is_its_string() -> None:
    for after in After:
        member = ps.ablate(MODEL, "L0H0", TOKENS, after=after)
        string = ps.ablate(MODEL, "L0H0", TOKENS, after=after.value)
        assert string.cost.value == member.cost.value and string.after is after
    full, direct = (ps.ablate(MODEL, "L0H0", TOKENS, after=after).cost.value for after in After)
    assert abs(full - direct) > 0.1


@pytest.mark.parametrize("option", ["reference", "after"])
def test_an_unknown_option_is_an_error(option: str) -> None:
    with pytest.raises(InputError, match=f"{option} is 'nonsense'; choose"):
        ps.ablate(MODEL, "L1H0", TOKENS, **{option: "nonsense"})
    with pytest.raises(InputError, match=f"{option} is 'nonsense'; choose"):
        ps.replace(MODEL, "L1H0", TOKENS, pattern="induction", **{option: "nonsense"})


def test_descriptions_are_parsed() -> None:
    member = ps.replace(MODEL, "L1H0", TOKENS, ov=CopyingPart())
    string = ps.replace(MODEL, "L1H0", TOKENS, ov="copying")
    assert member.share is not None and string.share is not None
    assert string.share.value == member.share.value
    with pytest.raises(InputError, match="ov is 'nonsense'; use 'copying'"):
        ps.replace(MODEL, "L1H0", TOKENS, ov="nonsense")
    with pytest.raises(InputError, match="pattern is 'nonsense'; choose 'previous'"):
        ps.replace(MODEL, "L1H0", TOKENS, pattern="nonsense")


def test_term_importance_parses_its_options() -> None:
    for option in ("scale", "mlps"):
        with pytest.raises(InputError, match=f"{option} is 'nonsense'; choose 'frozen'"):
            ps.term_importance(MODEL, TOKENS, **{option: "nonsense"})


def test_an_unknown_rival_names_the_mean() -> None:
    paths = MODEL.trace("a b a").paths()
    assert paths.toward(versus="mean").versus == "mean"
    with pytest.raises(TokenError, match="'average'.*'mean', over the vocabulary"):
        paths.toward(versus="average")
    with pytest.raises(TokenError) as caught:
        paths.toward(token="average")
    assert "mean" not in str(caught.value)
