"""The probe of `atlas` and `induction`, and the scores of attention patterns on it.

The probe is repeated random tokens, or text. A[i, j] is the attention of destination i to source j.
A threshold of 0.5 means half of the attention, so that no other single position can have as much.
Thresholds of 0.3 are far above the scores of random heads, while trained heads reach 0.4 to 1.

`in_context_learning` is the score of the 2022 paper on any text: the loss late in the text minus
the loss early in it.
"""

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from pathsum.base import Progress, silent
from pathsum.base.errors import InputError
from pathsum.base.estimate import Estimate, mean_estimate
from pathsum.base.options import checked
from pathsum.base.shapes import Tokens
from pathsum.heads.score import DataScore, LayerView, score_info
from pathsum.model import Keep, Model, Trace
from pathsum.model.losses import find_metric, next_tokens, run_losses, sequence_losses
from pathsum.model.sequences import TextOrTokens, require_text, token_batches
from pathsum.text.token_pool import RepeatedTokens, random_repeats

LENGTH, REPEATS, SEQUENCES = 25, 4, 10
EARLY, LATE = 50, 500
TEXT_SEQUENCES = 64
"""The most sequences of a text that are measured."""
HALF = 0.5
WINDOW = 5


def attention_to(
    pattern: Float[Tensor, "sequence head dest src"], targets: Bool[Tensor, "sequence dest src"]
) -> Float[Tensor, "sequence head dest"]:
    """The sum of each row over the target sources, NaN at destinations without a target.

    Only these entries are read: they are few, and the patterns of random heads are large.
    """
    result = pattern.new_zeros(pattern.shape[:-1])
    for sums, rows, sources in zip(result, pattern, targets.to(pattern.device), strict=True):
        dest, src = sources.nonzero(as_tuple=True)
        sums.index_add_(-1, dest, rows[:, dest, src])
    return result.masked_fill_(~targets.any(-1).to(result.device)[:, None], torch.nan)


def _from_second(
    values: Float[Tensor, "sequence head row"],
) -> Float[Tensor, "sequence head dest"]:
    """Values of the destinations after the first, with NaN for the first."""
    return F.pad(values, (1, 0), value=torch.nan)


PREVIOUS_TOKEN = DataScore(
    score_info("previous_token"),
    lambda view: _from_second(view.pattern.diagonal(-1, dim1=-2, dim2=-1)),
)
CURRENT_TOKEN = DataScore(
    score_info("current_token"),
    lambda view: _from_second(view.pattern.diagonal(dim1=-2, dim2=-1)[..., 1:]),
)
FIRST_TOKEN = DataScore(
    score_info("first_token"), lambda view: _from_second(view.pattern[:, :, 1:, 0])
)


def _duplicate_token(view: LayerView) -> Float[Tensor, "sequence head dest"]:
    tokens = view.probe.tokens
    return attention_to(view.pattern, (tokens[:, :, None] == tokens[:, None, :]).tril(-1))


DUPLICATE_TOKEN = DataScore(
    score_info("duplicate_token"), _duplicate_token, needs="an earlier copy of its token"
)


def stripe(
    pattern: Float[Tensor, "sequence head dest src"], probe: RepeatedTokens
) -> Float[Tensor, "sequence head"]:
    """Mean attention from the second copy to L − 1 positions back, L the length of a copy.

    On text (a probe of one copy) it is prefix matching, NaN for a sequence without repeats.
    """
    if probe.repeats == 1:
        return attention_to(pattern, induction_cells(probe)).nanmean(-1)
    return _in_second_copy(pattern, probe).mean(-1)


