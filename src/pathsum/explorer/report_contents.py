"""The questions whose answers a report holds.

They are chosen for a reader who sees the model for the first time: every example text, every head,
the edges that stand out, and for each text the most interesting predictions.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from pathsum.errors import InputError, NotExactError
from pathsum.explorer.answers.atlas import whole_atlas
from pathsum.explorer.answers.composition import all_composition
from pathsum.explorer.claims.picture import picture_questions
from pathsum.explorer.claims.tour import Tour
from pathsum.explorer.explorer import Explorer
from pathsum.explorer.params import ModelParams, PlainParams
from pathsum.explorer.wire import decode
from pathsum.heads.verdicts import MIXED, UNKNOWN

# Predictions per text that the Paths view can explain.
PREDICTIONS = 12
# Predictions per text with a graph, in addition to the last one and that of the story.
CIRCUITS = 3
# Score tables are large: how many texts have them, and how long such a text may be.
SCORED_TEXTS, SCORED_TOKENS = 3, 128
# Edges that can be opened: the strongest few, and more of them above this z.
MIN_Z, MIN_EDGES, MAX_EDGES = 4.0, 4, 12
# Snapshots whose attention can be seen while scrubbing.
MAX_STEPS = 24
# Heads with a page: all of a small model, those with a known kind first.
MAX_HEADS = 32


@dataclass(frozen=True)
class Recorded:
    """A question that a report answers."""

    name: str
    params: PlainParams


def recorded(explorer: Explorer) -> Iterator[Recorded]:
    """Every question of a report, those that open the page first."""
    bench = explorer.workbench
    info = ModelParams()
    model = bench.model(info)
    yield Recorded("model", {})
    yield Recorded("vocabulary", {})
    yield from _texts(explorer)
    for name in ("atlas", "composition", "terms", "paper"):
        yield Recorded(name, {})
    if model.config.n_layers:
        yield from _heads(explorer)
        yield from _edges(explorer)
    if bench.open_model(info).snapshots:
        yield Recorded("training", {})
        yield from _steps(explorer)
        yield from _first_snapshot(explorer)
    yield from claim_pictures(explorer)
    for other in bench.models[1:]:
        yield from _compared(explorer, other.name)


def claim_pictures(explorer: Explorer) -> Iterator[Recorded]:
    """The questions of the tour's pictures of other models than the report's own."""
    try:
        tour = explorer.answer("paper")
    except (InputError, NotExactError):
        return  # reported when the tour itself is asked for
    assert isinstance(tour, Tour)
    for claim in tour.claims:
        if claim.model != explorer.name and claim.picture is not None:
            for name, params in picture_questions(claim.picture):
                yield Recorded(name, {"model": claim.model, **params})


def _texts(explorer: Explorer) -> Iterator[Recorded]:
    model = explorer.workbench.model(ModelParams())
    examples = explorer.workbench.examples(ModelParams())
    for number in range(len(examples)):
        yield Recorded("run", {"example": number})
        yield Recorded("attention", {"example": number})
        for weighting in ("information", "effect"):
            yield Recorded("attention", {"example": number, "weighting": weighting})
        yield Recorded("story", {"example": number})
        stories = _story_positions(explorer, number)
        predictions = sorted({*_predictions(explorer, number), *stories})
        for position in predictions:
            yield Recorded("why", {"example": number, "position": position})
        for position in _circuits(explorer, number, stories):
            yield Recorded("circuit", {"example": number, "position": position})
    for number in _scored(explorer):
        for head in model.heads:
            yield Recorded("scores", {"example": number, "head": head.label})


def _story_positions(explorer: Explorer, example: int) -> list[int]:
    """The position that the story of a text is about."""
    try:
        return [decode(explorer.ask("story", {"example": example}))["position"]]
    except (InputError, NotExactError):
        return []  # reported when the story itself is asked for


def _circuits(explorer: Explorer, example: int, stories: list[int]) -> list[int]:
    """The predictions with a graph: that of the story, the best predicted repeats, the last."""
    best = _ranked(explorer, example)[:CIRCUITS]
    last = len(explorer.workbench.examples(ModelParams())[example].ids) - 1
    return sorted({*stories, *best, last})


def _predictions(explorer: Explorer, example: int) -> list[int]:
    """Repeated pairs of tokens, the best predicted first, then the others; and the last one."""
    last = len(explorer.workbench.examples(ModelParams())[example].ids) - 1
    return sorted({*_ranked(explorer, example)[: PREDICTIONS - 1], last})


def _ranked(explorer: Explorer, example: int) -> list[int]:
    """All predictions but the last: repeated pairs first, then by probability."""
    run = decode(explorer.ask("run", {"example": example}))
    ids, probabilities = run["ids"], run["next_prob"].tolist()
    pairs: set[tuple[int, int]] = set()
    repeated: set[int] = set()
    for place in range(len(ids) - 1):
        pair = (ids[place], ids[place + 1])
        if pair in pairs:
            repeated.add(place)
        pairs.add(pair)
    return sorted(
        range(len(ids) - 1), key=lambda place: (place not in repeated, -probabilities[place])
    )


def _scored(explorer: Explorer) -> list[int]:
    """The examples with score tables: the first short one of each kind."""
    examples = explorer.workbench.examples(ModelParams())
    first: dict[str, int] = {}
    for number, example in enumerate(examples):
        if len(example.ids) <= SCORED_TOKENS:
            first.setdefault(example.kind, number)
    return sorted(first.values())[:SCORED_TEXTS]


def _heads(explorer: Explorer) -> Iterator[Recorded]:
    for head in _heads_by_kind(explorer)[:MAX_HEADS]:
        for name in ("head", "trigrams", "ablation"):
            yield Recorded(name, {"head": head})
        try:
            page = decode(explorer.ask("head", {"head": head}))
        except (InputError, NotExactError):
            continue  # reported when the page itself is asked for
        for token in dict.fromkeys(
            row["token"]["id"] for row in (*page["ov_rows"], *page["qk_rows"])
        ):
            yield Recorded("token", {"head": head, "token": token})


def _heads_by_kind(explorer: Explorer) -> list[str]:
    try:
        found = whole_atlas(explorer.workbench, ModelParams())
    except (InputError, NotExactError):
        return [head.label for head in explorer.workbench.model(ModelParams()).heads]
    named = sorted(found, key=lambda entry: entry.kind in (UNKNOWN, MIXED))
    return [str(entry.head) for entry in named]


def _edges(explorer: Explorer) -> Iterator[Recorded]:
    try:
        ranked = all_composition(explorer.workbench, ModelParams()).edges(k=MAX_EDGES).edges
    except NotExactError:
        return  # reported when composition itself is asked for
    for place, edge in enumerate(ranked):
        if place < MIN_EDGES or edge.z >= MIN_Z:
            yield Recorded("edge", {"edge": str(edge.edge)})


def _compared(explorer: Explorer, other: str) -> Iterator[Recorded]:
    """Another model compared with the report's own: heads aligned, runs of the same tokens."""
    yield Recorded("model", {"model": other})
    yield Recorded("compare", {"other": other})
    try:
        explorer.ask("compare", {"other": other})
    except (InputError, NotExactError):
        return  # reported when the comparison itself is asked for
    for number in range(len(explorer.workbench.examples(ModelParams()))):
        # By token ids: the other model may have other examples and another tokenizer.
        ids = decode(explorer.ask("run", {"example": number}))["ids"]
        same: PlainParams = {"model": other, "ids": ",".join(map(str, ids))}
        yield Recorded("run", same)
        yield Recorded("attention", same)


def _steps(explorer: Explorer) -> Iterator[Recorded]:
    """The random example at steps spread over the run, for the scrubber."""
    steps = tuple(explorer.workbench.open_model(ModelParams()).snapshots)
    apart = max(1, -(-len(steps) // MAX_STEPS))
    examples = explorer.workbench.examples(ModelParams())
    probes = [number for number, example in enumerate(examples) if example.kind == "probe"]
    for step in steps[::apart]:
        for example in probes[:1]:
            yield Recorded("run", {"example": example, "step": step})
            yield Recorded("attention", {"example": example, "step": step})


def _first_snapshot(explorer: Explorer) -> Iterator[Recorded]:
    """What the Compare view opens with on a run: the first snapshot, on the first example."""
    bench = explorer.workbench
    first = min(bench.open_model(ModelParams()).snapshots)
    yield Recorded("compare", {"other": bench.models[0].name, "other_step": first})
    yield Recorded("run", {"example": 0, "step": first})
    yield Recorded("attention", {"example": 0, "step": first})
