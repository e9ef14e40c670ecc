"""Nodes, a component at a position, `L0H3@4`, and the edges between them."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from pathsum.base.edge import (
    Side,
)
from pathsum.base.errors import PathError
from pathsum.base.head_id import LABEL, HeadId, is_number
from pathsum.base.path import ARROW, Part, Printed, Source, split_arrows

Component: TypeAlias = HeadId | Source | Part | Literal["logits"]
"""A head, a source, a part that a read adds itself (`pos@1`, `b_K`), or the logits."""


@dataclass(frozen=True)
class Node(Printed):
    """A component at a position: `L0H3@4`, `embed@2`, `pos@1@4`, or `logits@9`, the prediction.

    >>> Node.parse("L0H3@4").component.layer, str(Node("logits", 9))
    (0, 'logits@9')
    """

    component: Component
    position: int

    def __str__(self) -> str:
        return f"{self.component}@{self.position}"

    @classmethod
    def parse(cls, text: "str | Node") -> "Node":
        """The node that a text such as `L0H3@4` means."""
        if isinstance(text, Node):
            return text
        name, at, position = text.strip().rpartition("@")
        if not at or not is_number(position):
            raise PathError(
                f"{text!r} is not a node; a node is a component at a position, such as 'L0H3@4'"
            )
        return cls(_component(name.strip()), int(position))

    @property
    def head(self) -> HeadId | None:
        """The head, or None if the component is not a head."""
        return self.component if isinstance(self.component, HeadId) else None


@dataclass(frozen=True)
class NodeEdge(Printed):
    """One node read by another, for a head's queries, keys or values: `L0H3@4→L1H0@9.k`.

    The logits have one read: `L1H0@9→logits@9`, whose `side` is V.
    """

    writer: Node
    reader: Node
    side: Side

    def __str__(self) -> str:
        suffix = "" if self.reader.component == "logits" else f".{self.side.value}"
        return f"{self.writer}{ARROW}{self.reader}{suffix}"

    @classmethod
    def parse(cls, text: "str | NodeEdge") -> "NodeEdge":
        """The edge that a text such as `L0H3@4→L1H0@9.k` means."""
        if isinstance(text, NodeEdge):
            return text
        halves = split_arrows(text)
        if len(halves) != 2:
            raise PathError(
                f"{text!r} is not an edge between nodes; one reads 'L0H3@4→L1H0@9.k', where the "
                "letter is the read (q, k or v)"
            )
        reader, _, side = halves[1].partition(".")
        return cls(Node.parse(halves[0]), Node.parse(reader), Side.parse(side or "v"))


def _component(name: str) -> Component:
    if name == "logits":
        return "logits"
    if LABEL.fullmatch(name):
        return HeadId.parse(name)
    if name in ("b_Q", "b_K") or "@" in name:
        return Part.parse(name)
    return Source.parse(name)