def induction_cells(probe: RepeatedTokens) -> Bool[Tensor, "sequence dest src"]:
    """The sources to which induction attends from each destination.

    In the second copy of a probe these are L − 1 positions back; on text, all positions after
    earlier copies of the destination's token.
    """
    tokens = probe.tokens
    if probe.repeats == 1:
        return F.pad((tokens[:, :, None] == tokens[:, None, :-1]).tril(-1), (1, 0))
    cells = torch.zeros(*tokens.shape, tokens.shape[1], dtype=torch.bool)
    rows = torch.arange(probe.first + probe.length, probe.first + 2 * probe.length)
    cells[:, rows, rows - probe.length + 1] = True
    return cells


def _in_second_copy(
    pattern: Float[Tensor, "sequence head dest src"], probe: RepeatedTokens
) -> Float[Tensor, "sequence head length"]:
    start = probe.first + probe.length
    second = pattern[:, :, start : start + probe.length, probe.first + 1 :]
    return second.diagonal(dim1=-2, dim2=-1)


def _stripe_by_position(view: LayerView) -> Float[Tensor, "sequence head dest"]:
    start = view.probe.first + view.probe.length
    values = torch.full_like(view.pattern[..., 0], torch.nan)
    values[..., start : start + view.probe.length] = _in_second_copy(view.pattern, view.probe)
    return values


INDUCTION_STRIPE = DataScore(score_info("induction"), _stripe_by_position)


def _prefix_matching(view: LayerView) -> Float[Tensor, "sequence head dest"]:
    """For each query with an earlier copy, the sum of attention over all induction targets.

    The sum and not the mean over entries: with n repeats a query has up to n − 1 targets, so on
    four repeats a mean over entries could not exceed 0.5, even for an ideal head.
    """
    return attention_to(view.pattern, induction_cells(replace(view.probe, repeats=1)))


PREFIX_MATCHING = DataScore(
    score_info("prefix_matching"), _prefix_matching, needs="an earlier copy of its token"
)


def _positional(view: LayerView) -> Float[Tensor, "sequence head 1"]:
    """The share of the pattern's variance around its row means that the offset explains.

    Only the first copy is used, because in a repeat, matching resembles an offset. The first
    column, to which heads attend by default, is omitted. Uniform attention scores 0.
    """
    end = view.probe.first + view.probe.length
    pattern = view.pattern[:, :, 1:end, 1:end]
    size = pattern.shape[-1]
    square = pattern.square().sum((-1, -2))
    at_offset = offset_sums(pattern)
    counts = torch.arange(size, 0, -1).to(pattern)
    profile = at_offset.mean(0) / counts
    # Σ(A − a)², with a the mean of each offset or row, is ΣA² − 2Σ a·A + Σ a².
    residual = square - 2 * (at_offset * profile).sum(-1) + (profile.square() * counts).sum(-1)
    total = square - (pattern.sum(-1).square() / counts.flip(0)).sum(-1)
    # A pattern that hardly differs from uniform attention has no variance to explain.
    varies = total > 1e-2 * square
    # A profile that fits worse than the row's mean scores 0.
    share = torch.where(varies, 1 - residual / total.clamp_min(1e-30), 0.0)
    return share.clamp_min(0.0)[..., None]


def offset_sums(pattern: Float[Tensor, "*some n n"]) -> Float[Tensor, "*some n"]:
    """Sums of causal patterns over pairs of each offset, from 0 on.

    >>> offset_sums(torch.tensor([[1.0, 0.0], [0.25, 0.75]]))
    tensor([1.7500, 0.2500])
    """
    size = pattern.shape[-1]
    # Rows one longer than the matrix is wide shift each row of the flipped pattern by one, so that
    # an offset is a column, the last for offset 0; entries above the diagonal are 0.
    rows = F.pad(pattern.flip(-1), (0, 1)).flatten(-2).unflatten(-1, (size + 1, size))
    return rows.sum(-2).roll(1, -1)


POSITIONAL = DataScore(score_info("positional"), _positional)


