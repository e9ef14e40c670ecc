"""The atlas: every head of a model with every score, and a kind where the evidence agrees."""

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from rich.console import Console, ConsoleOptions, RenderableType
from rich.text import Text
from torch import Tensor

from pathsum.algebra.nulls import ALPHA
from pathsum.algebra.rotations import DRAWS
from pathsum.base import Progress, Record, Table, find_head, prose_column, silent, text_column
from pathsum.base.errors import InputError
from pathsum.base.options import checked
from pathsum.base.record import HeadMapping
from pathsum.base.sentence import shade
from pathsum.base.table import columns_table, format_number
from pathsum.circuits.composition import composition
from pathsum.circuits.positional import OffsetProfile, positional
from pathsum.circuits.token_basis import join_notes, logit_cap_note, require_heads, score_cap_note
from pathsum.heads import circuit_scores, kinds, probe_scores
from pathsum.heads.circuit_scores import MATCHING_THROUGH_PREVIOUS
from pathsum.heads.kinds import ALL_SCORES, MIXED, TITLES, UNKNOWN, HeadEntry
from pathsum.heads.null import RandomHeads, check_draws, score_on_runs
from pathsum.heads.probe import (
    PREVIOUS_TOKEN,
    SEQUENCES,
    attention_trace,
    random_tokens,
    repeats_probe,
    why_no_repeats,
)
from pathsum.heads.score import HeadScores, Score, ScoreInfo
from pathsum.model import Config, HeadId, HeadName, Model
from pathsum.model.sequences import TextOrTokens, require_causal

SOME_SCORES = (
    f"Only some scores were computed: a kind that needs others shows as {MIXED} or {UNKNOWN}."
)
OUTPUTS_ARE_NOT_TOKENS = "it compares outputs with tokens, and this model's outputs are not tokens"


@dataclass(frozen=True, eq=False)
class Atlas(Record, HeadMapping[HeadEntry], kind="atlas"):
    """All heads of a model with their scores and kinds, indexed by head: `atlas["L1H4"]`.

    A head has a kind if its behavior on the probe and its weights agree. It is "mixed" if the
    probe suggests a kind that the weights do not support, and "unknown" otherwise. `absent` maps
    each score that could not be measured to the reason.
    """

    model: str
    heads: tuple[HeadEntry, ...]
    infos: tuple[ScoreInfo, ...]
    absent: dict[str, str]
    alpha: float
    note: str

    def label_of(self, name: HeadName) -> HeadId:
        """Look up a head by name; raises an error if the model has no such head."""
        last = self.heads[-1].head
        return find_head(name, last.layer + 1, last.head + 1)

    def score(self, name: str) -> dict[HeadId, float]:
        """One score of every head that has it."""
        kinds.parse_name(name, TITLES, "score")
        return {
            entry.head: entry.scores[name].value for entry in self.heads if name in entry.scores
        }

    def of_kind(self, kind: str) -> tuple[HeadEntry, ...]:
        """The heads of a kind, also where a more specific kind names them.

        `atlas.of_kind("copying")` is the list of copying heads: eigenvalues of OV positive beyond
        the null, and the attended token raised.
        """
        kinds.parse_name(kind, [row.name for row in kinds.KINDS], "kind")
        return tuple(entry for entry in self.heads if kind in entry.kinds)

    def by_layer(self) -> tuple[dict[str, int], ...]:
        """The number of heads of each kind, per layer."""
        layers = 1 + self.heads[-1].head.layer
        counts = [Counter[str]() for _ in range(layers)]
        for entry in self.heads:
            counts[entry.head.layer][entry.kind] += 1
        return tuple(dict(count.most_common()) for count in counts)

    def to_table(self) -> Table:
        """One row per head and score: value, 95% interval, null, p, best part of the context."""
        columns = (text_column("head"), text_column("kind"), *kinds.SCORE_COLUMNS)
        rows = tuple(
            (entry.head, entry.kind, *row) for entry in self.heads for row in entry.score_rows()
        )
        return Table(columns, rows, f"heads of {self.model}", self.note)

    def kinds_table(self) -> Table:
        """One row per head: its kind, and the evidence."""
        silent = "no score passes its threshold"
        columns = (
            *(text_column("head", "head"), text_column("kind", "kind")),
            prose_column("evidence", lambda entry: "\n".join(entry.evidence) or silent),
        )
        return columns_table(self.heads, columns, f"heads of {self.model}", self.note)

    def __rich__(self) -> RenderableType:
        return PrintedAtlas(self)


# Widths of a score's title and of one head's value next to its null, with column spacing.
_TITLE, _CELL = 33, 16


