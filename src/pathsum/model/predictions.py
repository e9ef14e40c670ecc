"""What positions should predict and how a prediction is scored: for all that measures on text.

A position predicts the next token, or its entry of `targets`, where −1 is nothing. A prediction is
scored by its loss, by whether it is wrong, or by a function of one's own.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.errors import InputError
from pathsum.model.losses import (
    PredictionMetric,
    SequenceLosses,
    next_tokens,
    target_errors,
    target_losses,
)
from pathsum.model.sequences import TextOrTokens, TokenBatches, token_batches
from pathsum.result.options import parse_choice
from pathsum.shapes import Logits, Tokens

if TYPE_CHECKING:
    from pathsum.model.model import Model

if TYPE_CHECKING:
    MetricName: TypeAlias = Literal["loss", "error"] | PredictionMetric
else:
    # Anything may be passed at run time; `find_metric` says what is not a metric.
    MetricName = Any
"""The loss in nats, the share of predictions that are not the target ("error"), or a function of
logits [n, vocab] and targets [n] that gives one number each, the lower the better."""


NATS, OWN_METRIC = "nats", "metric"


@dataclass(frozen=True, eq=False)
class Scored:
    """A metric, checked, and what it counts in words."""

    metric: PredictionMetric
    unit: str

    def of(self, logits: Logits, targets: Tokens, first: int = 0) -> SequenceLosses:
        """The numbers of one run from position `first` on, summed per sequence."""
        counted = targets[:, first:] >= 0
        each = torch.zeros(counted.shape, dtype=torch.float64, device=logits.device)
        each[counted] = self.metric(
            logits[:, first:][counted], targets[:, first:][counted]
        ).double()
        return SequenceLosses(each.sum(-1), counted.sum(-1).to(each))


def find_metric(metric: MetricName) -> Scored:
    """The metric of a name, or one's own, whose results are checked."""
    if not callable(metric):
        known = {"loss": (target_losses, NATS), "error": (target_errors, "share of errors")}
        return Scored(*known[parse_choice(tuple(known), metric, "metric")])

    def checked(logits: Float[Tensor, "n vocab"], targets: Int[Tensor, " n"]) -> Tensor:
        return _check_scores(metric(logits, targets), len(targets))

    return Scored(checked, OWN_METRIC)


def _check_scores(found: object, predictions: int) -> Float[Tensor, " n"]:
    if not isinstance(found, Tensor) or not found.is_floating_point():
        kind = found.dtype if isinstance(found, Tensor) else type(found).__name__
        raise InputError(
            f"the metric returned {kind}; return a floating-point tensor with one number for each "
            f"of the {predictions} predictions, shape [{predictions}]"
        )
    if found.shape != (predictions,):
        raise InputError(
            f"the metric returned shape {list(found.shape)}; return one number for each of the "
            f"{predictions} predictions, shape [{predictions}] (no mean over predictions)"
        )
    if not bool(torch.isfinite(found).all()):
        raise InputError(
            "the metric returned NaN or infinite numbers; look for log(0), division by 0 or a "
            "softmax over masked logits in it"
        )
    return found


def predicted_batches(
    model: "Model",
    given: TextOrTokens,
    targets: Int[Tensor, "n pos"] | None = None,
    first: int = 0,
) -> tuple[TokenBatches, TokenBatches]:
    """Batches to predict on, and what each of their positions should predict."""
    batches = token_batches(model, given, first, targets_given=targets is not None)
    if targets is None:
        return batches, [next_tokens(tokens) for tokens in batches]
    if len(batches) != 1 or targets.shape != batches[0].shape:
        shapes = ", ".join(str(list(tokens.shape)) for tokens in batches)
        raise InputError(
            f"targets have shape {list(targets.shape)} and tokens {shapes}; give one target per "
            "token, −1 where a position need not predict anything"
        )
    outputs = model.config.d_vocab_out
    if int(targets.max()) >= outputs or int(targets.min()) < -1:
        raise InputError(
            f"targets go from {int(targets.min())} to {int(targets.max())}, but the model has "
            f"{outputs} outputs: use −1 to {outputs - 1}"
        )
    if bool((targets[:, first:] < 0).all()):
        raise InputError(f"no position from {first} on has a target; give at least one")
    return batches, [targets.to(batches[0].device).long()]
