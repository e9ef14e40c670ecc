"""What a run is watched for: does a head attend to the token before, does one do induction."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.model import Model
from pathsum.model.losses import run_losses, token_losses
from pathsum.names import HeadId
from pathsum.text import Corpus
from pathsum.text.probes import RepeatedTokens, random_repeats


@dataclass(frozen=True)
class ProbeResult:
    """One look at a model: the best head of each kind, and the losses that show what they do.

    `previous_token` and `induction` are mean attention, on random tokens shown twice, to the
    position before and to what followed the same token the first time (the induction stripe).
    """

    held_out_loss: float
    previous_token: float
    previous_token_head: str
    induction: float
    induction_head: str
    repeat_first: float
    repeat_second: float


class Probe:
    """A few random sequences shown twice, and a few held-out ones, the same for a whole run.

    Random tokens come from those that training sees over 100 times: what was barely trained says
    nothing about heads.
    """

    def __init__(self, corpus: Corpus, n_ctx: int, sequences: int) -> None:
        length = max(1, min(64, (n_ctx - 1) // 2))
        self.repeats: RepeatedTokens = random_repeats(
            corpus.token_pool.ids(at_least=2 * length),
            length=length,
            repeats=2,
            sequences=8,
            start_token=corpus.start_token,
        )
        self.held_out = corpus.held_out_batch(sequences, n_ctx)

    def look(self, model: Model) -> ProbeResult:
        """Look at a model."""
        trace = model.trace(self.repeats.tokens.to(model.weights.device))
        previous = _best([_previous(pattern) for pattern in trace.patterns])
        stripe = _best([_stripe(pattern, self.repeats) for pattern in trace.patterns])
        losses = token_losses(trace.logits, trace.tokens)
        first, length = self.repeats.first, self.repeats.length
        return ProbeResult(
            held_out_loss=float(run_losses(model, self.held_out).mean()),
            previous_token=previous[0],
            previous_token_head=previous[1],
            induction=stripe[0],
            induction_head=stripe[1],
            repeat_first=float(losses[:, first : first + length - 1].mean()),
            repeat_second=float(losses[:, first + length :].mean()),
        )


def _previous(pattern: Float[Tensor, "batch head dest src"]) -> Float[Tensor, " head"]:
    return pattern.diagonal(-1, -2, -1)[..., 1:].mean((0, 2))


def _stripe(
    pattern: Float[Tensor, "batch head dest src"], probe: RepeatedTokens
) -> Float[Tensor, " head"]:
    at = (probe.sources >= 0).nonzero().flatten().to(pattern.device)
    return pattern[:, :, at, probe.sources.to(pattern.device)[at]].mean((0, 2))


def _best(scores: list[Float[Tensor, " head"]]) -> tuple[float, str]:
    if not scores:
        return float("nan"), ""
    table = torch.stack(scores)
    layer, head = divmod(int(table.argmax()), table.shape[1])
    return float(table.max()), str(HeadId(layer, head))
