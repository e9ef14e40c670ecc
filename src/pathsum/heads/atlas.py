"""The atlas: every head of a model with every score, and a kind where the evidence agrees."""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from rich.console import RenderableType
from torch import Tensor

from pathsum.base import (
    Progress,
    Record,
    Table,
    find_head,
    prose_column,
    silent,
    text_column,
)
from pathsum.base.arguments import checked
from pathsum.base.errors import InputError, near_misses
from pathsum.base.head_mapping import HeadMapping
from pathsum.circuits.composition import composition
from pathsum.circuits.positional import OffsetProfile, positional
from pathsum.circuits.tokens.token import joined
from pathsum.circuits.tokens.token_basis import logit_cap_note, require_heads, score_cap_note
from pathsum.heads.atlas_views import PrintedAtlas, atlas_html
from pathsum.heads.data_scores import DataScores, probe_scores, text_scores
from pathsum.heads.head_entry import (
    MIXED,
    SCORE_COLUMNS,
    TITLES,
    UNKNOWN,
    HeadEntry,
    judge,
    why_silent,
    without_kind,
)
from pathsum.heads.kinds import (
    ALL_SCORES,
    COPYING_BY_DATA,
    COPYING_BY_WEIGHTS,
    FUZZY_INDUCTION,
    KINDS,
    MATCHING_THROUGH_PREVIOUS,
    OV_SCORES,
    PREVIOUS_TOKEN,
    WEIGHT_SCORES,
    WORD_PIECE,
    WORD_PIECE_BY_WEIGHTS,
    previous_token,
)
from pathsum.heads.kinds.fuzzy_induction import fuzzy_induction_scores
from pathsum.heads.kinds.kind import ALPHA, HeadEvidence, ScoreInfo, text_name
from pathsum.heads.kinds.matching_through_previous import through_previous
from pathsum.heads.kinds.word_piece import TOO_FEW_WORDS, word_piece_scores
from pathsum.heads.layer_view import RandomFrames, in_full_precision
from pathsum.heads.probe import SEQUENCES
from pathsum.heads.score import HeadScores, Score
from pathsum.model import Config, HeadId, HeadName, Model
from pathsum.model.sequences import TextOrTokens

# Random heads for each head, so p can be as small as 1/201.
NULL_HEADS = 200
OUTPUTS_ARE_NOT_TOKENS = "it compares outputs with tokens, and this model's outputs are not tokens"


@dataclass(frozen=True, eq=False)
class Atlas(Record, HeadMapping[HeadEntry], kind="atlas"):
    """Every head of a model; `atlas["L1H4"]` is one of them.

    A head has a kind where what it does on the probe and what its weights say agree. It is "mixed"
    where the probe suggests a kind that the weights do not support, and otherwise "unknown".
    `absent` maps each score that no head has to the reason.
    """

    model: str
    heads: tuple[HeadEntry, ...]
    infos: tuple[ScoreInfo, ...]
    absent: dict[str, str]
    alpha: float
    note: str

    def label_of(self, name: HeadName) -> HeadId:
        """The head that a name means, or an error if the model has no such head."""
        last = self.heads[-1].head
        return find_head(name, last.layer + 1, last.head + 1)

    def score(self, name: str) -> dict[HeadId, float]:
        """One score of every head that has it."""
        _require_known(name, TITLES, "score")
        return {
            entry.head: entry.scores[name].value for entry in self.heads if name in entry.scores
        }

    def of_kind(self, kind: str) -> tuple[HeadEntry, ...]:
        """The heads of a kind, also where a more specific kind names them.

        `found.of_kind("copying")` is the one list of copying heads: eigenvalues of OV positive
        beyond chance, and the attended token itself raised.
        """
        _require_known(kind, [each.name for each in KINDS], "kind")
        return tuple(entry for entry in self.heads if kind in entry.kinds)

    def by_layer(self) -> tuple[dict[str, int], ...]:
        """The number of heads of each kind, per layer."""
        layers = 1 + self.heads[-1].head.layer
        kinds = [Counter[str]() for _ in range(layers)]
        for entry in self.heads:
            kinds[entry.head.layer][entry.kind] += 1
        return tuple(dict(kind.most_common()) for kind in kinds)

    def to_table(self) -> Table:
        """One row per head and score: value, 95 % interval, chance, p, best part of the context."""
        columns = (text_column("head"), text_column("kind"), *SCORE_COLUMNS)
        rows = tuple(
            (entry.head, entry.kind, *row) for entry in self.heads for row in entry.score_rows()
        )
        return Table(columns, rows, f"heads of {self.model}", self.note)

    def kinds_table(self) -> Table:
        """One row per head: its kind, and the evidence."""
        columns = (text_column("head"), text_column("kind"), prose_column("evidence"))
        rows = tuple(
            (entry.head, entry.kind, "\n".join(entry.evidence) or "no score passes its threshold")
            for entry in self.heads
        )
        return Table(columns, rows, f"heads of {self.model}", self.note)

    def __rich__(self) -> RenderableType:
        return PrintedAtlas(self)

    def to_html(self) -> str:
        """Every head and score as a heat map: one element, nothing loaded from anywhere."""
        return atlas_html(self)

    def _repr_html_(self) -> str:
        return self.to_html()


