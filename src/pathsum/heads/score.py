"""Scores of heads: descriptions (`ScoreInfo`), measurements (`DataScore`), values (`Score`).

A score from data is a function of a `LayerView`, the heads of one layer on a probe, real or random.
A head may have a function in only one part of the context, which a mean over all of it hides:
`ContextPart` is the part where a score is largest.
"""

import math
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.algebra.rotations import TIE
from pathsum.base import HeadId, Record, Table, prose_column
from pathsum.base.estimate import Estimate, mean_estimate
from pathsum.model import Trace
from pathsum.model.folding import centered_unembedding, value_reads
from pathsum.text.token_pool import RepeatedTokens

PAPER = "Elhage et al. 2021, A Mathematical Framework for Transformer Circuits"
REPEATS = "random tokens that training has seen, repeated, after the start token"
TEXT = "text that training did not see, or the tokens that were given"
RANDOM_HEADS = "this head's own reads and writes, rotated at random, on the same stream"

PART = 16
"""The least number of consecutive positions in a part of the context."""


@dataclass(frozen=True)
class _TestedEstimate(Estimate):
    """An estimate to compare with a threshold and with its null."""

    def passes(self, threshold: float, alpha: float) -> bool:
        """Whether the value reaches the threshold and the null does not explain it."""
        return self.value >= threshold and self.p is not None and self.p <= alpha


@dataclass(frozen=True)
class ContextPart(_TestedEstimate):
    """The part of the context in which a head's score is largest.

    `value` is the mean over the 16 consecutive positions with the largest mean. `null` and `p`
    compare it with random heads, each at its best positions, which corrects for the search. From
    `first` to `last`, the score stays above half the value.
    """

    first: int = 0
    last: int = 0

    def __str__(self) -> str:
        return f"{self.format('.2f')} at positions {self.first}–{self.last}"


@dataclass(frozen=True)
class Score(_TestedEstimate):
    """An `Estimate` about one head: its value, its error over probe sequences, and its null.

    `null` is the mean over random heads and `p` the share that score at least as much, as
    (1 + number at or above) / (1 + draws). A score from weights alone has no error. A head with
    zero output has the value NaN and no p. `through` is the lower head that the score reads
    through, if any.
    """

    through: HeadId | None = None
    part: ContextPart | None = None

    def __str__(self) -> str:
        return self.format(".2f") + (f", through {self.through}" if self.through else "")


@dataclass(frozen=True, kw_only=True)
class ScoreInfo(Record, kind="head-score-info"):
    """The description of a score, shown next to its numbers.

    `about` is one plain sentence on the function of a head with a high score. The defaults are for
    scores on repeated random tokens. Scores from weights have a null that is symmetric around 0,
    which is their threshold.
    """

    name: str
    title: str
    about: str
    evidence: Literal["data", "weights"] = "data"
    formula: str
    probe: str = REPEATS
    ceiling: float | None = 1.0
    null: str = RANDOM_HEADS
    threshold: float = 0.0
    reason: str
    citation: str = PAPER

    def to_table(self) -> Table:
        """One row per field."""
        names = ("about", "formula", "probe", "ceiling", "null", "threshold", "reason", "citation")
        rows = tuple((name, str(getattr(self, name))) for name in names)
        return Table((prose_column(""), prose_column("")), rows, title=self.title)


_INFOS = tomllib.loads((Path(__file__).parent / "scores.toml").read_text(encoding="utf-8"))


def score_info(name: str) -> ScoreInfo:
    """The description of a score in scores.toml."""
    return ScoreInfo(name=name, **_INFOS[name])


