"""Losses: −log p of each next token, in nats, per token and per sequence, in bounded memory.

Wherever something is measured on text, each position predicts the next token or its entry of
`targets` (−1: none), and a prediction is scored by its loss, by whether it is wrong, or by a
custom function (`find_metric`, `predicted_batches`).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pathsum.base.errors import InputError
from pathsum.base.estimate import Estimate, ratio
from pathsum.base.options import parse_choice
from pathsum.base.shapes import Logits, Stream, Tokens
from pathsum.model.forward import run_logits
from pathsum.model.sequences import (
    TextOrTokens,
    TokenBatches,
    check_tokens,
    require_causal,
    require_tokens_out,
    require_values,
    token_batches,
)
from pathsum.model.transformer import logits_of_read, soft_cap
from pathsum.model.weights import Weights

if TYPE_CHECKING:
    from pathsum.model.model import Model
    from pathsum.model.trace import Trace

# Logits held at a time, in numbers: 128 MB in float32.
_MAX_LOGITS = 1 << 25
# For smaller pieces: 16 MB, which the allocator reuses from piece to piece.
_MAX_LOGITS_OF_PIECE = 1 << 22
# A block of logits that fits into the processor's cache, but has enough rows for an efficient GEMM.
_BLOCK = 1 << 20
_MIN_ROWS = 128


@dataclass(frozen=True, eq=False)
class SequenceLosses:
    """The loss of each sequence, in nats, summed over its predictions, and their number."""

    total: Float[Tensor, " sequence"]
    count: Float[Tensor, " sequence"]

    def mean(self) -> Estimate:
        """The mean loss over predicted positions."""
        return ratio(self.total, self.count)

    def above(self, other: "SequenceLosses") -> Estimate:
        """This loss minus another on the same sequences, paired."""
        return ratio(self.total - other.total, self.count)

    @staticmethod
    def concat(parts: "list[SequenceLosses]") -> "SequenceLosses":
        """The losses of several batches, one after another."""
        return SequenceLosses(
            torch.cat([part.total for part in parts]), torch.cat([part.count for part in parts])
        )


PredictionMetric: TypeAlias = Callable[
    [Float[Tensor, "n vocab"], Int[Tensor, " n"]], Float[Tensor, " n"]
]
"""One number per prediction from logits and targets, the lower the better."""


def target_losses(
    logits: Float[Tensor, "n vocab"], targets: Int[Tensor, " n"]
) -> Float[Tensor, " n"]:
    """−log p of each target, in nats: the loss behind all other functions of this module."""
    return torch.nn.functional.cross_entropy(logits, targets, reduction="none")


def target_errors(
    logits: Float[Tensor, "n vocab"], targets: Int[Tensor, " n"]
) -> Float[Tensor, " n"]:
    """1 where the most probable token is not the target, else 0."""
    return (logits.argmax(-1) != targets).to(logits)


def token_losses(logits: Logits, tokens: Tokens, first: int = 0) -> Float[Tensor, "batch next"]:
    """The loss of every token after position `first`."""
    batch, length = tokens.shape
    predicted = logits[:, first:-1].reshape(-1, logits.shape[-1])
    losses = target_losses(predicted, tokens[:, first + 1 :].reshape(-1))
    return losses.reshape(batch, length - 1 - first)


def sequence_losses(
    logits: Logits,
    tokens: Tokens,
    first: int = 0,
    lengths: Int[Tensor, " batch"] | None = None,
) -> SequenceLosses:
    """The losses of the tokens after position `first`, summed per sequence.

    `lengths` leaves out the padding of sequences of different length.
    """
    losses = token_losses(logits, tokens, first).double()
    if lengths is None:
        total = losses.sum(-1)
        return SequenceLosses(total, torch.full_like(total, losses.shape[1]))
    positions = torch.arange(first + 1, tokens.shape[1], device=tokens.device)
    is_token = positions < lengths[:, None]
    total = torch.where(is_token, losses, 0.0).sum(-1)
    return SequenceLosses(total, is_token.sum(-1).to(total))


def run_losses(model: "Model", tokens: Tokens) -> Float[Tensor, "batch next"]:
    """The loss of every token after the first, in a run of the model, in bounded memory."""
    require_tokens_out(model, "the loss of the next token")
    require_causal(model, "the loss of the next token")
    tokens = tokens.to(model.weights.device)
    parts = split_by_memory(model, tokens, at_a_time=_MAX_LOGITS_OF_PIECE)
    return torch.cat([_piece_losses(model, part) for part in parts]).cpu()


def _piece_losses(model: "Model", tokens: Tokens) -> Float[Tensor, "batch next"]:
    # The last position has no target; without its logits the rest need not be copied.
    logits = run_logits(model.weights, check_tokens(model.config, tokens), positions=slice(-1))
    return target_losses(logits.flatten(0, 1), tokens[:, 1:].flatten()).view(len(tokens), -1)


def trace_losses(trace: "Trace") -> Float[Tensor, "batch next"]:
    """The loss of every token after the first, in a run that need not hold all logits."""
    targets = next_tokens(trace.tokens)
    parts = [
        target_losses(logits.flatten(0, 1), targets[:, at].clamp_min(0).flatten()).reshape(
            logits.shape[:-1]
        )
        for at, logits in trace.logits_in_parts()
    ]
    return torch.cat(parts, 1)[:, :-1]


def next_tokens(tokens: Tokens) -> Tokens:
    """The target of each position: the next token, and none (−1) at the last."""
    return torch.nn.functional.pad(tokens[:, 1:], (0, 1), value=-1)


def read_losses(
    weights: Weights,
    read: Stream,
    targets: Tokens,
    first: int = 0,
    metric: PredictionMetric = target_losses,
) -> SequenceLosses:
    """Losses per sequence from the unembedding's input, without holding all logits.

    `targets` is the correct output per position, or −1 for positions without a target.
    """
    has_target = targets[:, first:] >= 0
    rows = read[:, first:][has_target]
    row_targets = targets[:, first:][has_target]
    size = max(_MIN_ROWS, _BLOCK // weights.config.d_vocab_out)
    losses: list[Tensor] = []
    for block, block_targets in zip(rows.split(size), row_targets.split(size), strict=True):
        logits = soft_cap(logits_of_read(weights, block), weights.config.logit_cap)
        losses.append(metric(logits, block_targets))
    return sums_per_sequence(has_target, torch.cat(losses))


def split_by_memory(
    model: "Model", tokens: Tokens, streams: int = 1, at_a_time: int = _MAX_LOGITS
) -> Iterator[Tokens]:
    """A batch in pieces whose logits, for this many variants at once, fit into bounded memory."""
    numbers = tokens.shape[1] * model.config.d_vocab_out * streams
    yield from tokens.split(max(1, at_a_time // numbers))


def sums_per_sequence(
    has_target: Bool[Tensor, "sequence pos"], scores: Float[Tensor, " n"]
) -> SequenceLosses:
    """Sums of scores per sequence, over the positions that have a target."""
    table = torch.zeros(has_target.shape, dtype=torch.float64, device=scores.device)
    table[has_target] = scores.double()
    return SequenceLosses(table.sum(-1), has_target.sum(-1).to(table))


if TYPE_CHECKING:
    MetricName: TypeAlias = Literal["loss", "error"] | PredictionMetric
else:
    # `find_metric` names the choices.
    MetricName = str | Callable[..., Tensor]
"""The loss in nats, the share of predictions that are not the target ("error"), or a function of
logits [n, vocab] and targets [n] that gives one number each, the lower the better."""

NATS, OWN_METRIC = "nats", "metric"


@dataclass(frozen=True, eq=False)
class CheckedMetric:
    """A metric, checked, and its unit."""

    metric: PredictionMetric
    unit: str

    def of(self, logits: Logits, targets: Tokens, first: int = 0) -> SequenceLosses:
        """The numbers of one run from position `first` on, summed per sequence."""
        targets = targets[:, first:]
        has_target = targets >= 0
        if bool(has_target[:, :-1].all()) and not bool(has_target[:, -1].any()):
            # The usual case: slices are copied faster than a choice of positions.
            rows, row_targets = logits[:, first:-1].flatten(0, 1), targets[:, :-1].flatten()
        else:
            rows, row_targets = logits[:, first:][has_target], targets[has_target]
        return sums_per_sequence(has_target, self.metric(rows, row_targets))


def find_metric(metric: MetricName) -> CheckedMetric:
    """A metric by name, or a custom one whose results are checked."""
    if not callable(metric):
        metrics = {"loss": (target_losses, NATS), "error": (target_errors, "share of errors")}
        return CheckedMetric(*metrics[parse_choice(tuple(metrics), metric, "metric")])

    def checked(logits: Float[Tensor, "n vocab"], targets: Int[Tensor, " n"]) -> Tensor:
        return checked_scores(metric(logits, targets), len(targets), "predictions")

    return CheckedMetric(checked, OWN_METRIC)


def checked_scores(
    scores: object, count: int, of: Literal["predictions", "sequences"]
) -> Float[Tensor, " n"]:
    """The result of a metric; raises InputError unless it is one finite number for each."""
    if not isinstance(scores, Tensor) or not scores.is_floating_point():
        kind = scores.dtype if isinstance(scores, Tensor) else type(scores).__name__
        raise InputError(
            f"the metric returned {kind}; return a floating-point tensor with one number for each "
            f"of the {count} {of}, shape [{count}]"
        )
    if scores.shape != (count,):
        raise InputError(
            f"the metric returned shape {list(scores.shape)}; return one number for each of the "
            f"{count} {of}, shape [{count}] (no mean over {of})"
        )
    if not bool(torch.isfinite(scores).all()):
        raise InputError(
            "the metric returned NaN or infinite numbers; look for log(0), division by 0 or a "
            "softmax over masked logits in it"
        )
    return scores


def predicted_batches(
    model: "Model",
    text: TextOrTokens,
    targets: Int[Tensor, "n pos"] | None = None,
    first: int = 0,
) -> tuple[TokenBatches, TokenBatches]:
    """Batches to predict on, and the correct output at each of their positions."""
    batches = token_batches(model, text, first, targets_given=targets is not None)
    if targets is None:
        return batches, [next_tokens(tokens) for tokens in batches]
    require_values(targets, "targets")
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