@torch.no_grad()
@checked
def atlas(
    model: Model,
    *,
    tokens: TextOrTokens | None = None,
    scores: Sequence[str] | None = None,
    thresholds: Mapping[str, float] | None = None,
    alpha: float = ALPHA,
    sequences: int = SEQUENCES,
    draws: int = NULL_HEADS,
    seed: int = 0,
    progress: Progress = silent,
) -> Atlas:
    """Every score of every head, compared with chance, and each head's kind.

    Scores from data are measured on repeated random tokens (25 tokens, 4 times, in `sequences`
    sequences; shorter where the context is), and those that need no repeats also on text: `tokens`
    (ids, a text, a corpus), by default the held-out text that the model comes with. The null is
    each head itself, `draws` times, with what it reads and writes rotated at random: the same
    scale, singular values and stream, but random directions. Half-precision models are computed in
    float32.

    `scores` chooses some by name, such as ["copying", "copying_weights"], and saves the time of the
    others; heads are then of kinds that those alone can show.

    A kind needs a score of at least its threshold, over the whole context or a part of it, with
    p ≤ `alpha`, and weights that agree. `thresholds` overrides some: {"previous_token": 0.4}.

    >>> from pathsum.model import construct
    >>> found = atlas(construct.induction())
    >>> found["L0H0"].kind, found["L1H0"].kind
    ('previous token', 'induction')

    An atlas does not prove a mechanism: `induction(model)` tests that of induction heads, by
    cutting edges and by substituting ideal patterns.
    """
    require_heads(model)
    check_draws(draws, alpha)
    infos = _with_thresholds(thresholds or {})
    wanted = _wanted(scores)
    model = in_full_precision(model)
    measured, first = _measured(model, tokens, wanted, sequences, draws, seed, progress)
    limits = {info.name: info.threshold for info in infos}
    entries = _entries(model, measured.scores, first, limits, alpha, progress)
    matching = None
    absent = dict(measured.absent)
    if MATCHING_THROUGH_PREVIOUS.name in wanted:
        matching = _add_matching(model, entries, seed, alpha, progress)
        absent |= {MATCHING_THROUGH_PREVIOUS.name: matching.absent} if matching.absent else {}
    absent = {name: why for name, why in absent.items() if name in wanted}
    infos = tuple(info for info in infos if info.name in wanted)
    note = _note(model.config, sequences, draws, measured.measured_on, matching)
    if len(infos) < len(ALL_SCORES):
        note += (
            " Only some scores were computed: a kind that needs others shows as "
            f"{MIXED} or {UNKNOWN}."
        )
    return Atlas(model.name, tuple(entries.values()), infos, absent, alpha, note)


def _wanted(scores: Sequence[str] | None) -> frozenset[str]:
    """The names of the scores to measure, by default all."""
    if scores is None:
        return frozenset(TITLES)
    if isinstance(scores, str) or not scores:
        raise InputError(
            f"scores is {scores!r}; give a list of names, such as ['copying', 'copying_weights']"
        )
    for name in scores:
        _require_known(name, TITLES, "score")
    return frozenset(scores)


def _measured(
    model: Model,
    tokens: TextOrTokens | None,
    wanted: Collection[str],
    sequences: int,
    draws: int,
    seed: int,
    progress: Progress,
) -> tuple[DataScores, dict[HeadId, Float[Tensor, " dest"]]]:
    """Every wanted score that does not depend on kinds, and attention to the first token."""
    frames = RandomFrames(model, draws, seed)
    on_probe, first = probe_scores(model, sequences, seed, frames, progress, wanted)
    on_text = text_scores(model, tokens, frames, progress, wanted)
    fuzzy = HeadScores({})
    if FUZZY_INDUCTION.name in wanted:
        fuzzy = fuzzy_induction_scores(model, frames, sequences, seed, progress)
    scores, absent = on_probe.scores, on_probe.absent | on_text.absent
    for head, score in fuzzy.scores.items():
        scores[head][FUZZY_INDUCTION.name] = score
    absent |= {FUZZY_INDUCTION.name: fuzzy.absent} if fuzzy.absent else {}
    in_and_out = model.config.predicts_tokens
    by_words = in_and_out and not {WORD_PIECE.name, WORD_PIECE_BY_WEIGHTS.name}.isdisjoint(wanted)
    words = word_piece_scores(model, frames, seed, progress) if by_words else {}
    for found in (words, on_text.scores):
        for head, named in found.items():
            scores[head] |= {name: score for name, score in named.items() if name in wanted}
    if not any(WORD_PIECE.name in named for named in scores.values()):
        absent |= dict.fromkeys((WORD_PIECE.name, WORD_PIECE_BY_WEIGHTS.name), TOO_FEW_WORDS)
    if not in_and_out:
        names = (COPYING_BY_DATA.info, COPYING_BY_WEIGHTS.info, WORD_PIECE, WORD_PIECE_BY_WEIGHTS)
        absent |= dict.fromkeys((info.name for info in names), OUTPUTS_ARE_NOT_TOKENS)
    even = draws + draws % 2  # each rotation counts with its negative
    for score in WEIGHT_SCORES:
        if score.info.name in wanted and (in_and_out or score is not COPYING_BY_WEIGHTS):
            for head, found in score.measure(model, even, seed, progress).items():
                scores[head][score.info.name] = found
    for number, head in enumerate(scores):
        progress(number, len(scores), "heads that write nothing")
        if why_silent(model, head):
            scores[head] |= {name: Score(math.nan) for name in OV_SCORES if name in scores[head]}
    return DataScores(scores, absent, on_text.measured_on), first


