"""One number about one head, with what chance would give."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.circuits.copying import TIE
from pathsum.result import Record
from pathsum.result.p_value import format_p


@dataclass(frozen=True)
class Score(Record, kind="head-score"):
    """A score of a head: its value, its standard error over draws, the null's mean, and p.

    `p` is the share of heads drawn at random that score at least as much, counted as
    (1 + those at or above) / (1 + all drawn); where `drawn` is 0 it comes from a law instead. A
    score from weights alone has no error. `through` names the lower head that it was read through,
    for a score that is.
    """

    value: float
    stderr: float
    null: float
    p: float
    drawn: int = 0
    through: str = ""

    def passes(self, threshold: float, alpha: float) -> bool:
        """Whether it reaches the threshold and chance does not explain it."""
        return self.value >= threshold and self.p <= alpha

    @property
    def format_p(self) -> str:
        """p in words, as a bound where no draw came near."""
        return format_p(self.p, self.drawn)

    def __str__(self) -> str:
        error = f" ± {self.stderr:.2f}" if self.stderr else ""
        through = f", through {self.through}" if self.through else ""
        chance = round(self.null, 2) + 0.0  # what rounds to zero has no sign
        return f"{self.value:.2f}{error} (chance {chance:.2f}, {self.format_p}){through}"


def against_null(values: Float[Tensor, "draw head"], null: Float[Tensor, " drawn"]) -> list[Score]:
    """The mean over draws of each head, compared with heads drawn at random."""
    draws = values.shape[0]
    error = values.std(0) / draws**0.5 if draws > 1 else torch.full_like(values[0], torch.nan)
    mean = values.mean(0)
    above = (null[None] >= mean[:, None] - TIE).sum(1)
    # A head that does nothing has no score, and so nothing to compare.
    p = torch.where(mean.isnan(), torch.nan, (1 + above) / (1 + len(null)))
    return [
        Score(
            value=float(mean[head]),
            stderr=float(error[head]),
            null=float(null.mean()),
            p=float(p[head]),
            drawn=len(null),
        )
        for head in range(values.shape[1])
    ]
