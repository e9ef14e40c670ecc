"""Names of heads and of what paths begin at."""

import re
from typing import Any, NamedTuple, TypeAlias

from pathsum.errors import HeadError


class HeadId(NamedTuple):
    """A head by its place; prints as `L1H4`, and is the pair (1, 4)."""

    layer: int
    head: int

    def __str__(self) -> str:
        return f"L{self.layer}H{self.head}"

    def to_json(self) -> str:
        """Its label."""
        return str(self)

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """What the JSON form looks like."""
        return {"type": "string", "pattern": "^L[0-9]+H[0-9]+$"}


HeadName: TypeAlias = str | tuple[int, int] | HeadId
"""How a head may be named anywhere: a label, a pair, or a `HeadId`."""

_LABEL = re.compile(r"[Ll](\d+)[Hh](\d+)")


def parse_head(name: HeadName) -> HeadId:
    """The head that a label or a pair names, before asking whether a model has it.

    >>> parse_head("L1H4"), parse_head((1, 4)) == parse_head("l1h4")
    (HeadId(layer=1, head=4), True)
    """
    if isinstance(name, str):
        match = _LABEL.fullmatch(name.strip())
        if match is None:
            raise HeadError(
                f"{name!r} is not a head's label; a layer and a head counted from 0, "
                "as in 'L1H4' or (1, 4), would be right"
            )
        return HeadId(int(match[1]), int(match[2]))
    return HeadId(*name)


def find_head(name: HeadName, n_layers: int, n_heads: int) -> HeadId:
    """The head that a label or a pair names in a model of this size, or an error that helps."""
    found = parse_head(name)
    if n_layers == 0:
        raise HeadError(f"there is no head {found}: this model has no layers, so it has no heads")
    if not (0 <= found.layer < n_layers and 0 <= found.head < n_heads):
        near = HeadId(
            min(max(found.layer, 0), n_layers - 1),
            min(max(found.head, 0), n_heads - 1),
        )
        raise HeadError(
            f"there is no head {found}: this model has layers 0 to {n_layers - 1} "
            f"with heads 0 to {n_heads - 1} each; {near} is the nearest"
        )
    return found
