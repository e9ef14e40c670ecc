"""The atlas: every head of a model, every score, and a kind where the evidence agrees."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from rich.console import Group, RenderableType
from rich.text import Text

from pathsum.circuits.basis import require_heads
from pathsum.circuits.composition import composition
from pathsum.circuits.positional import positional
from pathsum.heads.heat import heat_map
from pathsum.heads.kind import ScoreInfo
from pathsum.heads.kinds import DATA_SCORES
from pathsum.heads.probe import DRAWS, repeats_probe
from pathsum.heads.score import Score, against_null
from pathsum.heads.verdicts import MIXED, UNKNOWN, HeadEvidence, judge
from pathsum.heads.view import RandomFrames, layer_views, random_heads
from pathsum.heads.weight_scores import WEIGHT_SCORES, weight_scores
from pathsum.heads.word_piece import WORD_PIECE, WORD_PIECE_BY_WEIGHTS, word_piece_scores
from pathsum.model import HeadId, HeadName, Model
from pathsum.model.labels import find_head
from pathsum.result import Column, Progress, Record, Table, silent, text_column

# Heads drawn at random for each layer, so p can be as small as 1/201. They are many, so a few draws
# of the probe tell what they do; that spreads them a little more, and p errs on the safe side.
DRAWN, DRAWS_FOR_CHANCE = 200, 4

INFOS: tuple[ScoreInfo, ...] = (
    *(score.info for score in DATA_SCORES),
    WORD_PIECE,
    *WEIGHT_SCORES,
    WORD_PIECE_BY_WEIGHTS,
)


@dataclass(frozen=True, eq=False)
class HeadEntry(Record, kind="atlas-head"):
    """One head: its scores by name, its kind, all kinds that it is, evidence for and against."""

    head: HeadId
    kind: str
    kinds: tuple[str, ...]
    scores: dict[str, Score]
    evidence: tuple[str, ...]

    def to_table(self) -> Table:
        """One score a row, and the evidence below."""
        columns = (
            text_column("score"),
            Column("value", "+.3f"),
            Column("± error"),
            Column("chance", "+.3f"),
            Column("p", ".3g"),
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
    """

    model: str
    heads: tuple[HeadEntry, ...]
    infos: tuple[ScoreInfo, ...]
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
        """One score of every head."""
        return {entry.head: entry.scores[score].value for entry in self.heads}

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
        shown += ("copying", "copying_weights")
        titles = {info.name: info.title for info in self.infos}
        columns = (text_column("head"), text_column("kind"))
        columns += tuple(Column(titles[name], "+.2f") for name in shown)
        rows = tuple(
            (str(entry.head), entry.kind, *(entry.scores[name].value for name in shown))
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
        from pathsum.heads.heat_html import atlas_html

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
    frames = RandomFrames(model, DRAWN, seed)
    scores = _data_scores(model, draws, seed, frames, progress)
    for more in (word_piece_scores(model, frames, seed), weight_scores(model, frames, seed)):
        for head, named in more.items():
            scores[head] |= named
    composed = composition(model)
    profiles = (
        {} if model.config.positions == "none" else {p.head: p for p in positional(model).heads}
    )
    infos = {info.name: info for info in INFOS}
    entries: list[HeadEntry] = []
    for head, named in scores.items():
        known = HeadEvidence(head, named, profiles.get(str(head)), composed)
        verdict = judge(known, infos)
        entries.append(HeadEntry(head, verdict.kind, verdict.kinds, named, verdict.evidence))
    note = (
        f"A kind is named where data and weights agree; {MIXED}: only data; {UNKNOWN}: neither. "
        f"{draws} draws of repeated random tokens; for chance {DRAWN} random heads a layer, on "
        f"{min(draws, DRAWS_FOR_CHANCE)} of them."
    )
    return Atlas(model.name, tuple(entries), INFOS, note)


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