@dataclass(frozen=True, eq=False)
class LayerOV:
    """The OV circuits of a layer's heads (`layer_ov`) or of random heads, as three maps.

    `values` maps the read of each position to values, without biases. `along` maps the stream to
    its inner products with the rows of W_O. `effects` maps tokens to the effect of these rows on
    their logits, relative to the mean logit.
    """

    values: Callable[[Float[Tensor, "sequence pos d"]], Float[Tensor, "sequence head pos k"]]
    along: Callable[[Float[Tensor, "sequence pos d"]], Float[Tensor, "sequence head pos k"]]
    effects: Callable[[Int[Tensor, "sequence m"]], Float[Tensor, "sequence head k m"]]

    def overlaps(
        self, z: Float[Tensor, "sequence head pos k"], stream: Float[Tensor, "sequence pos d"]
    ) -> Float[Tensor, "sequence head pos"]:
        """⟨z W_O, stream⟩ at each position, without the d-wide write."""
        return (z * self.along(stream)).sum(-1)

    def logits(
        self, values: Float[Tensor, "sequence head n k"], tokens: Int[Tensor, "sequence m"]
    ) -> Float[Tensor, "sequence head n m"]:
        """The effect of values on the logits of tokens, relative to the mean logit."""
        return values @ self.effects(tokens)


def layer_ov(
    W_V: Float[Tensor, "head d k"], W_O: Float[Tensor, "head k d"], W_U: Float[Tensor, "d vocab"]
) -> LayerOV:
    """The OV circuits of a layer's heads; W_U is centered over the vocabulary."""
    return LayerOV(
        values=lambda read: torch.einsum("bpd,hdk->bhpk", read, W_V),
        along=lambda stream: torch.einsum("bpd,hkd->bhpk", stream, W_O),
        effects=lambda tokens: torch.einsum("hkd,dbm->bhkm", W_O, W_U[:, tokens]),
    )


@dataclass(frozen=True, eq=False)
class LayerView:
    """Heads of one layer on a probe: the model's, or random heads that read the same stream.

    `read` is the input of the values: the stream times its normalization scale for real heads,
    whose reads are folded; for random heads also with the norm's gain and centering. A score is a
    function of only a view, so it is the same for real and for random heads.
    """

    probe: RepeatedTokens
    stream: Float[Tensor, "sequence pos d"]
    read: Float[Tensor, "sequence pos d"]
    pattern: Float[Tensor, "sequence head dest src"]
    ov: LayerOV

    def first(self, sequences: int) -> "LayerView":
        """The same heads on the first sequences."""
        return replace(
            self,
            probe=replace(self.probe, tokens=self.probe.tokens[:sequences]),
            stream=self.stream[:sequences],
            read=self.read[:sequences],
            pattern=self.pattern[:sequences],
        )

    @cached_property
    def values(self) -> Float[Tensor, "sequence head pos k"]:
        """Each head's value at each position, without biases."""
        return self.ov.values(self.read)


def layer_views(trace: Trace, probe: RepeatedTokens) -> Iterator[LayerView]:
    """The heads of each layer on a run of the probe."""
    W_U = centered_unembedding(trace.model.weights)
    for layer in range(trace.model.config.n_layers):
        yield layer_view(trace, probe, layer, W_U)


def layer_view(
    trace: Trace, probe: RepeatedTokens, layer: int, W_U: Float[Tensor, "d vocab"]
) -> LayerView:
    """The heads of one layer; `W_U` is the centered unembedding, which all layers share."""
    weights = trace.model.weights
    return LayerView(
        probe=probe,
        stream=trace.streams[layer],
        read=trace.streams[layer] * trace.scales.attention[layer][..., None],
        pattern=trace.patterns[layer],
        ov=layer_ov(value_reads(weights, layer), weights.attention[layer].W_O, W_U),
    )


Profile: TypeAlias = Callable[[LayerView], Float[Tensor, "sequence head dest"]]
"""A score at every destination, NaN where it is not valid; or one number for all destinations."""


@dataclass(frozen=True)
class HeadScore:
    """A score that heads can have.

    `of_ov` marks scores of a head's output, which heads with zero output lack; `of_tokens_out`
    marks scores that compare outputs with tokens.
    """

    info: ScoreInfo
    of_ov: bool = field(default=False, kw_only=True)
    of_tokens_out: bool = field(default=False, kw_only=True)

    @property
    def name(self) -> str:
        """The name in `atlas`."""
        return self.info.name


@dataclass(frozen=True)
class DataScore(HeadScore):
    """A score measured on a run, of the probe or of text.

    `needs` is the requirement on a destination, for messages about texts without such positions.
    """

    profile: Profile
    needs: str = field(default="a position before it", kw_only=True)

    def measure(self, view: LayerView) -> Float[Tensor, "sequence head"]:
        """The score of each sequence: the mean over valid destinations."""
        return self.profile(view).nanmean(-1)


