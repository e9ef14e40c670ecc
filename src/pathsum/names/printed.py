"""What all names share: the arrow, and a JSON form that is the printed form."""

from typing import Any

ARROW = "→"


class Printed:
    """A value whose JSON form is its printed form."""

    __slots__ = ()

    def to_json(self) -> str:
        """Its printed form."""
        return str(self)

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """A string."""
        return {"type": "string"}


def split_arrows(text: str) -> list[str]:
    """What stands between arrows, `→`, `->` or `>`."""
    return [part.strip() for part in text.replace("->", ARROW).replace(">", ARROW).split(ARROW)]
