"""What the pages of heads and of edges are made of."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Edge:
    """How strongly one head reads what another writes, against chance."""

    writer: str
    reader: str
    kind: Literal["q", "k", "v"]
    score: float
    excess: float
    z: float
    p: float


@dataclass(frozen=True)
class TokenRow:
    """A token and the tokens that go with it most, with their values."""

    token: int
    others: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class CopyingScore:
    """One measure of copying beside what chance gives."""

    name: str
    value: float | None
    null: float | None
    p: float | None