def on_text(score: DataScore) -> DataScore:
    """The same score measured on text: `previous_token` becomes `previous_token_text`."""
    info = replace(
        score.info,
        name=text_name(score.name),
        title=f"{score.info.title.removesuffix(' (data)')} (text)",
        about=f"{score.info.about.removesuffix('.')}, on text.",
        probe=TEXT,
    )
    return replace(score, info=info)


def text_name(name: str) -> str:
    """The name of a score on text."""
    return f"{name}_text"


@dataclass(frozen=True)
class HeadScores:
    """Scores of heads by name, the reasons why scores are absent, and a description of the data."""

    scores: dict[HeadId, dict[str, Score]]
    absent: dict[str, str]
    measured_on: str = ""


def largest_parts(profile: Float[Tensor, "*head dest"]) -> Float[Tensor, "*head"] | None:
    """The largest mean over consecutive valid positions; None if there are too few."""
    valid = ~profile.isnan().flatten(0, -2).any(0)
    if int(valid.sum()) < 2 * PART:
        return None
    return profile[..., valid].unfold(-1, PART, 1).mean(-1).amax(-1)


def best_parts(
    profile: Float[Tensor, "head dest"],
    head_values: Float[Tensor, " head"],
    null: Float[Tensor, "draw head"],
) -> list[ContextPart | None]:
    """The best part of each head; None if fewer positions are valid than two parts have.

    `head_values` and `null` are `largest_parts` of each head and of its random heads, on the same
    sequences.
    """
    valid = ~profile.isnan().any(0)
    positions = valid.nonzero()[:, 0].tolist()
    if len(positions) < 2 * PART:
        return [None] * len(profile)
    rows = profile[:, valid]
    largest = rows.unfold(-1, PART, 1).mean(-1).max(-1)
    above, means, draws = (null >= head_values - TIE).sum(0), null.mean(0), len(null)
    parts: list[ContextPart | None] = []
    for head, start in enumerate(largest.indices.tolist()):
        value, p = float(largest.values[head]), (1 + int(above[head])) / (1 + draws)
        low = (rows[head] < value / 2).nonzero()[:, 0].tolist()
        first = 1 + max((index for index in low if index < start), default=-1)
        last = min((index for index in low if index >= start + PART), default=len(positions)) - 1
        ends = {"first": positions[first], "last": positions[last]}
        parts.append(ContextPart(value, null=float(means[head]), p=p, draws=draws, **ends))
    return parts


def against_null(
    values: Float[Tensor, "sequence head"],
    null: Float[Tensor, "draw head"],
    head_values: Float[Tensor, " head"] | None = None,
) -> list[Score]:
    """The mean score of each head over sequences, compared with its random heads.

    Scores from weights have one row of values and no standard error. `head_values` has each head's
    score on the sequences of its random heads, if those are not all. Random heads with zero output
    (NaN) are excluded from the null.
    """
    above = (null >= (values.mean(0) if head_values is None else head_values) - TIE).sum(0)
    means, counts = null.double().nanmean(0), (~null.isnan()).sum(0)
    scores: list[Score] = []
    for head, of_head in enumerate(values.unbind(1)):
        estimate, draws = mean_estimate(of_head), int(counts[head])
        numbers = (estimate.value, estimate.stderr, estimate.low, estimate.high)
        if draws == 0 or math.isnan(estimate.value):
            scores.append(Score(*numbers))
        else:
            p = (1 + int(above[head])) / (1 + draws)
            scores.append(Score(*numbers, null=float(means[head]), p=p, draws=draws))
    return scores


def against_rotations(
    values: Float[Tensor, " head"],
    p: Float[Tensor, " head"],
    draws: int,
    through: HeadId | None = None,
) -> list[Score]:
    """Scores from weights with their `sequential_p`; the null mean is 0: λ is as likely as −λ."""
    return [
        Score(value, through=through)
        if math.isnan(p_value)
        else Score(value, null=0.0, p=p_value, draws=draws, through=through)
        for value, p_value in zip(values.tolist(), p.tolist(), strict=True)
    ]
