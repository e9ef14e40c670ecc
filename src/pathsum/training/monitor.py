"""What a run is watched for: does a head attend to the token before, does one do induction."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.model import Model
from pathsum.names import HeadId
from pathsum.text import Corpus
from pathsum.text.probes import RepeatedTokens, random_repeats

SEEN_OFTEN = 100


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
            often_seen(corpus.token_counts, corpus.start_token, 2 * length),
            length=length,
            repeats=2,
            draws=8,
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
            held_out_loss=float(sequence_losses(model, self.held_out).mean()),
            previous_token=previous[0],
            previous_token_head=previous[1],
            induction=stripe[0],
            induction_head=stripe[1],
            repeat_first=float(losses[:, first : first + length - 1].mean()),
            repeat_second=float(losses[:, first + length :].mean()),
        )


def often_seen(counts: Int[Tensor, " vocab"], start: int, least: int) -> Int[Tensor, " id"]:
    """Ids seen over 100 times; at least the `least` commonest ones if the text is short."""
    counts = counts.clone()
    counts[start] = 0
    enough = int((counts > SEEN_OFTEN).sum())
    return counts.argsort(descending=True)[: max(enough, min(least, len(counts) - 1))].sort().values


def sequence_losses(
    model: Model, tokens: Int[Tensor, "batch pos"], together: int = 8
) -> Float[Tensor, " batch"]:
    """The mean loss of each sequence; their spread gives the interval of the mean."""
    rows = [
        token_losses(model(part), part.to(model.weights.device)).mean(1)
        for part in tokens.split(together)
    ]
    return torch.cat(rows).cpu()


def token_losses(
    logits: Float[Tensor, "batch pos vocab"], tokens: Int[Tensor, "batch pos"]
) -> Float[Tensor, "batch next"]:
    """The loss of predicting each token after the first."""
    return F.cross_entropy(logits[:, :-1].transpose(1, 2), tokens[:, 1:], reduction="none")


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