def _local_window(view: LayerView) -> Float[Tensor, "sequence head dest"]:
    """Attention to the five preceding positions, from positions with more than five."""
    attended = view.pattern.new_zeros(view.pattern.shape[:-1])
    for back in range(1, min(WINDOW + 1, attended.shape[-1])):
        attended[..., back:] += view.pattern.diagonal(-back, dim1=-2, dim2=-1)
    attended[..., : WINDOW + 1] = torch.nan
    return attended


LOCAL_WINDOW = DataScore(
    score_info("local_window"), _local_window, needs=f"more than {WINDOW} positions before it"
)

PATTERN_SCORES = (
    *(PREVIOUS_TOKEN, CURRENT_TOKEN, FIRST_TOKEN, DUPLICATE_TOKEN),
    *(INDUCTION_STRIPE, PREFIX_MATCHING, POSITIONAL, LOCAL_WINDOW),
)


def repeats_probe(model: Model, sequences: int = SEQUENCES, seed: int = 0) -> RepeatedTokens:
    """25 random tokens, 4 times, after the start token; shorter where the context is shorter."""
    if why := why_no_repeats(model):
        raise InputError(f"{why}; use a longer context or a larger vocabulary, or give text=")
    length, repeats = _repeats(model)
    ids = model.token_pool().ids()
    return random_repeats(ids, length, repeats, sequences, seed, model.config.start_token)


def why_no_repeats(model: Model) -> str:
    """The reason why repeated tokens do not fit into a model's context; empty if they do."""
    if _repeats(model)[0] >= 2:
        return ""
    return (
        f"repeats of at least 2 tokens do not fit: the context has {model.config.n_ctx} positions "
        f"and {len(model.token_pool().ids())} tokens may be drawn"
    )


