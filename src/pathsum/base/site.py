"""Site: a place in a run where a number can be read, replaced or scored.

    L1H4   L1H4@9   embed@3   mlp3   mlp3.n512   logits    a component, everywhere or at a position
    L1H4.pattern   L1H4.z   mlp3.act   residual2           a named value of a component
    L1H4.k   mlp3.in   mlp3.g                              a read: the stream that a component sees
    L0H7→L1H4.k   embed→mlp2   L1H4→logits                 an edge: a writer, as one reader sees it
    embed→mlp2.u   embed→mlp2.g                            the same in the value or the gate alone
    L0H7@4→L1H4@9.k                                        an edge at single positions

A patch replaces the value at a site, an attribution scores it, a circuit is a set of sites.
`Site.parse(str(site)) == site`, and the printed form is the same in the terminal, in JSON, in URLs
and in the browser. A `Part` is one summand of a query or a key.
"""

import enum
import re
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from pathsum.base.errors import InputError, PathError
from pathsum.base.path import (
    ARROW,
    LABEL,
    NUMBER,
    HeadId,
    HeadName,
    Path,
    Printed,
    Source,
    is_pair,
    split_arrows,
)


class Side(enum.StrEnum):
    """The reads of a component: queries, keys and values of a head, values and gates of an MLP."""

    Q = "q"
    K = "k"
    V = "v"
    U = "u"
    G = "g"

    @classmethod
    def parse(cls, name: "str | Side") -> "Side":
        """The side that a letter names."""
        if name not in tuple(cls):
            raise InputError(
                f"a head has the reads 'q', 'k' and 'v', not {name!r}; an MLP has 'u' (its values) "
                "and 'g' (its gates)"
            )
        return cls(name)


HEAD_SIDES = (Side.Q, Side.K, Side.V)
MLP_SIDES = (Side.U, Side.G)


PartKind: TypeAlias = Literal["path", "position", "bias", "writer"]


@dataclass(frozen=True)
class Part(Printed):
    """One summand of a query or of a key.

    `path`      a source and the lower heads it came through: `embed`, `embed→L0H7`, `mlp0→L1H2`
    `position`  the position vector added at this layer's read (positions="qk"): `pos@1`
    `bias`      the read's own bias, a folded normalization bias included: `b_Q`, `b_K`; in the
                edges into an MLP also `b_in`, `b_gate`
    `writer`    the whole output of one lower head, over all paths: `L0H7`

    >>> Part.parse("embed>L0H7").heads
    ('L0H7',)
    """

    kind: PartKind
    text: str
    source: Source | None = None
    heads: tuple[HeadId, ...] = ()

    def __str__(self) -> str:
        return self.text

    @property
    def headed(self) -> bool:
        """Whether it went through a lower head."""
        return bool(self.heads)

    @property
    def path(self) -> Path:
        """The path of a part of this kind."""
        if self.kind != "path" or self.source is None:
            raise PathError(f"the part {self.text} is not a path from a source")
        return Path(self.source, self.heads)

    @classmethod
    def of_path(cls, path: Path) -> "Part":
        """The part of a path."""
        if len(path.heads) < path.order:
            raise PathError(
                f"{path} goes through an MLP; the parts of a score come from sources through "
                "heads, with MLP outputs as sources"
            )
        return cls("path", str(path), path.source, path.heads)

    @classmethod
    def position(cls, layer: int) -> "Part":
        """The position part of a layer's reads."""
        return cls("position", f"pos@{layer}")

    @classmethod
    def bias(cls, side: Literal["query", "key", "value", "gate"]) -> "Part":
        """The read's own bias: of a head's query or key, or of an MLP's values or gates."""
        return cls("bias", {"query": "b_Q", "key": "b_K", "value": "b_in", "gate": "b_gate"}[side])

    @classmethod
    def writer(cls, head: HeadId) -> "Part":
        """The whole output of a lower head."""
        return cls("writer", str(head), None, (head,))

    @classmethod
    def parse(cls, name: "PartName") -> "Part":
        """The part that a name or a path means."""
        if isinstance(name, Part):
            return name
        if isinstance(name, Path):
            return cls.of_path(name)
        text = name.strip()
        if text in ("b_Q", "b_K", "b_in", "b_gate"):
            return cls("bias", text)
        if re.fullmatch(rf"pos@{NUMBER}", text, re.ASCII):
            return cls.position(int(text.removeprefix("pos@")))
        if LABEL.fullmatch(text):
            return cls.writer(HeadId.parse(text))
        return cls.of_path(Path.parse(text))


PartName: TypeAlias = str | Path | Part


Writer: TypeAlias = HeadId | Source
"""A component that writes into the residual stream."""
Component: TypeAlias = HeadId | Source | Part
"""A writer, the logits, a residual stream, or a part that a read adds itself (`pos@1`, `b_K`)."""

