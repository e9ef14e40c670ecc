"""Progress callbacks: a function that long computations call with how far they are."""

from collections.abc import Callable
from typing import TypeAlias

Progress: TypeAlias = Callable[[int, int, str], None]
"""Called with (steps done, total steps, description of the current step)."""


def silent(done: int, total: int, what: str) -> None:
    """The default callback: does nothing."""
