"""What a report records: every question whose answer is written into the file, in one list.

A report answers what it holds and says so about the rest. What it holds is chosen for a model that
a reader has never seen: every example text, every head, the edges that stand out, and for each text
the predictions that are worth a question.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import parse_qsl, urlsplit

from pathsum.errors import InputError, NotExactError
from pathsum.explorer.answers.atlas import whole_atlas
from pathsum.explorer.answers.composition import all_composition
from pathsum.explorer.explorer import Explorer
from pathsum.explorer.parameters import AboutModel
from pathsum.explorer.wire import decode
from pathsum.heads.verdicts import MIXED, UNKNOWN
from pathsum.names import Edge, HeadRead

Parameters: TypeAlias = dict[str, str | int | bool]

# Predictions of each text that Paths can explain.
PREDICTIONS = 12
# Texts whose score tables are recorded, and the longest that such a text may be: they are large.
SCORED_TEXTS, SCORED_TOKENS = 3, 128
# Edges that can be opened: all that stand out this far, and some in any case.
LEAST_Z, LEAST_EDGES, MOST_EDGES = 4.0, 4, 12
# Snapshots whose attention can be seen while scrubbing.
MOST_STEPS = 24
# Heads whose pages are recorded: those of a small model all, of a large one the ones with a kind.
MOST_HEADS = 32


@dataclass(frozen=True)
class Recorded:
    """One question that a report answers."""

    name: str
    parameters: Parameters


def recorded(explorer: Explorer) -> Iterator[Recorded]:
    """Every question, those that open the page first."""
    bench = explorer.workbench
    info = AboutModel()
    model = bench.model(info)
    yield Recorded("model", {})
    yield Recorded("vocabulary", {})
    yield from _texts(explorer)
    for name in ("atlas", "composition", "terms", "paper"):
        yield Recorded(name, {})
    if model.config.n_layers:
        yield from _heads(explorer)
        yield from _edges(explorer)
    if bench.one(info).snapshots:
        yield Recorded("training", {})
        yield from _steps(explorer)
        yield from _beside_its_beginning(explorer)
    yield from beside_claims(explorer)
    for other in bench.served[1:]:
        yield from _compared(explorer, other.name)


def beside_claims(explorer: Explorer) -> Iterator[Recorded]:
    """What the tour draws beside claims that are about other models than the report's."""
    try:
        claims = decode(explorer.ask("paper", {}))["claims"]
    except (InputError, NotExactError):
        return  # the report says so when it asks for the tour itself
    for claim in claims:
        link = urlsplit(str(claim["view"]).removeprefix("#"))
        state = dict(parse_qsl(link.query))
        if "m" in state:
            yield from _beside(link.path.strip("/"), str(claim["id"]), state)


def _beside(view: str, claim: str, state: dict[str, str]) -> Iterator[Recorded]:
    """The questions of one picture, as `web/src/views/paper/live.ts` chooses it."""
    about: Parameters = {"model": state["m"]}
    if view == "text":
        text: Parameters = {**about, "example": int(state.get("e", 0))}
        yield Recorded("run", text)
        if "h" in state:
            yield Recorded("attention", {**text, "head": state["h"]})
    elif view == "head" and "hd" in state:
        shown = "trigrams" if "trigram" in claim or "bug" in claim else "head"
        yield Recorded(shown, {**about, "head": state["hd"]})
    elif view == "circuit" and "edge" in state:
        edge = Edge.parse(state["edge"])
        assert isinstance(edge.reader, HeadRead)
        ends = {"writer": str(edge.writer), "reader": str(edge.reader.head)}
        yield Recorded("edge", {**about, **ends, "kind": edge.reader.side.value})
    elif view in ("circuit", "paths", "atlas"):
        yield Recorded({"circuit": "composition", "paths": "terms"}.get(view, view), about)


def _texts(explorer: Explorer) -> Iterator[Recorded]:
    model = explorer.workbench.model(AboutModel())
    examples = explorer.workbench.examples(AboutModel())
    for number in range(len(examples)):
        yield Recorded("run", {"example": number})
        yield Recorded("attention", {"example": number})
        for weighting in ("information", "effect"):
            yield Recorded("attention", {"example": number, "weighting": weighting})
        for position in _predictions(explorer, number):
            yield Recorded("why", {"example": number, "position": position})
    for number in _scored(explorer):
        for head in model.heads:
            yield Recorded("scores", {"example": number, "head": head.label})