@dataclass(frozen=True, eq=False)
class PrintedAtlas:
    """The atlas in a terminal: heat maps, kinds, then every score of every head next to its null.

    The terminal's width determines the number of heads side by side.
    """

    atlas: Atlas

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        atlas = self.atlas
        for info in atlas.infos:
            values = atlas.score(info.name)
            if values and info.name in ("previous_token", "induction", "copying"):
                yield score_grid(info.title, values)
                yield Text()
        if any(entry.evidence for entry in atlas.heads):
            yield atlas.kinds_table()
            yield Text()
            for layer, counts in enumerate(atlas.by_layer()):
                names = ", ".join(f"{count} {kind}" for kind, count in counts.items())
                yield Text(f"L{layer}: {names}")
        else:
            yield Text(f"{atlas.model}: no score passes the threshold of a kind\n\n{atlas.note}")
        side_by_side = max(1, (options.max_width - _TITLE) // _CELL)
        for layer in range(len(atlas.by_layer())):
            heads = [entry for entry in atlas.heads if entry.head.layer == layer]
            for start in range(0, len(heads), side_by_side):
                yield Text()
                yield _scores_table(atlas, heads[start : start + side_by_side])
        for name, why in atlas.absent.items():
            yield Text(f"{name}: {why}", style="italic")


def _scores_table(atlas: Atlas, heads: Sequence[HeadEntry]) -> Table:
    """One row per score, one column per head: its value, the null in brackets, a star beyond it."""
    rows = tuple(
        (info.title, *(_with_null(entry.scores.get(info.name), atlas.alpha) for entry in heads))
        for info in atlas.infos
        if info.name not in atlas.absent
    )
    columns = (text_column("score"), *(text_column(entry.head) for entry in heads))
    note = f"value (null); *: p ≤ {atlas.alpha:g}"
    return Table(columns, rows, f"scores of {heads[0].head} to {heads[-1].head}", note)


def _with_null(score: Score | None, alpha: float) -> str | None:
    if score is None or math.isnan(score.value):
        return None
    null = "" if score.null is None else f" ({format_number(score.null, '.2f')})"
    star = "*" if score.p is not None and score.p <= alpha else ""
    return f"{format_number(score.value, '.2f')}{null}{star}"


def score_grid(title: str, values: Mapping[HeadId, float]) -> Text:
    """One shade per head from 0 to 1, layers as rows; negative values are blank."""
    layers = sorted({head.layer for head in values})
    n_heads = 1 + max(head.head for head in values)
    lines = [title, "     " + "".join(f"{head:<3}" for head in range(n_heads))]
    for layer in layers:
        cells = [shade(values[HeadId(layer, head)]) for head in range(n_heads)]
        lines.append(f"L{layer:<3} " + "".join(f"{cell} " for cell in cells))
    return Text("\n".join(lines))


@torch.no_grad()
@checked
def atlas(
    model: Model,
    *,
    text: TextOrTokens | None = None,
    tokens: TextOrTokens | None = None,
    scores: Sequence[str] | None = None,
    thresholds: Mapping[str, float] | None = None,
    alpha: float = ALPHA,
    sequences: int = SEQUENCES,
    draws: int = DRAWS,
    seed: int = 0,
    progress: Progress = silent,
) -> Atlas:
    """Every score of every head, compared with its null, and each head's kind.

    Args:
        model: The model. Half-precision models are computed in float32.
        text: A text, token ids or a corpus for scores that need no repeats, by default the model's
            held-out text. For a model trained on sequences of one format, give such sequences.
        tokens: An alias of `text`.
        scores: The scores to compute, such as `["copying", "copying_weights"]`; default: all.
        thresholds: Thresholds that differ from the defaults, such as `{"previous_token": 0.4}`.
        alpha: The largest p of a score that establishes a kind.
        sequences: The number of sequences of repeated random tokens: 25 tokens, 4 times, or fewer
            if the context is shorter.
        draws: The number of rotations of each head in the null.
        seed: The seed of random tokens and rotations.
        progress: Called as the work proceeds.

    Returns:
        A mapping from label to scores, kind and evidence; `absent` has reasons for missing scores.

    Example:
        >>> from pathsum.model import construct
        >>> heads = atlas(construct.induction())
        >>> heads["L0H0"].kind, heads["L1H0"].kind
        ('previous token', 'induction')

    The null draws each head with its reads and writes rotated at random. An atlas does not prove a
    mechanism; `induction(model)` tests the mechanism of induction heads by cutting edges.
    """
    require_heads(model)
    require_causal(model, "the atlas")
    if text is not None and tokens is not None:
        raise InputError("text and tokens are two names of one option; give one of them")
    check_draws(draws, alpha)
    infos = kinds.with_thresholds(thresholds or {})
    names = kinds.parse_scores(scores)
    measured, first = _measure(
        model, tokens if text is None else text, names, sequences, draws, seed, progress
    )
    limits = {info.name: info.threshold for info in infos}
    entries = _entries(model, measured.scores, first, limits, alpha, progress)
    absent, matching, through = measured.absent, MATCHING_THROUGH_PREVIOUS.name, ""
    if matching in names:
        why, through = _add_matching(model, entries, seed, alpha, progress)
        absent |= {matching: why} if why else {}
    note = _note(model.config, names, measured.measured_on, through, sequences, draws)
    infos = tuple(info for info in infos if info.name in names)
    return Atlas(model.name, tuple(entries.values()), infos, absent, alpha, note)


def _note(
    config: Config,
    names: Collection[str],
    measured_on: str,
    through: str,
    sequences: int,
    draws: int,
) -> str:
    on_text = f" and {measured_on}" if measured_on else ""
    capped = join_notes((score_cap_note(config), logit_cap_note(config)))
    notes = (
        f"A head has a kind if data and weights agree; {MIXED}: data only; {UNKNOWN}: neither.",
        f"{sequences} sequences of repeated random tokens{on_text};",
        f"p: share of {draws} random rotations of the same head that score at least as much,",
        "on a few of the sequences.",
        through,
        f"From weights: {capped}." if capped else "",
        "" if len(names) == len(ALL_SCORES) else SOME_SCORES,
    )
    return " ".join(filter(None, notes))


def _measure(
    model: Model,
    text: TextOrTokens | None,
    requested: frozenset[str],
    sequences: int,
    draws: int,
    seed: int,
    progress: Progress,
) -> tuple[HeadScores, dict[HeadId, Float[Tensor, " dest"]]]:
    """Requested scores that do not depend on kinds, and attention to the first token."""
    absent: dict[str, str] = {}
    if not model.config.predicts_tokens:
        compared = [score.name for score in ALL_SCORES if score.of_tokens_out]
        absent = dict.fromkeys(requested.intersection(compared), OUTPUTS_ARE_NOT_TOKENS)
    null, make_probe = RandomHeads(model, draws, seed), repeats_probe
    on_repeats = [score for score in probe_scores.REPEATS_SCORES if score.name in requested]
    if too_short := why_no_repeats(model):
        make_probe = random_tokens
        absent = {score.name: too_short for score in on_repeats} | absent
    measured, probe = requested - set(absent), make_probe(model, sequences, seed)
    on_repeats = [score for score in on_repeats if score.name in measured]
    trace = attention_trace(model, probe.tokens, progress, "random tokens")
    first = kinds.first_by_weights(trace, progress)
    on_text = probe_scores.score_on_text(null, measured, text, progress)
    groups = (
        score_on_runs([(trace, probe)], on_repeats, null, what="random tokens", progress=progress),
        probe_scores.score_on_similar_tokens(null, measured, sequences, seed, progress),
        probe_scores.score_on_split_words(null, measured, seed, progress),
        on_text,
        circuit_scores.score_by_weights(model, measured, draws, seed, progress),
    )
    scores: dict[HeadId, dict[str, Score]] = {}
    for number, head in enumerate(model.heads):
        progress(number, len(model.heads), "heads that write nothing")
        by_name: dict[str, Score] = {}
        for group in groups:
            by_name |= group.scores.get(head.id, {})
        silent = bool(kinds.why_silent(model, head.id))
        scores[head.id] = {
            score.name: Score(math.nan) if silent and score.of_ov else by_name[score.name]
            for score in ALL_SCORES
            if score.name in by_name
        }
    for group in groups:
        absent |= group.absent
    return HeadScores(scores, absent, on_text.measured_on), first


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
        profiles = {profile.head: profile for profile in positional(model, progress=progress).heads}
    silent = kinds.without_kind(model, scores, progress)
    entries: dict[HeadId, HeadEntry] = {}
    for number, (head, head_scores) in enumerate(scores.items()):
        progress(number, len(scores), "naming kinds")
        details = (model.head(head), head_scores, profiles.get(head), composed, first[head])
        entries[head] = silent.get(head) or kinds.judge(
            kinds.HeadEvidence(*details, thresholds, alpha)
        )
    return entries


def _add_matching(
    model: Model, entries: dict[HeadId, HeadEntry], seed: int, alpha: float, progress: Progress
) -> tuple[str, str]:
    """Add the score that reads through a previous-token head; return why it is absent, a note."""
    previous = {
        head: entry.scores[PREVIOUS_TOKEN.name].value
        for head, entry in entries.items()
        if "previous token" in entry.kinds
    }
    matching = circuit_scores.through_previous(model, previous, seed, progress=progress)
    for head, score in matching.scores.items():
        entry = entries[head]
        entry.scores[MATCHING_THROUGH_PREVIOUS.name] = score
        if score.passes(MATCHING_THROUGH_PREVIOUS.info.threshold, alpha):
            line = f"{MATCHING_THROUGH_PREVIOUS.info.title}: {score}"
            entries[head] = replace(entry, evidence=(*entry.evidence, line))
    if matching.absent:
        note = f"No score of matching through a previous-token head: {matching.absent}."
        return matching.absent, note
    through = dict.fromkeys(score.through or "" for score in matching.scores.values())
    return "", f"Matching is read through {', '.join(through)}."
