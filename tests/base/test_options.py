import enum

import pytest

from pathsum.base import parse_choice, parse_option
from pathsum.base.errors import InputError
from pathsum.base.options import parse_count, parse_draws, parse_position, parse_probability


class Size(enum.StrEnum):
    SMALL = "small"
    LARGE = "large"


class Other(enum.StrEnum):
    SMALL = "small"


@pytest.mark.parametrize("size", Size)
def test_members_and_their_strings(size: Size) -> None:
    assert parse_option(Size, size, "size") is size
    assert parse_option(Size, size.value, "size") is size


@pytest.mark.parametrize("wrong", ["smal", "SMALL", "", Other.SMALL])
def test_anything_else_lists_the_choices(wrong: str) -> None:
    with pytest.raises(InputError, match="size is .*; choose 'small' or 'large'"):
        parse_option(Size, wrong, "size")


def test_near_misses_are_offered() -> None:
    with pytest.raises(InputError, match="did you mean 'small'"):
        parse_option(Size, "smal", "size")


def test_plain_strings() -> None:
    assert parse_choice(("q", "k"), "k", "kind") == "k"
    with pytest.raises(InputError, match="kind is 'x'; choose 'q' or 'k'"):
        parse_choice(("q", "k"), "x", "kind")


@pytest.mark.parametrize(("position", "found"), [(0, 0), (4, 4), (-1, 4), (-5, 0)])
def test_positions(position: int, found: int) -> None:
    assert parse_position(position, 5) == found


@pytest.mark.parametrize("position", [5, -6, 10**12])
def test_positions_out_of_range(position: int) -> None:
    with pytest.raises(InputError, match=f"source {position} is out of range: the text has 5 tok"):
        parse_position(position, 5, "source", "the text")


def test_counts() -> None:
    assert parse_count(1, "edges") == 1
    assert parse_count(0, "tokens", "n", minimum=0) == 0
    with pytest.raises(InputError, match="n=-1 tokens were requested; choose 0 or more"):
        parse_count(-1, "tokens", "n", minimum=0)
    for wrong in (0, 6):
        with pytest.raises(InputError, match="but there are 5; choose from 1 to 5"):
            parse_count(wrong, "tokens", maximum=5)


def test_probabilities_and_draws() -> None:
    assert parse_probability(0.05, "alpha") == 0.05
    for wrong in (0.0, 1.0, -1.0, float("nan")):
        with pytest.raises(InputError, match="alpha=.* is not a probability"):
            parse_probability(wrong, "alpha")
    assert parse_draws(99, 99) == 99
    with pytest.raises(InputError, match="draws=-3 random pairs are too few: p could not fall b"):
        parse_draws(-3, 99, "random pairs")
    with pytest.raises(InputError, match="draws=1000000000000 is out of range; use 99 to 100,000"):
        parse_draws(10**12, 99)
