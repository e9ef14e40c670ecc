import enum

import pytest

from pathsum.base import parse_choice, parse_option
from pathsum.base.errors import InputError


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
