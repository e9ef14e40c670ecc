"""Numbers that may be absent."""

import math


def finite(number: float | None) -> float | None:
    """A number, or None where there is none to say.

    >>> finite(0.5), finite(float("nan"))
    (0.5, None)
    """
    return number if number is not None and math.isfinite(number) else None
