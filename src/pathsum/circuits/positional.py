"""Attention by position alone: a profile over offsets for each head, from weights.

The score of destination i and source j has a part that does not depend on tokens. Where position
vectors exist (in the inputs of W_Q and W_K, or in the stream) it is `posQ[i] · posK[j]`, plus b_Q's
part of the query; on a rotary model it is the average query against the average key, rotated by the
offset. Softmax ignores what is constant along a row, so each row is centered over a window of
offsets, the same for every destination counted: a score that depends on the offset alone then has
sd 0.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.circuits.offset_parts import TokenMoments, offset_parts
from pathsum.circuits.tokens.token import joined
from pathsum.circuits.tokens.token_basis import find_circuit, require_heads, require_score_edges
from pathsum.errors import InputError
from pathsum.model import Head, HeadId, HeadName, Model
from pathsum.model.processes import shared_map
from pathsum.result import Column, Progress, Record, Table, silent, text_column

WINDOW = 64


@dataclass(frozen=True, eq=False)
class OffsetProfile(Record, kind="offset-profile"):
    """One head's scores by offset, destination − source, from 0 to the window's end.

    `score[Δ]` is the mean over destinations of the position part of the score, each destination's
    own mean over the window removed, and `sd[Δ]` its standard deviation over destinations
    (places, or on a rotary model destination tokens).
    `attention[Δ]` is the mean pattern that the position part alone would give, over the whole
    context (None where a scale that it depends on is not known from weights). `content` is the
    standard deviation of the content part of the score over token pairs, and `position` that of
    `score` over offsets: the larger of the two decides what the head attends to.
    """

    head: HeadId
    score: Float[Tensor, " window"]
    sd: Float[Tensor, " window"]
    attention: Float[Tensor, " window"] | None
    position: float
    content: float
    note: str

    @property
    def peak(self) -> int:
        """The offset with the largest score."""
        return int(self.score.argmax())

    @property
    def share(self) -> float:
        """position² / (position² + content²): 1 for a head that attends by position alone."""
        total = self.position**2 + self.content**2
        return self.position**2 / total if total > 0 else float("nan")

    def to_table(self) -> Table:
        """The first offsets, one per row; none where positions do not enter the scores."""
        title = f"{self.head}: scores by offset from position alone"
        if not bool(self.score.any() or self.sd.any()):
            absent = f"positions do not enter this head's scores; content sd {self.content:.3g}"
            return Table((), (), title=title, note=joined((absent, self.note)))
        columns = (
            Column("offset"),
            Column("score", "+.3f"),
            Column("sd"),
            Column("attention"),
        )
        rows = tuple(
            (
                *(offset, float(self.score[offset]), float(self.sd[offset])),
                None if self.attention is None else float(self.attention[offset]),
            )
            for offset in range(min(len(self.score), 10))
        )
        summary = f"position sd {self.position:.3g}, content sd {self.content:.3g}"
        return Table(columns, rows, title=title, note=joined((summary, self.note)))


@dataclass(frozen=True, eq=False)
class Positional(Record, kind="positional"):
    """The offset profiles of all heads."""

    heads: tuple[OffsetProfile, ...]
    note: str

    def __getitem__(self, head: HeadName) -> OffsetProfile:
        return find_circuit({each.head: each for each in self.heads}, head)

    def to_table(self) -> Table:
        """One row per head: where its profile peaks, and position against content."""
        columns = (
            text_column("head"),
            Column("peak at"),
            Column("score", "+.2f"),
            Column("attention"),
            Column("position sd", ".2f"),
            Column("content sd", ".2f"),
            Column("share", ".1%"),
        )
        rows = tuple(
            (
                *(h.head, h.peak, float(h.score[h.peak])),
                None if h.attention is None else float(h.attention[h.peak]),
                *(h.position, h.content, h.share),
            )
            for h in self.heads
        )
        legend = "score, attention: at the peak; share: position² / (position² + content²)"
        title = "attention by position alone"
        return Table(columns, rows, title=title, note=joined((legend, self.note)))


@torch.no_grad()
def positional(
    model: Model, *heads: HeadName, window: int | None = None, progress: Progress = silent
) -> Positional:
    """The offset profile of each head (all if none are named), with the size of its content term.

    `window` is the number of offsets: by default half the context, 64 at most, so that every
    destination counted (those from window − 1 on) sees all of them.

    >>> from pathsum.model import construct
    >>> profile = positional(construct.induction(), "L0H0").heads[0]
    >>> profile.peak, round(float(profile.attention[1]), 3)
    (1, 1.0)

    What position does through composition (a head that reads what an earlier one wrote about
    positions) is not here: that is in the scores of a run.
    """
    require_heads(model)
    require_score_edges(model, "attention by position")
    config = model.config
    if config.positions == "none":
        raise InputError(
            "this model has positions='none', so its scores do not depend on position; "
            "use a model with positions 'qk', 'residual' or 'rotary'"
        )
    if window is None:
        window = max(1, min(WINDOW, config.n_ctx // 2))
    if not 1 <= window <= config.n_ctx:
        raise InputError(
            f"window={window} offsets do not fit a context of {config.n_ctx}; "
            f"choose from 1 to {config.n_ctx}"
        )
    chosen = [model.head(name) for name in heads or [head.id for head in model.heads]]
    shared = {first: TokenMoments(model, first_layer=first) for first in (True, False)}

    def profile(head: Head) -> OffsetProfile:
        parts = offset_parts(head, window, shared[head.id.layer == 0])
        return OffsetProfile(
            head=head.label,
            score=parts.score,
            sd=parts.sd,
            attention=parts.attention,
            position=float(parts.score.std(correction=0)),
            content=parts.content,
            note=parts.note,
        )

    found = shared_map(chosen, profile, progress, "offsets")
    remarks = dict.fromkeys(part for each in found for part in each.note.split("; "))
    return Positional(tuple(found), joined(tuple(remarks)))
