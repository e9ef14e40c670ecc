"""Generators of random numbers from seeds."""

import operator

import torch

from pathsum.base.errors import InputError


def seeded(seed: int) -> torch.Generator:
    """A generator that starts from a seed; numpy's integers are seeds too.

    >>> torch.rand(1, generator=seeded(3)) == torch.rand(1, generator=seeded(3))
    tensor([True])
    """
    try:
        return torch.Generator().manual_seed(operator.index(seed))
    except (OverflowError, RuntimeError, TypeError, ValueError) as error:
        shown = f"a {type(seed).__name__}" if not isinstance(seed, int | float | str) else seed
        raise InputError(f"seed is {shown!s:.40}; give an integer of at most 63 bits") from error
