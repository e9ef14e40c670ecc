"""The atlas: every head of a model, every score, and a kind where the evidence agrees."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from rich.console import Group, RenderableType
from rich.text import Text

from pathsum.circuits.composition.composition import composition
from pathsum.circuits.positional import OffsetProfile, positional
from pathsum.circuits.tokens.token_basis import require_heads
from pathsum.errors import InputError, near_misses
from pathsum.heads.heat_map import heat_map
from pathsum.heads.kinds import DATA_SCORES
from pathsum.heads.kinds.kind import ScoreInfo
from pathsum.heads.kinds.previous_token import PREVIOUS_TOKEN
from pathsum.heads.kinds.through_previous import (
    MATCHING_THROUGH_PREVIOUS,
    ThroughPrevious,
    through_previous,
)
from pathsum.heads.kinds.weight_scores import WEIGHT_SCORES, weight_scores
from pathsum.heads.kinds.word_piece import (
    NO_SPLIT_WORDS,
    WORD_PIECE,
    WORD_PIECE_BY_WEIGHTS,
    word_piece_scores,
)
from pathsum.heads.layer_view import RandomFrames, in_full_precision, layer_views, random_heads
from pathsum.heads.probe import DRAWS, repeats_probe
from pathsum.heads.score import Score, against_null
from pathsum.heads.verdicts import ALPHA, MIXED, UNKNOWN, HeadEvidence, Verdict, judge
from pathsum.model import HeadId, HeadName, Model
from pathsum.names import find_head
from pathsum.result import Column, Progress, Record, Table, silent, text_column
from pathsum.result.p_value import LEAST_IN_WORDS, ProbabilityColumn

# Heads drawn at random for each layer, so p can be as small as 1/201. They are many, so a few draws
# of the probe tell what they do; that spreads them a little more, and p errs on the safe side.
DRAWN, DRAWS_FOR_CHANCE = 200, 4

INFOS: tuple[ScoreInfo, ...] = (
    *(score.info for score in DATA_SCORES),
    WORD_PIECE,
    *WEIGHT_SCORES,
    MATCHING_THROUGH_PREVIOUS,
    WORD_PIECE_BY_WEIGHTS,
)


@dataclass(frozen=True, eq=False)
class HeadEntry(Record, kind="atlas-head"):
    """One head: its scores by name, its kind, all kinds that it is, and the evidence.

    `against` is the part of the evidence that speaks against a kind.
    """

    head: HeadId
    kind: str
    kinds: tuple[str, ...]
    scores: dict[str, Score]
    evidence: tuple[str, ...]
    against: tuple[str, ...]

    def value(self, score: str) -> float | None:
        """A score's value; None where this head has no such score."""
        found = self.scores.get(score)
        return None if found is None else found.value

    def to_table(self) -> Table:
        """One score a row, and the evidence below."""
        columns = (
            text_column("score"),
            Column("value", "+.3f"),
            Column("± error"),
            Column("chance", "+.3f"),
            ProbabilityColumn(format=".2g", least=LEAST_IN_WORDS),
        )
        titles = {info.name: info.title for info in INFOS}
        rows = tuple(
            (titles[name], score.value, score.stderr, score.null, score.p)
            for name, score in self.scores.items()
        )
        return Table(columns, rows, f"{self.head}: {self.kind}", "\n".join(self.evidence))


@dataclass(frozen=True, eq=False)
class Atlas(Record, kind="atlas"):
    """Every head of a model; `atlas["L1H4"]` is one of them.

    A head has a kind where what it does on the probe and what its weights say agree. It is
    "mixed" where the probe suggests a kind that the weights do not bear out, else "unknown".
    `absent` says why no head has a score, by its name.
    """

    model: str
    heads: tuple[HeadEntry, ...]
    infos: tuple[ScoreInfo, ...]
    absent: dict[str, str]
    note: str

    def __getitem__(self, name: HeadName) -> HeadEntry:
        last = self.heads[-1].head
        found = find_head(name, last.layer + 1, last.head + 1)
        return self.heads[found.layer * (last.head + 1) + found.head]

    def __iter__(self) -> Iterator[HeadEntry]:
        return iter(self.heads)

    def __len__(self) -> int:
        return len(self.heads)

    def values(self, score: str) -> dict[HeadId, float]:
        """One score of every head that has it."""
        known = [info.name for info in self.infos]
        if score not in known:
            raise InputError(
                f"there is no score {score!r}{near_misses(score, known)}; "
                f"it may be {', '.join(known)}"
            )
        return {
            entry.head: entry.scores[score].value for entry in self.heads if score in entry.scores
        }

    def by_layer(self) -> tuple[dict[str, int], ...]:
        """How many heads of each kind every layer has."""
        layers = 1 + self.heads[-1].head.layer
        kinds = [Counter[str]() for _ in range(layers)]
        for entry in self.heads:
            kinds[entry.head.layer][entry.kind] += 1
        return tuple(dict(kind.most_common()) for kind in kinds)

    def to_table(self) -> Table:
        """One row a head, with the scores that name most heads."""
        shown = ("previous_token", "first_token", "induction", "prefix_matching")
        # Where there is one, both axes of the paper's scatter, from weights.
        matching = MATCHING_THROUGH_PREVIOUS.name
        shown += ("copying" if matching in self.absent else matching, "copying_weights")
        titles = {info.name: info.title for info in self.infos}
        columns = (text_column("head"), text_column("kind"))
        columns += tuple(Column(titles[name], "+.2f") for name in shown)
        rows = tuple(
            (str(entry.head), entry.kind, *(entry.value(name) for name in shown))
            for entry in self.heads
        )
        return Table(columns, rows, f"heads of {self.model}", self.note)

    def __rich__(self) -> RenderableType:
        maps: list[RenderableType] = []
        for name in ("previous_token", "induction", "copying"):
            title = next(info.title for info in self.infos if info.name == name)
            maps += [heat_map(title, self.values(name)), Text()]
        kinds = [
            Text(f"L{layer}: " + ", ".join(f"{count} {kind}" for kind, count in counts.items()))
            for layer, counts in enumerate(self.by_layer())
        ]
        return Group(*maps, self.to_table(), Text(), *kinds)

    def to_html(self) -> str:
        """Every head and score as a heat map: one element, nothing loaded from anywhere."""
        from pathsum.heads.atlas_html import atlas_html

        return atlas_html(self)

    def _repr_html_(self) -> str:
        return self.to_html()


