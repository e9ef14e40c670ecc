"""The metrics of one snapshot: held-out losses, head scores on the probe, K-composition."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.circuits.composition.composition import composition
from pathsum.errors import InputError
from pathsum.heads.in_context_learning import EARLY, LATE, late_minus_early
from pathsum.heads.kinds import INDUCTION_STRIPE, PREFIX_MATCHING, PREVIOUS_TOKEN
from pathsum.heads.kinds.kind import DataScore
from pathsum.heads.layer_view import LayerView, layer_views
from pathsum.heads.probe import copy_losses
from pathsum.model import Model
from pathsum.model.losses import run_losses
from pathsum.result.estimate import Estimate
from pathsum.shapes import Tokens
from pathsum.text.probes import RepeatedTokens

# The in-context-learning score averages over this many tokens at each of its two positions.
WINDOW = 16


@dataclass(frozen=True)
class ComparedTokens:
    """The tokens whose losses the in-context-learning score compares."""

    early: int
    late: int
    window: int

    @classmethod
    def of(cls, length: int) -> "ComparedTokens":
        """The 2022 paper's 50 and 500, or the same ratio in a shorter text.

        >>> ComparedTokens.of(256)
        ComparedTokens(early=25, late=255, window=16)
        """
        if length < 4:
            raise InputError(
                f"sequences of {length} tokens are too short to compare late with early; use at "
                "least 4 tokens"
            )
        late = min(LATE, length - 1)
        early = max(1, min(EARLY, late // 10))
        return cls(early, late, min(WINDOW, early))

    def __str__(self) -> str:
        over = "" if self.window == 1 else f", each a mean over the {self.window} tokens up to it"
        return f"loss at token {self.late} minus loss at token {self.early}{over}"


@dataclass(frozen=True, eq=False)
class SnapshotMetrics:
    """The metrics of one snapshot; `k_excess` and `k_z` are K-composition, rows write."""

    losses: Float[Tensor, "sequence next"]
    in_context: Estimate
    repeat_drop: Estimate
    previous_token: Float[Tensor, "draw head"]
    prefix_matching: Float[Tensor, "draw head"]
    induction: Float[Tensor, "draw head"]
    k_excess: Float[Tensor, "writer reader"]
    k_z: Float[Tensor, "writer reader"]


def measure_snapshot(
    model: Model, tokens: Tokens, probe: RepeatedTokens, compared: ComparedTokens
) -> SnapshotMetrics:
    """Measure a model with the scores of `heads` and the composition of `circuits`."""
    losses = run_losses(model, tokens)
    trace = model.trace(probe.tokens)
    first, second = copy_losses(trace, probe)
    views = list(layer_views(trace, probe))
    none = torch.full((len(model.heads), len(model.heads)), torch.nan)
    composed = composition(model).k if model.config.n_layers > 1 else None
    return SnapshotMetrics(
        losses=losses,
        in_context=late_minus_early(
            losses, early=compared.early, late=compared.late, window=compared.window
        ),
        repeat_drop=Estimate.around(
            first.value - second.value, math.hypot(first.stderr_or_nan, second.stderr_or_nan)
        ),
        previous_token=_every_head(PREVIOUS_TOKEN, views, probe),
        prefix_matching=_every_head(PREFIX_MATCHING, views, probe),
        induction=_every_head(INDUCTION_STRIPE, views, probe),
        k_excess=none if composed is None else composed.excess.cpu(),
        k_z=none if composed is None else composed.z.cpu(),
    )


def _every_head(
    score: DataScore, views: list[LayerView], probe: RepeatedTokens
) -> Float[Tensor, "draw head"]:
    none = torch.zeros(len(probe.tokens), 0)
    return torch.cat([none, *(score.measure(view).cpu().to(none) for view in views)], 1)
