"""Ideal patterns: how a head would attend if it were exactly what it is said to be."""

import enum

import torch
from jaxtyping import Bool
from torch import Tensor

from pathsum.errors import InputError, near_misses
from pathsum.shapes import HeadPattern, Tokens


class IdealPattern(enum.StrEnum):
    """What a head is said to attend to. Every row sums to 1, and looks back only.

    `PREVIOUS`   the token before (the first token attends to itself)
    `INDUCTION`  evenly, what followed earlier copies of this token; else the first token
    `DUPLICATE`  evenly, earlier copies of this token; else the first token
    `FIRST`      the first token
    `UNIFORM`    evenly, everything up to here
    """

    PREVIOUS = "previous"
    INDUCTION = "induction"
    DUPLICATE = "duplicate"
    FIRST = "first"
    UNIFORM = "uniform"

    @classmethod
    def parse(cls, name: "str | IdealPattern") -> "IdealPattern":
        """The pattern that a name means."""
        if isinstance(name, cls):
            return name
        known = [member.value for member in cls]
        if name not in known:
            raise InputError(
                f"there is no ideal pattern {name!r}{near_misses(str(name), known)}; "
                f"it may be {', '.join(map(repr, known))}"
            )
        return cls(name)

    def of(self, tokens: Tokens, dtype: torch.dtype = torch.float32) -> HeadPattern:
        """The pattern on given tokens.

        >>> tokens = torch.tensor([[0, 5, 7, 5]])
        >>> IdealPattern.INDUCTION.of(tokens)[0, -1]  # 7 followed 5
        tensor([0., 0., 1., 0.])
        """
        allowed = self._sources(tokens).to(dtype)
        # Nothing to attend to: rest on the first token.
        allowed[..., 0] += (allowed.sum(-1) == 0).to(dtype)
        return allowed / allowed.sum(-1, keepdim=True)

    def _sources(self, tokens: Tokens) -> Bool[Tensor, "batch dest src"]:
        batch, length = tokens.shape
        back = torch.ones(batch, length, length, dtype=torch.bool, device=tokens.device).tril()
        if self is IdealPattern.UNIFORM:
            return back
        if self is IdealPattern.PREVIOUS:
            return back.tril(-1).triu(-1)
        if self is IdealPattern.FIRST:
            return torch.zeros_like(back)
        copies = (tokens[:, :, None] == tokens[:, None, :]) & back.tril(-1)
        if self is IdealPattern.DUPLICATE:
            return copies
        # What followed a copy stands one place to its right, at this very token at the latest.
        followers = torch.zeros_like(copies)
        followers[:, :, 1:] = copies[:, :, :-1]
        return followers


def overlap(pattern: HeadPattern, ideal: HeadPattern) -> float:
    """The share of attention that lies where the ideal has it, Σ_src min(A, ideal), averaged."""
    return float(torch.minimum(pattern, ideal).sum(-1).mean())
