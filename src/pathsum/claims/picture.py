"""The picture of a claim as plain data; the report and the browser draw it by its `type`."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from pathsum.base.estimate import Estimate


@dataclass(frozen=True)
class Bar:
    """A bar with its interval and null; `link` leads to the view that shows it."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    null: float | None = None
    link: str = ""

    @classmethod
    def of(cls, name: str, value: Estimate, link: str = "") -> "Bar":
        """From an estimate."""
        return cls(name, value.value, value.low, value.high, value.null, link)


@dataclass(frozen=True)
class BarsPicture:
    """Named values as bars; `threshold` is where the rule's verdict changes, if bars have one."""

    title: str
    axis: str
    bars: tuple[Bar, ...]
    threshold: float | None = None
    type: Literal["bars"] = "bars"


@dataclass(frozen=True)
class Point:
    """A named point of a group."""

    name: str
    x: float
    y: float
    group: str
    link: str = ""


@dataclass(frozen=True)
class PointsPicture:
    """Points by two numbers; `guide` draws x = y, or x = 0 and y = 0."""

    title: str
    x: str
    y: str
    points: tuple[Point, ...]
    guide: Literal["diagonal", "axes"]
    type: Literal["points"] = "points"


@dataclass(frozen=True)
class Line:
    """A named curve."""

    name: str
    values: tuple[float, ...]


@dataclass(frozen=True)
class LinesPicture:
    """Curves over positions 0, 1, 2 …; `mark` is the position where `mark_name` happens."""

    title: str
    x: str
    y: str
    lines: tuple[Line, ...]
    mark: int | None
    mark_name: str
    type: Literal["lines"] = "lines"


@dataclass(frozen=True)
class Stack:
    """A row of parts that add up."""

    name: str
    parts: tuple[int, ...]


@dataclass(frozen=True)
class StacksPicture:
    """Rows whose parts add up to the same total."""

    title: str
    axis: str
    parts: tuple[str, ...]
    rows: tuple[Stack, ...]
    type: Literal["stacks"] = "stacks"


@dataclass(frozen=True)
class PatternPicture:
    """The attention pattern of a head on an example."""

    head: str
    example: int
    type: Literal["pattern"] = "pattern"


@dataclass(frozen=True)
class LossPicture:
    """The loss at every position of an example."""

    example: int
    type: Literal["losses"] = "losses"


@dataclass(frozen=True)
class OffsetsPicture:
    """A head's scores by distance, from positions alone."""

    head: str
    type: Literal["offsets"] = "offsets"


@dataclass(frozen=True)
class GraphPicture:
    """The composition graph."""

    type: Literal["graph"] = "graph"


Picture: TypeAlias = (
    BarsPicture
    | PointsPicture
    | LinesPicture
    | StacksPicture
    | PatternPicture
    | LossPicture
    | OffsetsPicture
    | GraphPicture
)
