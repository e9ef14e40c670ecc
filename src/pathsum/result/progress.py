"""How long work tells how far it is: a function that whoever waits may pass in."""

from collections.abc import Callable
from typing import TypeAlias

Progress: TypeAlias = Callable[[int, int, str], None]
"""Called with (steps done, steps in all, what is being done)."""


def silent(done: int, total: int, what: str) -> None:
    """Nobody is waiting."""
