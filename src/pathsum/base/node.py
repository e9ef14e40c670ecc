"""Names with positions, and names of the values of a run.

Node      a component at a position, `L0H3@4`
NodeEdge  an edge between two nodes, `L0H3@4→L1H0@9.k`
Site      what a patch exchanges: a writer or an edge, everywhere or at one position of each end
Value     a tensor that a run computes, `L1H4.pattern`, for hooks
"""

import re
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from pathsum.base.edge import (
    Edge,
    HeadRead,
    LogitsRead,
    MlpRead,
    Reader,
    Side,
    Writer,
    parse_read,
    parse_writer,
)
from pathsum.base.errors import PathError
from pathsum.base.head_id import LABEL, NUMBER, HeadId, is_number, is_pair
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


@dataclass(frozen=True)
class Site(Printed):
    """The target of a patch: everything a writer writes, or what one reader sees of it.

    Without positions it is exchanged everywhere. `written_at` is a position of the writer,
    `read_at` one of the reader; negative ones count from the end.

    >>> [str(Site.parse(name)) for name in ("L0H3@4", ("L0H7", "L1H4", "k"), "L0H7@4>L1H4@-1.k")]
    ['L0H3@4', 'L0H7→L1H4.k', 'L0H7@4→L1H4@-1.k']
    """

    writer: Writer
    reader: Reader | None = None
    written_at: int | None = None
    read_at: int | None = None

    def __str__(self) -> str:
        written = f"{self.writer}{_at(self.written_at)}"
        if self.reader is None:
            return written
        if isinstance(self.reader, HeadRead):
            read = f"{self.reader.head}{_at(self.read_at)}.{self.reader.side.value}"
        else:
            read = f"{self.reader}{_at(self.read_at)}"
        return f"{written}{ARROW}{read}"

    @property
    def edge(self) -> Edge | None:
        """The edge, without positions; None for a node."""
        return None if self.reader is None else Edge(self.writer, self.reader)

    @classmethod
    def parse(cls, name: Any) -> "Site":
        """The site that a text, an edge, a writer, or a tuple of writer, reader and side means."""
        if isinstance(name, Site):
            return name
        if isinstance(name, Node | NodeEdge):
            return cls.parse(str(name))
        if isinstance(name, Edge):
            return cls(name.writer, name.reader)
        if isinstance(name, HeadId | Source) or is_pair(name):
            return cls(parse_writer(name))
        fewest = 1 if isinstance(name, str) else 2
        ends: Any = split_arrows(name) if isinstance(name, str) else name
        if not isinstance(name, str | tuple) or not fewest <= len(ends) <= 3:
            raise _neither(name)
        writer, written_at = _split_position(ends[0])
        if len(ends) == 1:
            try:
                return cls(parse_writer(writer), None, written_at)
            except PathError:
                raise _neither(name) from None
        reader, read_at = _split_position(ends[1])
        if not isinstance(reader, str | tuple | HeadRead | MlpRead | LogitsRead):
            raise PathError(
                f"{reader!r} does not name a read; use ('L0H7', 'L1H4', 'k'), ('L0H7', 'mlp1') or "
                "('L0H7', 'logits'), and 'L0H7@4→L1H4@9.k' for positions"
            )
        side = ends[2] if len(ends) == 3 else None
        return cls(parse_writer(writer), parse_read(reader, side), written_at, read_at)


ValueKind: TypeAlias = Literal["pattern", "z", "read", "residual", "written", "logits"]


@dataclass(frozen=True)
class Value(Printed):
    """A tensor that a run computes, by name; hooks are called with it.

        L1H4.pattern   a head's attention                          [batch, dest, src]
        L1H4.z         what it moved, before W_O                   [batch, pos, d_head]
        L1H4.q .k .v   the stream that it reads for each           [batch, pos, d_model]
        residual@L1    the stream before layer 1                   [batch, pos, d_model]
        embed, mlp0    what the embedding or an MLP writes         [batch, pos, d_model]
        logits         the logits                                  [batch, pos, vocab]

    >>> Value.parse("L1H4.pattern").head, str(Value.parse("residual@L1"))
    ('L1H4', 'residual@L1')
    """

    kind: ValueKind
    of: HeadId | HeadRead | Source | int | None = None

    def __str__(self) -> str:
        if self.kind in ("pattern", "z"):
            return f"{self.of}.{self.kind}"
        return f"residual@L{self.of}" if self.kind == "residual" else str(self.of or "logits")

    @property
    def head(self) -> HeadId | None:
        """The head that it belongs to, or None."""
        if isinstance(self.of, HeadRead):
            return self.of.head
        return self.of if isinstance(self.of, HeadId) else None

    @property
    def layer(self) -> int | None:
        """The layer in which it is computed; −1 for the embedding, None for the logits."""
        if isinstance(self.of, int):
            return self.of
        if isinstance(self.of, Source):
            return self.of.layer
        return None if self.head is None else self.head.layer

    @classmethod
    def parse(cls, name: "str | Value") -> "Value":
        """The value that a name means."""
        if isinstance(name, Value):
            return name
        text = name.strip() if isinstance(name, str) else ""
        if text == "logits":
            return cls("logits")
        stream = re.fullmatch(rf"residual@L({NUMBER})", text, re.ASCII)
        if stream is not None:
            return cls("residual", int(stream[1]))
        if re.fullmatch(rf"embed|mlp{NUMBER}", text, re.ASCII):
            return cls("written", Source.parse(text))
        label, _, what = text.partition(".")
        if LABEL.fullmatch(label) and what in ("pattern", "z"):
            return cls("pattern" if what == "pattern" else "z", HeadId.parse(label))
        if LABEL.fullmatch(label) and what in ("q", "k", "v"):
            return cls("read", HeadRead(HeadId.parse(label), Side.parse(what)))
        raise PathError(
            f"{name!r} is not a value of a run; use 'L1H4.pattern', 'L1H4.z', 'L1H4.q' (what a "
            "head reads), 'residual@L1', 'embed', 'mlp0' or 'logits'"
        )


def _neither(name: Any) -> PathError:
    return PathError(
        f"{name!r} is neither an edge nor a node; edges are ('L0H7', 'L1H4', 'k') or "
        "'L0H7→L1H4.k' and ('L0H7', 'logits'), nodes are 'L0H7', 'embed' and 'mlp0', each also at "
        "a position: 'L0H7@4', 'L0H7→L1H4@9.k'"
    )


def _at(position: int | None) -> str:
    return "" if position is None else f"@{position}"


def _split_position(name: Any) -> tuple[Any, int | None]:
    """`L0H7@4` as `L0H7` and 4; `L1H4@9.k` as `L1H4.k` and 9."""
    if not isinstance(name, str) or "@" not in name:
        return name, None
    found = re.fullmatch(rf"([^@]+)@(-?{NUMBER})(\.\w+)?", name.strip(), re.ASCII)
    if found is None:
        raise PathError(
            f"{name!r} does not name a position; write the number of a token after the @, as in "
            "'L0H7@4' or 'L1H4@-1.k'"
        )
    return found[1].strip() + (found[3] or ""), int(found[2])