def _predictions(explorer: Explorer, example: int) -> list[int]:
    """Where a text repeats itself and the model knows best how it goes on; and its end."""
    run = decode(explorer.ask("run", {"example": example}))
    ids, chances = run["ids"], run["next_prob"].tolist()
    pairs: set[tuple[int, int]] = set()
    again: list[int] = []
    for place in range(len(ids) - 1):
        pair = (ids[place], ids[place + 1])
        if pair in pairs:
            again.append(place)
        pairs.add(pair)
    again.sort(key=lambda place: -chances[place])
    others = sorted(
        (place for place in range(len(ids) - 1) if place not in again),
        key=lambda place: -chances[place],
    )
    return sorted({*(again + others)[: PREDICTIONS - 1], len(ids) - 1})


def _scored(explorer: Explorer) -> list[int]:
    """The texts whose score tables are recorded: one of each kind, if it is not too long."""
    examples = explorer.workbench.examples(AboutModel())
    first: dict[str, int] = {}
    for number, example in enumerate(examples):
        if len(example.ids) <= SCORED_TOKENS:
            first.setdefault(example.kind, number)
    return sorted(first.values())[:SCORED_TEXTS]


def _heads(explorer: Explorer) -> Iterator[Recorded]:
    for head in _heads_with_a_kind_first(explorer)[:MOST_HEADS]:
        for name in ("head", "trigrams", "ablation"):
            yield Recorded(name, {"head": head})
        try:
            page = decode(explorer.ask("head", {"head": head}))
        except (InputError, NotExactError):
            continue  # the report says so when it asks for the page itself
        for token in dict.fromkeys(row["token"] for row in (*page["ov_rows"], *page["qk_rows"])):
            yield Recorded("token", {"head": head, "token": token})


def _heads_with_a_kind_first(explorer: Explorer) -> list[str]:
    try:
        found = whole_atlas(explorer.workbench, AboutModel())
    except (InputError, NotExactError):
        return [head.label for head in explorer.workbench.model(AboutModel()).heads]
    named = sorted(found, key=lambda entry: entry.kind in (UNKNOWN, MIXED))
    return [str(entry.head) for entry in named]


def _edges(explorer: Explorer) -> Iterator[Recorded]:
    try:
        ranked = all_composition(explorer.workbench, AboutModel()).edges(k=MOST_EDGES).edges
    except NotExactError:
        return  # composition itself says why there is none
    for place, edge in enumerate(ranked):
        if place < LEAST_EDGES or edge.z >= LEAST_Z:
            said = {"writer": edge.writer, "reader": edge.reader, "kind": edge.kind}
            yield Recorded("edge", dict(said))


def _compared(explorer: Explorer, other: str) -> Iterator[Recorded]:
    """Another model beside the report's own: its heads aligned, and on the same tokens."""
    yield Recorded("model", {"model": other})
    yield Recorded("compare", {"other": other})
    try:
        explorer.ask("compare", {"other": other})
    except (InputError, NotExactError):
        return  # the report says so when it asks for the comparison itself
    for number in range(len(explorer.workbench.examples(AboutModel()))):
        # Said as tokens: the other model may have other examples, and another tokenizer.
        ids = decode(explorer.ask("run", {"example": number}))["ids"]
        same: Parameters = {"model": other, "ids": ",".join(map(str, ids))}
        yield Recorded("run", same)
        yield Recorded("attention", same)


def _steps(explorer: Explorer) -> Iterator[Recorded]:
    """What the scrubber moves: the random probe at steps spread over the run."""
    steps = tuple(explorer.workbench.one(AboutModel()).snapshots)
    apart = max(1, -(-len(steps) // MOST_STEPS))
    examples = explorer.workbench.examples(AboutModel())
    probes = [number for number, example in enumerate(examples) if example.kind == "probe"]
    for step in steps[::apart]:
        for example in probes[:1]:
            yield Recorded("run", {"example": example, "step": step})
            yield Recorded("attention", {"example": example, "step": step})


def _beside_its_beginning(explorer: Explorer) -> Iterator[Recorded]:
    """What Compare opens with on a run: the model beside its first snapshot, on the first text."""
    bench = explorer.workbench
    first = min(bench.one(AboutModel()).snapshots)
    yield Recorded("compare", {"other": bench.served[0].name, "other_step": first})
    yield Recorded("run", {"example": 0, "step": first})
    yield Recorded("attention", {"example": 0, "step": first})
