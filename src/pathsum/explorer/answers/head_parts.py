"""What the pages of heads and of edges are made of."""

from dataclasses import dataclass


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