def _with_thresholds(thresholds: Mapping[str, float]) -> tuple[ScoreInfo, ...]:
    """Every score with its threshold; one for random tokens is also that on text, unless given."""
    for name, value in thresholds.items():
        _require_known(name, TITLES, "score")
        if not math.isfinite(value):
            raise InputError(f"the threshold of {name!r} is {value}; use a finite number")
    on_text = {text_name(name): value for name, value in thresholds.items()}
    chosen = on_text | dict(thresholds)
    return tuple(
        replace(info, threshold=chosen[info.name], reason="as given")
        if info.name in chosen
        else info
        for info in ALL_SCORES
    )


def _require_known(name: str, known: Collection[str], what: str) -> None:
    if name not in known:
        raise InputError(
            f"there is no {what} {name!r}{near_misses(name, known)}; the {what}s are "
            f"{', '.join(known)}"
        )


def check_draws(draws: int, alpha: float = ALPHA) -> None:
    """Raise an error if there are too few random heads for p to reach alpha."""
    if not 0 < alpha < 1:
        raise InputError(f"alpha={alpha} is not a probability; use a number between 0 and 1")
    if draws + 1 < 1 / alpha:
        raise InputError(
            f"draws={draws} random heads are too few: p could not fall below "
            f"{1 / (1 + max(draws, 0)):.2g}, and a kind needs p ≤ {alpha}; use at least "
            f"{round(1 / alpha) - 1} (the number of probe sequences is `sequences`)"
        )


def _entries(
    model: Model,
    scores: dict[HeadId, dict[str, Score]],
    first: Mapping[HeadId, Float[Tensor, " dest"]],
    thresholds: Mapping[str, float],
    alpha: float,
    progress: Progress,
) -> dict[HeadId, HeadEntry]:
    progress(0, model.config.n_layers, "composition")
    composed = composition(model, progress=progress)
    profiles: dict[str, OffsetProfile] = {}
    if model.config.positions != "none":
        profiles = {each.head: each for each in positional(model, progress=progress).heads}
    entries = without_kind(model, scores, progress)
    for number, (head, named) in enumerate(scores.items()):
        progress(number, len(scores), "naming kinds")
        if head not in entries:
            entries[head] = judge(
                HeadEvidence(
                    *(model.head(head), named, profiles.get(head), composed),
                    *(first[head], thresholds, alpha),
                )
            )
    return {head: entries[head] for head in scores}


def _add_matching(
    model: Model, entries: dict[HeadId, HeadEntry], seed: int, alpha: float, progress: Progress
) -> HeadScores:
    """Add the score that reads through a previous-token head, once those are known."""
    previous = {
        head: entry.scores[PREVIOUS_TOKEN.info.name].value
        for head, entry in entries.items()
        if previous_token.KIND.name in entry.kinds
    }
    matching = through_previous(model, previous, seed, progress=progress)
    for head, score in matching.scores.items():
        entry = entries[head]
        entry.scores[MATCHING_THROUGH_PREVIOUS.name] = score
        if score.passes(MATCHING_THROUGH_PREVIOUS.threshold, alpha):
            line = f"{MATCHING_THROUGH_PREVIOUS.title}: {score}"
            entries[head] = replace(entry, evidence=(*entry.evidence, line))
    return matching


def _note(
    config: Config, sequences: int, draws: int, text: str, matching: HeadScores | None
) -> str:
    """What the scores were measured on; `matching` is None if it was left out."""
    capped = joined((score_cap_note(config), logit_cap_note(config)))
    on_text = f" and {text}" if text else ""
    return (
        f"A kind is named where data and weights agree; {MIXED}: only data; {UNKNOWN}: neither. "
        f"{sequences} sequences of repeated random tokens{on_text}; p: of {draws} random rotations "
        "of the same head the share that scores as much, on a few of the sequences."
        + ("" if matching is None else f" {_matching_note(matching)}")
        + (f" From weights: {capped}." if capped else "")
    )


def _matching_note(matching: HeadScores) -> str:
    heads = ", ".join(dict.fromkeys(score.through or "" for score in matching.scores.values()))
    if heads:
        return f"Matching is read through {heads}."
    return f"No score of matching through a previous-token head: {matching.absent}."
