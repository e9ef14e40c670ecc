"""Score: a measured property of one head, and its comparison with random heads."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.circuits.copying import TIE
from pathsum.names import HeadId
from pathsum.result.estimate import Estimate


@dataclass(frozen=True)
class Score(Estimate):
    """An `Estimate` about one head: its value, its error over probe sequences, and chance.

    `null` is the mean over random heads and `p` the share of them that score at least as much,
    counted as (1 + number at or above) / (1 + draws). A score from weights alone has no error. A
    head that does nothing has the value NaN and no p. `through` is the lower head that a score was
    read through, for scores that are.
    """

    through: HeadId | None = None

    def passes(self, threshold: float, alpha: float) -> bool:
        """Whether the score reaches the threshold and chance does not explain it."""
        return self.value >= threshold and self.p is not None and self.p <= alpha

    def __str__(self) -> str:
        return self.format(".2f") + (f", through {self.through}" if self.through else "")


def against_null(
    values: Float[Tensor, "sequence head"],
    null: Float[Tensor, "drawn head"],
    compared: Float[Tensor, " head"] | None = None,
    through: HeadId | None = None,
) -> list[Score]:
    """The mean over sequences of each head, compared with random heads of its own.

    One row of values, as scores from weights have, gives no error. `compared` is each head's score
    on what its random heads were measured on, where that is not all of the sequences. Random heads
    that do nothing (NaN) are left out of the null.
    """
    sequences = len(values)
    mean = values.mean(0)
    stderr = values.std(0) / sequences**0.5 if sequences > 1 else torch.full_like(mean, torch.nan)
    at_least = (mean if compared is None else compared) - TIE
    there = ~null.isnan()
    above = (null >= at_least).sum(0)
    counts = there.sum(0)
    means = null.nan_to_num(0.0).double().sum(0) / counts.clamp_min(1)
    scores: list[Score] = []
    for head, value in enumerate(mean.tolist()):
        sampled = Estimate.around(value, float(stderr[head]), sequences)
        draws = int(counts[head])
        known = draws > 0 and value == value
        scores.append(
            Score(
                value=value,
                stderr=sampled.stderr,
                low=sampled.low,
                high=sampled.high,
                null=float(means[head]) if known else None,
                p=(1 + int(above[head])) / (1 + draws) if known else None,
                draws=draws if known else None,
                through=through,
            )
        )
    return scores