@torch.no_grad()
def atlas(model: Model, *, draws: int = DRAWS, seed: int = 0, progress: Progress = silent) -> Atlas:
    """Every head against every score, with what chance gives, and its kind.

    The probe is random tokens, repeated (25 tokens, 4 times, `draws` draws; shorter where the
    context is). Chance is, for scores from data, heads of the same singular values rotated at
    random that read the same stream; for scores from weights see each score's own `null`.

    >>> from pathsum.model import construct
    >>> found = atlas(construct.induction())
    >>> found["L0H0"].kind, found["L1H0"].kind
    ('previous token', 'induction')

    Not a proof of a mechanism: `induction(model)` tests the one claim that matters most by cutting
    edges and putting ideal patterns in place.
    """
    require_heads(model)
    model = in_full_precision(model)
    frames = RandomFrames(model, DRAWN, seed)
    scores = _data_scores(model, draws, seed, frames, progress)
    for more in (word_piece_scores(model, frames, seed), weight_scores(model, frames, seed)):
        for head, named in more.items():
            scores[head] |= named
    verdicts = _verdicts(model, scores)
    previous = {
        head: scores[head][PREVIOUS_TOKEN.info.name].value
        for head, verdict in verdicts.items()
        if "previous token" in verdict.kinds
    }
    matching = through_previous(model, previous, seed)
    for head, score in matching.scores.items():
        scores[head][MATCHING_THROUGH_PREVIOUS.name] = score
        if score.passes(MATCHING_THROUGH_PREVIOUS.threshold, ALPHA):
            said = f"{MATCHING_THROUGH_PREVIOUS.title}: {score}"
            verdicts[head] = replace(verdicts[head], evidence=(*verdicts[head].evidence, said))
    entries = tuple(
        HeadEntry(
            *(head, verdicts[head].kind, verdicts[head].kinds, named),
            *(verdicts[head].evidence, verdicts[head].against),
        )
        for head, named in scores.items()
    )
    absent = {MATCHING_THROUGH_PREVIOUS.name: matching.absent} if matching.absent else {}
    if WORD_PIECE.name not in entries[0].scores:
        absent |= dict.fromkeys((WORD_PIECE.name, WORD_PIECE_BY_WEIGHTS.name), NO_SPLIT_WORDS)
    return Atlas(model.name, entries, INFOS, absent, _note(draws, matching))


def _note(draws: int, matching: ThroughPrevious) -> str:
    heads = ", ".join(dict.fromkeys(score.through for score in matching.scores.values()))
    why_not = f"No score of matching through a previous-token head: {matching.absent}."
    return (
        f"A kind is named where data and weights agree; {MIXED}: only data; {UNKNOWN}: neither. "
        f"{draws} draws of repeated random tokens; for chance {DRAWN} random heads a layer, on "
        f"{min(draws, DRAWS_FOR_CHANCE)} of them. "
        + (f"Matching is read through {heads}." if heads else why_not)
    )


def _verdicts(model: Model, scores: dict[HeadId, dict[str, Score]]) -> dict[HeadId, Verdict]:
    composed = composition(model)
    profiles: dict[str, OffsetProfile] = {}
    if model.config.positions != "none":
        profiles = {profile.head: profile for profile in positional(model).heads}
    infos = {info.name: info for info in INFOS}
    return {
        head: judge(HeadEvidence(head, named, profiles.get(str(head)), composed), infos)
        for head, named in scores.items()
    }


def _data_scores(
    model: Model, draws: int, seed: int, frames: RandomFrames, progress: Progress
) -> dict[HeadId, dict[str, Score]]:
    probe = repeats_probe(model, draws, seed)
    trace = model.trace(probe.tokens)
    found: dict[HeadId, dict[str, Score]] = {head.id: {} for head in model.heads}
    layers = model.config.n_layers
    for layer, view in enumerate(layer_views(trace, probe)):
        progress(layer, layers, "heads on the probe")
        chance = random_heads(model, layer, view.few(DRAWS_FOR_CHANCE), frames)
        for score in DATA_SCORES:
            judged = against_null(score.measure(view), score.measure(chance).mean(0))
            for head, result in enumerate(judged):
                found[HeadId(layer, head)][score.info.name] = result
    progress(layers, layers, "heads on the probe")
    return found
