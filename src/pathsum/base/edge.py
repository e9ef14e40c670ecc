"""Reads and edges: `L1H4.k`, and a message through the residual stream, `L0H7→L1H4.k`."""

import re
from dataclasses import dataclass
from typing import TypeAlias

from pathsum.base.errors import PathError
from pathsum.base.head_id import LABEL, NUMBER, HeadId, HeadName
from pathsum.base.path import ARROW, Printed, Source, split_arrows
from pathsum.base.site import Side, Writer, parse_writer


@dataclass(frozen=True)
class HeadRead(Printed):
    """One of the three reads of a head, `L1H4.k`."""

    head: HeadId
    side: Side

    def __str__(self) -> str:
        return f"{self.head}.{self.side.value}"


@dataclass(frozen=True)
class MlpRead(Printed):
    """The read of a layer's MLP, `mlp3`."""

    layer: int

    def __str__(self) -> str:
        return f"mlp{self.layer}"


@dataclass(frozen=True)
class LogitsRead(Printed):
    """The read of the unembedding, `logits`."""

    def __str__(self) -> str:
        return "logits"


Reader: TypeAlias = HeadRead | MlpRead | LogitsRead
"""A component that reads the residual stream."""


def parse_read(name: "HeadName | Reader", side: str | Side | None = None) -> Reader:
    """The read that a name means: `L1H4.k`, `mlp3` or `logits`; or a head and its side.

    >>> parse_read("L1H4.k") == parse_read((1, 4), "k") == HeadRead(HeadId(1, 4), Side.K)
    True
    """
    if isinstance(name, HeadRead | MlpRead | LogitsRead):
        return name
    if isinstance(name, str):
        text = name.strip()
        mlp = re.fullmatch(rf"mlp({NUMBER})", text, re.ASCII)
        if (text == "logits" or mlp) and side is not None:
            raise PathError(f"{text} has one read only; leave {side!r} out")
        if text == "logits":
            return LogitsRead()
        if mlp:
            return MlpRead(int(mlp[1]))
        label, dot, letter = text.partition(".")
        if dot and side is None:
            return HeadRead(HeadId.parse(label), Side.parse(letter))
        if not LABEL.fullmatch(text):
            raise PathError(
                f"{name!r} does not name a read; use 'L1H4.q', 'L1H4.k', 'L1H4.v', 'mlp3' or "
                "'logits'"
            )
    head = HeadId.parse(name)
    if side is None:
        raise PathError(f"{head} has three reads; name one: '{head}.q', '{head}.k' or '{head}.v'")
    return HeadRead(head, Side.parse(side))


@dataclass(frozen=True)
class Edge(Printed):
    """A writer and a reader: one message through the residual stream, `L0H7→L1H4.k`.

    >>> Edge.parse("L0H7>L1H4.k") == Edge.parse(("L0H7", "L1H4", "k"))
    True
    """

    writer: Writer
    reader: Reader

    def __str__(self) -> str:
        return f"{self.writer}{ARROW}{self.reader}"

    @property
    def heads(self) -> tuple[HeadId, HeadRead]:
        """The head that writes and the read of the other, of an edge between heads."""
        assert isinstance(self.writer, HeadId)
        assert isinstance(self.reader, HeadRead)
        return self.writer, self.reader

    @classmethod
    def parse(cls, name: "EdgeName") -> "Edge":
        """The edge that a text, or a tuple of writer, reader and side, means."""
        if isinstance(name, Edge):
            return name
        if isinstance(name, str):
            ends = split_arrows(name)
            if len(ends) == 2:
                return cls(parse_writer(ends[0]), parse_read(ends[1]))
        elif isinstance(name, tuple) and len(name) in (2, 3):
            side = name[2] if len(name) == 3 else None
            return cls(parse_writer(name[0]), parse_read(name[1], side))
        raise PathError(
            f"{name!r} is not an edge; use 'L0H7→L1H4.k' or ('L0H7', 'L1H4', 'k'), "
            "'L0H7→mlp1', or 'L0H7→logits'"
        )


EdgeName: TypeAlias = (
    str
    | Edge
    | tuple[HeadName | Source, HeadName | Reader]
    | tuple[HeadName | Source, HeadName, str | Side]
)
"""Any form of an edge: `"L0H7→L1H4.k"`, or a tuple of writer, reader and side."""