LOGITS = Source("logits")
VALUES = {
    "pattern": ("head",),
    "z": ("head",),
    "pre": ("logits", "mlp"),
    "gate": ("mlp",),
    "act": ("mlp",),
}
"""Named values and the kinds of components that have them.

Of an MLP: `pre`, the neurons' inputs r W_in + b_in; `gate`, the inputs of their gates, r W_gate +
b_gate, if it has W_gate; and `act`, the activations that W_out reads.
"""


@dataclass(frozen=True)
class Site(Printed):
    """A component, a named value of one, a read, or an edge; `at` and `to` are positions.

    `writer` is the component, or the writer of an edge; a read has None. `reader` is a head (with
    its `side`), an MLP (all of its input, or one of its two sides) or the logits. `at` is a
    position of the writer, `to` one of the reader; negative positions count from the end of the
    text.

    >>> [str(Site.parse(name)) for name in ("L0H3@4", ("L0H7", "L1H4", "k"), "L0H7@4>L1H4@-1.k")]
    ['L0H3@4', 'L0H7→L1H4.k', 'L0H7@4→L1H4@-1.k']
    >>> Site.parse("L1H4.pattern").head, str(Site.parse("residual1"))
    ('L1H4', 'residual1')
    """

    writer: Component | None
    reader: HeadId | Source | None = None
    side: Side | None = None
    at: int | None = None
    to: int | None = None
    value: str | None = None

    def __post_init__(self) -> None:
        if self.side not in _sides_of(self.reader):
            component = self.reader if self.reader is not None else self.writer
            raise _no_such_read(component, self.side)

    def __str__(self) -> str:
        writer = str(self.writer) + ("" if self.at is None else f"@{self.at}")
        if self.reader is None:
            return writer if self.value is None else f"{writer}.{self.value}"
        side = f".{self.side.value}" if self.side is not None else ""
        reader = str(self.reader) + ("" if self.to is None else f"@{self.to}")
        return (
            f"{reader}{side or '.in'}" if self.writer is None else f"{writer}{ARROW}{reader}{side}"
        )

    @property
    def head(self) -> HeadId | None:
        """The head whose output, value or read this is; None for edges and other components."""
        if self.reader is not None:
            return self.reader if self.writer is None and isinstance(self.reader, HeadId) else None
        return self.writer if isinstance(self.writer, HeadId) else None

    @property
    def is_edge(self) -> bool:
        """Whether it is an edge: a writer as one reader sees it."""
        return self.writer is not None and self.reader is not None

    @property
    def read(self) -> "Site":
        """The read that an edge enters, without positions."""
        return Site(None, self.reader, self.side)

    @property
    def start(self) -> "Site":
        """The node at which an edge starts: its writer, at its position."""
        return Site(self.writer, at=self.at)

    @property
    def end(self) -> "Site":
        """The node at which an edge ends: its reader, at its position."""
        return Site(self.reader, at=self.to)

    @property
    def without_positions(self) -> "Site":
        """The same site at all positions."""
        return replace(self, at=None, to=None)

    @classmethod
    def edge(cls, start: "Site", end: "Site", side: Side | None) -> "Site":
        """The edge between two nodes."""
        assert not isinstance(end.writer, Part)
        return cls(start.writer, end.writer, side, start.at, end.at)

    @classmethod
    def parse(cls, name: Any) -> "Site":
        """The site that a text, a component, or a tuple of writer, reader and side names."""
        if isinstance(name, Site):
            return name
        if isinstance(name, HeadId | Source | Part):
            return cls(name)
        if isinstance(name, tuple) and is_pair(name):
            return cls(HeadId(name[0], name[1]))
        if isinstance(name, tuple) and len(name) in (2, 3):
            return _parse_edge(name[0], name[1], name[2] if len(name) == 3 else None, name)
        if not isinstance(name, str):
            raise _no_site(name)
        ends = split_arrows(name)
        if len(ends) == 2:
            return _parse_edge(ends[0], ends[1], None, name)
        if len(ends) != 1:
            raise _no_site(name)
        return _parse_component(ends[0])


SiteName: TypeAlias = str | Site | Source | Part | tuple[Any, Any] | tuple[Any, Any, str | Side]
"""Any form of a site: `"L0H7→L1H4.k"`, or a tuple of writer, reader and side."""


def parse_writer(name: HeadName | Source) -> Writer:
    """The head or the source that a name means."""
    if isinstance(name, Source):
        return name
    if isinstance(name, str) and not LABEL.fullmatch(name.strip()):
        try:
            return Source.parse(name)
        except PathError:
            raise PathError(
                f"{name!r} does not name a writer; use a head such as 'L0H7', 'embed' or 'mlp0'"
            ) from None
    return HeadId.parse(name)