def _repeats(model: Model) -> tuple[int, int]:
    """The length of a copy and the number of copies that fit."""
    available = model.config.n_ctx - (model.config.start_token is not None)
    repeats = REPEATS if available >= 3 * REPEATS else 2
    return min(LENGTH, available // repeats, len(model.token_pool().ids())), repeats


def random_tokens(model: Model, sequences: int, seed: int = 0) -> RepeatedTokens:
    """Random tokens without repeats, of the whole context or of `LENGTH`."""
    length = min(LENGTH, model.config.n_ctx)
    tokens = model.token_pool().draw(sequences, length, torch.Generator().manual_seed(seed))
    return RepeatedTokens(tokens, length, repeats=1, first=0)


def text_probe(model: Model, text: TextOrTokens) -> RepeatedTokens:
    """Text as a probe of one copy, with natural repeats of its tokens."""
    batches = token_batches(model, text)
    lengths = sorted({batch.shape[1] for batch in batches})
    if len(lengths) > 1:
        raise InputError(
            f"the sequences have {lengths[0]} to {lengths[-1]} tokens; give sequences of one length"
        )
    tokens = torch.cat(batches)[:TEXT_SEQUENCES].cpu()
    start = int(model.config.start_token is not None)
    probe = RepeatedTokens(tokens, tokens.shape[1] - start, repeats=1, first=start)
    if not bool(induction_cells(probe)[:, :-1].any()):
        raise InputError(
            "no token of the text occurs twice before its end, so induction cannot be seen in it; "
            "give text with repeats"
        )
    return probe


def attention_trace(
    model: Model, tokens: Tokens, progress: Progress = silent, what: str = "tokens"
) -> Trace:
    """A run with patterns and streams but without logits, to save memory."""

    def running(done: int, total: int, _: str) -> None:
        progress(done, total, f"running the model on {what}")

    return model.trace(tokens, keep=Keep(patterns="all", streams="all"), progress=running)


def second_copy(probe: RepeatedTokens) -> int:
    """The start of the second copy: the first position whose next token is predictable."""
    return probe.first + probe.length


def two_copies(probe: RepeatedTokens) -> Tokens:
    """The probe up to the end of its second copy."""
    return probe.tokens[:, : second_copy(probe) + probe.length]


def predictions_on_repeats(probe: RepeatedTokens) -> tuple[Tokens, dict[str, Any]]:
    """Tokens, and options of `ablate` that select the predictions that induction can make."""
    if probe.repeats > 1:
        return two_copies(probe), {"from_position": second_copy(probe)}
    repeated = induction_cells(probe).any(-1)
    return probe.tokens, {"targets": next_tokens(probe.tokens).masked_fill(~repeated, -1)}


def copy_losses(trace: Trace, probe: RepeatedTokens) -> tuple[Estimate, Estimate]:
    """Mean loss on the first copy, which is unpredictable, and on the second.

    The second copy's first token is omitted, because it is unpredictable too. On text, the results
    are the losses after tokens that occur for the first time, and after all others.
    """
    if probe.repeats == 1:
        repeated, loss = induction_cells(probe).any(-1), find_metric("loss")
        after = next_tokens(probe.tokens)
        new, old = (
            loss.of(trace.logits, after.masked_fill(mask, -1).to(trace.logits.device)).mean()
            for mask in (repeated, ~repeated)
        )
        return new, old
    start = second_copy(probe)
    end = start + probe.length
    first = sequence_losses(trace.logits[:, :start], trace.tokens[:, :start])
    second = sequence_losses(trace.logits[:, :end], trace.tokens[:, :end], start)
    return first.mean(), second.mean()


@torch.no_grad()
@checked
def in_context_learning(
    model: Model,
    batches: TextOrTokens | None = None,
    *,
    early: int | None = None,
    late: int | None = None,
    window: int = 1,
) -> Estimate:
    """Loss at a late token minus loss at an early token: negative where context helps.

    Args:
        model: The model.
        batches: A text, token ids or a corpus, by default the model's held-out text.
        early: The index of the early token, 50 by default.
        late: The index of the late token, 500 by default. Shorter sequences are compared at their
            last token and at a tenth of its index; such scores are not comparable with the paper's.
        window: The number of tokens, ending at `early` or `late`, that each loss is a mean over.
            More than 1 narrows the interval.

    Returns:
        The mean over sequences, with its interval. The models of the 2022 paper score about −0.15
        nats before induction heads form and about −0.4 after, regardless of their size.

    Example:
        >>> from pathsum.model import construct
        >>> model = construct.induction()
        >>> in_context_learning(model, "a b c d e " * 12, early=3, late=40).value < -1
        True
    """
    tokens_of = token_batches(model, require_text(model, batches))
    shortest = min(tokens.shape[1] for tokens in tokens_of)
    if late is None and early is None and shortest < 3:
        raise InputError(
            f"a sequence of {shortest} tokens has no early and late token to compare; use "
            "sequences of at least 3 tokens"
        )
    late = min(LATE, shortest - 1) if late is None else late
    early = max(1, min(EARLY, late // 10)) if early is None else early
    check_positions(early, late, window)
    losses: list[Tensor] = []
    for tokens in tokens_of:
        length = tokens.shape[1]
        if length <= late:
            raise InputError(
                f"sequences of {length} tokens have no token {late}; use longer sequences, or a "
                f"late of at most {length - 1}"
            )
        losses.append(run_losses(model, tokens[:, : late + 1]))
    return late_minus_early(torch.cat(losses), early=early, late=late, window=window)


def late_minus_early(
    losses: Float[Tensor, "sequence next"], *, early: int, late: int, window: int = 1
) -> Estimate:
    """The score from losses; column i is the loss of token i + 1."""
    check_positions(early, late, window)
    at_early, at_late = (
        losses[:, position - window : position].double().mean(1) for position in (early, late)
    )
    return mean_estimate(at_late - at_early)


def check_positions(early: int, late: int, window: int) -> None:
    """Raise an error if early is not before late, or a window begins before the first token."""
    if not 0 < early < late:
        raise InputError(f"early={early} and late={late}, but 0 < early < late is required")
    if not 1 <= window <= early:
        raise InputError(
            f"a window of {window} tokens cannot end at token {early}; use 1 to {early}"
        )
