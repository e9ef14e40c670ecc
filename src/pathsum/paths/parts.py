"""Parts of a query or a key: what a score is a sum over."""

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from pathsum.errors import PathError
from pathsum.model import HeadId, Path, Source
from pathsum.names import parse_head

Side: TypeAlias = Literal["query", "key"]
PartKind: TypeAlias = Literal["path", "position", "bias", "writer"]
PartName: TypeAlias = "str | Path | Part"
Group: TypeAlias = Literal["none", "q", "k", "qk"]


@dataclass(frozen=True)
class Part:
    """One summand of a query or of a key.

    `path`      a source and the lower heads it came through: `embed`, `embed→L0H7`, `mlp0→L1H2`
    `position`  what positions add at this layer's read (positions="qk"): `pos@1`
    `bias`      the read's own bias, a folded normalization bias included: `b_Q`, `b_K`
    `writer`    all that one lower head wrote, by whatever paths: `all of L0H7`
    """

    kind: PartKind
    text: str
    source: Source | None = None
    heads: tuple[HeadId, ...] = ()

    def __str__(self) -> str:
        return self.text

    @property
    def headed(self) -> bool:
        """Whether a lower head has had a hand in it."""
        return bool(self.heads)

    @property
    def path(self) -> Path:
        """A path part as a path."""
        if self.kind != "path" or self.source is None:
            raise PathError(f"{self.text} is not a path from a source")
        return Path(self.source, self.heads)

    def to_json(self) -> str:
        """Its text."""
        return self.text

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """A string."""
        return {"type": "string"}

    @classmethod
    def of_path(cls, path: Path) -> "Part":
        """The part that a path makes."""
        return cls("path", "→".join(map(str, (path.source, *path.heads))), path.source, path.heads)

    @classmethod
    def position(cls, layer: int) -> "Part":
        """What positions add at a layer's read."""
        return cls("position", f"pos@{layer}")

    @classmethod
    def bias(cls, side: Side) -> "Part":
        """The read's own bias."""
        return cls("bias", "b_Q" if side == "query" else "b_K")

    @classmethod
    def writer(cls, head: HeadId) -> "Part":
        """All that a lower head wrote."""
        return cls("writer", f"all of {head}", None, (head,))


def parse_part(name: PartName) -> Part:
    """The part that a name means: `embed`, `pos@1`, `b_K`, `embed→L0H7` (or with `>`), a `Path`.

    >>> parse_part("embed>L0H7").heads
    (HeadId(layer=0, head=7),)
    """
    if isinstance(name, Part):
        return name
    if isinstance(name, Path):
        return Part.of_path(name)
    if name in ("b_Q", "b_K"):
        return Part.bias("query" if name == "b_Q" else "key")
    if name.startswith("pos@") and name[4:].isdigit():
        return Part.position(int(name[4:]))
    if name.startswith("all of "):
        return Part.writer(parse_head(name.removeprefix("all of ")))
    source, *heads = name.replace(">", "→").split("→")
    return Part.of_path(Path(source.strip(), [head.strip() for head in heads]))


def group_of(query: Part, key: Part) -> Group:
    """Which of the four groups a term is in: whether a lower head is in its query, its key."""
    if query.headed:
        return "qk" if key.headed else "q"
    return "k" if key.headed else "none"