def parse_read(name: "HeadName | Site | Source", side: str | Side | None = None) -> Site:
    """The read that a name means: `L1H4.k`, `mlp3` or `logits`; or a head and its side.

    >>> parse_read("L1H4.k") == parse_read((1, 4), "k") == Site(None, HeadId(1, 4), Side.K)
    True
    """
    if isinstance(name, Site):
        return name if name.writer is None else parse_read(str(name), side)
    if isinstance(name, Source):
        name = str(name)
    if isinstance(name, str):
        text = name.strip().removesuffix(".in")
        label, dot, letter = text.partition(".")
        mlp = re.fullmatch(rf"mlp({NUMBER})", label, re.ASCII)
        if dot and side is None and (mlp or LABEL.fullmatch(label)):
            side, text = Side.parse(letter), label
        if text == "logits" or (mlp and text == label):
            reader = LOGITS if mlp is None else Source("mlp", int(mlp[1]))
            return Site(None, reader, None if side is None else Side.parse(side))
        if not LABEL.fullmatch(text):
            raise PathError(
                f"{name!r} does not name a read; use 'L1H4.q', 'L1H4.k', 'L1H4.v', 'mlp3' or "
                "'logits'"
            )
        name = text
    return Site(None, HeadId.parse(name), None if side is None else Side.parse(side))


def _parse_edge(writer: Any, reader: Any, side: Any, name: Any) -> Site:
    writer, at = _split_position(writer)
    reader, to = _split_position(reader)
    if not isinstance(reader, str | tuple | Site | Source):
        raise PathError(
            f"{reader!r} does not name a read; use ('L0H7', 'L1H4', 'k'), ('L0H7', 'mlp1') or "
            "('L0H7', 'logits'), and 'L0H7@4→L1H4@9.k' for positions"
        )
    if not isinstance(writer, str | tuple | Source):
        raise _no_site(name)
    component = _read_part(writer) or parse_writer(writer)
    return replace(parse_read(reader, side), writer=component, at=at, to=to)


def _parse_component(name: str) -> Site:
    text, at = _split_position(name)
    stem, dot, value = text.rpartition(".")
    if re.fullmatch(rf"n{NUMBER}", value, re.ASCII):
        stem, dot = text, ""
    if dot and value in (*Side, "in"):
        return replace(parse_read(text), to=at)
    if dot and value not in VALUES:
        raise _no_site(name)
    component = _read_part(text) if at is not None else None
    if component is None:
        try:
            component = parse_writer(stem if dot else text)
        except PathError:
            raise _no_site(name) from None
    kind = component.kind if isinstance(component, Source) else "head"
    if dot and kind not in VALUES[value]:
        raise _no_site(name)
    return Site(component, at=at, value=value if dot else None)


def _read_part(name: Any) -> Part | None:
    """A part that a read adds itself, `pos@1` or `b_K`; None for anything else."""
    if isinstance(name, str) and re.fullmatch(
        rf"b_(Q|K|in|gate)|pos@{NUMBER}", name.strip(), re.ASCII
    ):
        return Part.parse(name)
    return None


def _sides_of(reader: HeadId | Source | None) -> tuple[Side | None, ...]:
    """The sides that a read may have; None is all of the input."""
    if isinstance(reader, HeadId):
        return HEAD_SIDES
    return (None, *MLP_SIDES) if reader is not None and reader.kind == "mlp" else (None,)


def _no_such_read(name: Component | None, side: Side | None) -> PathError:
    if isinstance(name, HeadId):
        problem = "" if side is None else f", not {side.value!r}"
        return PathError(
            f"{name} has three reads; name one: '{name}.q', '{name}.k' or '{name}.v'{problem}"
        )
    if isinstance(name, Source) and name.kind == "mlp":
        return PathError(
            f"{name} has the reads '{name}.u' (its values) and '{name}.g' (its gates), and "
            f"'{name}' is both; it has no {str(side)!r}"
        )
    return PathError(f"{name} has one read only; leave {str(side)!r} out")


def _split_position(name: Any) -> tuple[Any, int | None]:
    """`L0H7@4` as `L0H7` and 4; `L1H4@9.k` as `L1H4.k` and 9."""
    if not isinstance(name, str) or "@" not in name:
        return name, None
    match = re.fullmatch(rf"(pos@{NUMBER}|[^@]+)@(-?{NUMBER})(\.\w+)?", name.strip(), re.ASCII)
    if match is None:
        raise PathError(
            f"{name!r} does not name a position; write the number of a token after the @, as in "
            "'L0H7@4' or 'L1H4@-1.k'"
        )
    return match[1].strip() + (match[3] or ""), int(match[2])


def _no_site(name: Any) -> PathError:
    return PathError(
        f"{name!r} is not a site of a run; nodes are 'L0H7', 'embed' and 'mlp0', edges are "
        "'L0H7→L1H4.k' or ('L0H7', 'L1H4', 'k') and ('L0H7', 'logits'), each also at positions "
        "('L0H7@4', 'L0H7@4→L1H4@9.k'); neurons are 'mlp0.n5'; values are 'L1H4.pattern', "
        "'L1H4.z', 'L1H4.q' (the stream that a head reads), 'mlp0.act', 'residual1' and 'logits'"
    )
