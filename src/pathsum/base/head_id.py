"""HeadId: the name of an attention head, `L1H4`."""

import operator
import re
from typing import Any, SupportsIndex, TypeAlias

from pathsum.base.errors import HeadError

# Digits of a number in a name; Python raises an error of its own for very long ones.
DIGITS = 9
NUMBER = rf"\d{{1,{DIGITS}}}"


class HeadId(str):
    """A head by layer and number: a string, equal to its label, ordered by (layer, head).

    >>> head = HeadId(1, 4)
    >>> head, head == "L1H4", head.layer, head.head
    ('L1H4', True, 1, 4)
    >>> HeadId(2, 0) < HeadId(10, 0)
    True
    """

    __slots__ = ("head", "layer")
    layer: int
    head: int

    def __new__(cls, layer: SupportsIndex, head: SupportsIndex) -> "HeadId":  # noqa: PYI034 (beartype does not know Self outside its own classes)
        """The head of this layer with this number, both counted from 0."""
        at, number = operator.index(layer), operator.index(head)
        beyond = 10**DIGITS
        if not (0 <= at < beyond and 0 <= number < beyond):
            at, number = (max(-beyond, min(beyond, one)) for one in (at, number))
            raise HeadError(
                f"layer {at}, head {number} is not a head: layers and heads count from 0 and have "
                f"at most {DIGITS} digits"
            )
        self = super().__new__(cls, f"L{at}H{number}")
        self.layer, self.head = at, number
        return self

    @classmethod
    def parse(cls, name: "HeadName") -> "HeadId":
        """The head that a label or a pair names, whether or not a model has it.

        >>> HeadId.parse("l1h4") == HeadId.parse((1, 4)) == HeadId(1, 4)
        True
        """
        if isinstance(name, HeadId):
            return name
        if isinstance(name, str):
            match = LABEL.fullmatch(name.strip())
            if match is not None:
                return cls(int(match[1]), int(match[2]))
        elif isinstance(name, tuple) and len(name) == 2:
            try:
                return cls(*name)
            except TypeError:
                pass
        raise HeadError(
            f"{name!r} does not name a head; use a label such as 'L1H4' or a pair such as (1, 4), "
            "layer and head counted from 0"
        )

    def __getnewargs__(self) -> tuple[int, int]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.layer, self.head

    def __lt__(self, other: str) -> bool:
        return _sort_key(self) < _sort_key(other)

    def __le__(self, other: str) -> bool:
        return _sort_key(self) <= _sort_key(other)

    def __gt__(self, other: str) -> bool:
        return _sort_key(self) > _sort_key(other)

    def __ge__(self, other: str) -> bool:
        return _sort_key(self) >= _sort_key(other)

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """The JSON schema of a head."""
        return {"type": "string", "pattern": "^L[0-9]+H[0-9]+$"}


HeadName: TypeAlias = str | tuple[int, int] | HeadId
"""Any form of a head: a label, a pair, or a `HeadId`."""

LABEL = re.compile(rf"[Ll]({NUMBER})[Hh]({NUMBER})", re.ASCII)


def is_number(text: str) -> bool:
    """Whether a text is a number as in names and token ids: one to nine ASCII digits.

    >>> is_number("12"), is_number("-1"), is_number("1" * 10), is_number("²")
    (True, False, False, False)
    """
    return re.fullmatch(NUMBER, text, re.ASCII) is not None


def is_pair(name: object) -> bool:
    """Whether a value is a pair of integers, one way to name a head."""
    return (
        isinstance(name, tuple) and len(name) == 2 and all(isinstance(part, int) for part in name)
    )


def find_head(name: HeadName, n_layers: int, n_heads: int) -> HeadId:
    """The head that a name means in a model of this size, or an error if it has no such head."""
    found = HeadId.parse(name)
    if n_layers == 0:
        raise HeadError(f"head {found} does not exist: this model has no layers, so no heads")
    if found.layer >= n_layers or found.head >= n_heads:
        near = HeadId(min(found.layer, n_layers - 1), min(found.head, n_heads - 1))
        raise HeadError(
            f"head {found} does not exist: this model has layers 0 to {n_layers - 1} "
            f"with heads 0 to {n_heads - 1} each; {near} is the nearest"
        )
    return found


def _sort_key(name: str) -> tuple[int, int, int, str]:
    """Heads by layer and number; any other string after them."""
    if isinstance(name, HeadId):
        return 0, name.layer, name.head, ""
    match = LABEL.fullmatch(name)
    return (0, int(match[1]), int(match[2]), "") if match else (1, 0, 0, name)
