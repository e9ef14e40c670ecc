"""References: the replacement for a removed output, and the text over which means are taken.

A mean output is the mean over positions from 1 on. The first position is omitted because many
models write one huge vector there, whatever the text (an attention sink), which would dominate the
mean at all other positions.
"""

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.base.errors import InputError, TokenError
from pathsum.base.options import parse_choice
from pathsum.base.site import Site
from pathsum.model.edit import Writes
from pathsum.model.losses import split_by_memory
from pathsum.model.sequences import TextOrTokens, TokenBatches, token_batches
from pathsum.model.sites import site_value
from pathsum.text.token_pool import NEUTRAL_TEXT

if TYPE_CHECKING:
    from pathsum.model.model import Model
    from pathsum.model.trace import Trace

SEQUENCES, LENGTH = 64, 128
"""The longest text that means are taken over if none is given."""


class Reference(enum.StrEnum):
    """The replacement for the output of a head, for an edge, or for everything outside a circuit.

    `ZERO`      zero
    `MEAN`      its mean over positions ≥ 1 of a text (see `reference_text`): one vector
    `OTHER`     its value in the run to which a circuit's edges were cut (`other`, `corrupted`)
    `RESAMPLE`  its value on another sequence of the batch, position by position
    `FIRST`     a head's output when it attends only to the first token, a common resting position
    """

    ZERO = "zero"
    MEAN = "mean"
    OTHER = "other"
    RESAMPLE = "resample"
    FIRST = "first_token"


AblationReference: TypeAlias = Literal[
    Reference.ZERO, Reference.MEAN, Reference.RESAMPLE, Reference.FIRST
]
CircuitReference: TypeAlias = Literal[Reference.ZERO, Reference.MEAN, Reference.OTHER]


def parse_ablation(value: Reference | str) -> AblationReference:
    """The replacement for an ablated head's output."""
    return parse_choice(get_args(AblationReference), value, "reference")


def parse_circuit_reference(value: Reference | str) -> CircuitReference:
    """The value carried by edges outside a circuit."""
    return parse_choice(get_args(CircuitReference), value, "reference")


@dataclass(frozen=True, eq=False)
class ReferenceText:
    """The text of a mean, and its name."""

    batches: TokenBatches
    name: str

    @property
    def tokens(self) -> str:
        """The number of its tokens, and its name."""
        return f"{sum(batch[:, 1:].numel() for batch in self.batches):,} tokens {self.name}"

    def __str__(self) -> str:
        return f"mean over {self.tokens}"


def reference_text(
    model: "Model", text: TextOrTokens | None = None, fallback: TokenBatches | None = None
) -> ReferenceText:
    """The text that means are taken over, unless one is given.

    It is the model's held-out text; for a model without one, a short neutral text if the tokenizer
    reads English; otherwise the tokens that are measured (`fallback`), or random tokens.
    """
    length = min(LENGTH, model.config.n_ctx)
    if text is not None:
        # Nothing is predicted on a reference.
        batches = token_batches(model, text, targets_given=True)
        reference = ReferenceText(batches, "of the given text")
    elif model.held_out is not None:
        reference = ReferenceText([model.held_out[:SEQUENCES, :length]], "of held-out text")
    elif (neutral := _neutral_tokens(model, length)) is not None:
        reference = ReferenceText([neutral], "of a neutral text")
    elif fallback is not None:
        reference = ReferenceText(fallback, "of the text itself")
    else:
        tokens = model.token_pool().draw(SEQUENCES, length, torch.Generator().manual_seed(0))
        if model.config.start_token is not None:
            tokens[:, 0] = model.config.start_token
        reference = ReferenceText([tokens], "drawn at random")
    long = [batch.to(model.weights.device) for batch in reference.batches if batch.shape[1] > 1]
    if not long:
        raise InputError(
            "a mean is taken over positions from 1 on, but no sequence has more than one token; "
            "give a longer text, or use 'zero'"
        )
    return ReferenceText(long, reference.name)


def _neutral_tokens(model: "Model", length: int) -> Tensor | None:
    """Windows of the neutral text; None if the tokenizer does not read it."""
    if model.tokenizer is None or length < 2:
        return None
    try:
        ids = model.tokenizer.encode(NEUTRAL_TEXT)
    except TokenError:
        return None
    if model.tokenizer.decode(ids).strip() != NEUTRAL_TEXT.strip():
        return None
    start = [] if model.config.start_token is None else [model.config.start_token]
    width = length - len(start)
    rows = [ids[at : at + width] for at in range(0, len(ids) - width + 1, width)]
    return torch.tensor([[*start, *row] for row in rows[:SEQUENCES]])


def mean_values(
    model: "Model", batches: TokenBatches, sites: Iterable[Site]
) -> dict[Site, Float[Tensor, " n"]]:
    """The mean of runs at each site (`site_value`), over positions ≥ 1 of all sequences."""
    sites = list(sites)
    means = _means(model, batches, lambda trace: (site_value(trace, site) for site in sites))
    return dict(zip(sites, means, strict=True))


def mean_writes(model: "Model", batches: TokenBatches) -> Writes:
    """The mean output of each writer over positions ≥ 1, with batch and position of size 1."""
    means = _means(model, batches, lambda trace: Writes.of(trace).tensors)
    embed, *rest = (mean[None, ..., None, :] for mean in means)
    layers = model.config.n_layers
    return Writes(embed, tuple(rest[:layers]), tuple(rest[layers:]))


def _means(
    model: "Model", batches: TokenBatches, values: "Callable[[Trace], Iterable[Tensor]]"
) -> list[Tensor]:
    """Means of values [batch, …, pos, n] of runs, over sequences and positions ≥ 1."""
    count, sums = 0, list[Tensor]()
    for tokens in (part for batch in batches for part in split_by_memory(model, batch)):
        # The batch is the first axis, positions the last but one.
        trace = model.trace(tokens)
        totals = [value[..., 1:, :].double().sum((0, -2)) for value in values(trace)]
        sums = [a + b for a, b in zip(sums, totals, strict=True)] if sums else totals
        count += tokens[:, 1:].numel()
    return [(total / count).to(model.weights.W_E) for total in sums]
