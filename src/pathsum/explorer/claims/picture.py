"""Pictures of claims: small tagged records that the report and the browser switch on."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from pathsum.explorer.params import PlainParams


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
class HeadPicture:
    """A part of a head's page."""

    head: str
    part: Literal["eigenvalues", "trigrams", "offsets"]
    type: Literal["head"] = "head"


@dataclass(frozen=True)
class EdgePicture:
    """A composition edge in detail."""

    edge: str
    type: Literal["edge"] = "edge"


@dataclass(frozen=True)
class GraphPicture:
    """The composition graph."""

    type: Literal["graph"] = "graph"


@dataclass(frozen=True)
class TermsPicture:
    """Term importance by order or by layer."""

    by: Literal["order", "layer"]
    type: Literal["terms"] = "terms"


@dataclass(frozen=True)
class ScatterPicture:
    """All heads by two scores of the atlas."""

    type: Literal["scatter"] = "scatter"


Picture: TypeAlias = (
    PatternPicture
    | LossPicture
    | HeadPicture
    | EdgePicture
    | GraphPicture
    | TermsPicture
    | ScatterPicture
)
"""The picture of a claim; the report and the browser draw it by its `type`."""


def picture_questions(picture: Picture) -> tuple[tuple[str, PlainParams], ...]:
    """The questions that a picture is drawn from: names and parameters, without the model."""
    match picture:
        case PatternPicture(head, example):
            text: PlainParams = {"example": example}
            return (("run", text), ("attention", {**text, "head": head}))
        case LossPicture(example):
            return (("run", {"example": example}),)
        case HeadPicture(head, part):
            return (("trigrams" if part == "trigrams" else "head", {"head": head}),)
        case EdgePicture(edge):
            return (("edge", {"edge": edge}),)
        case GraphPicture():
            return (("composition", {}),)
        case TermsPicture():
            return (("terms", {}),)
        case ScatterPicture():
            return (("atlas", {}),)
