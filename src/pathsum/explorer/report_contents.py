"""The questions whose answers a report holds.

The page runs a small model itself (see `answers.whole_model`): its weights then take the place of
all answers about its texts. For other models the choice suits a reader who sees the model for the
first time: every example text, every head, the strongest edges, every prediction of two texts, and
the most interesting ones of the others. `Contents` selects views and a position.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

from pathsum.base.errors import InputError, NotExactError
from pathsum.base.path import LABEL
from pathsum.claims.claim import Claim
from pathsum.claims.paper import STATEMENTS
from pathsum.explorer.answers.composition import all_composition
from pathsum.explorer.answers.prediction import LENS_POSITIONS, find_position
from pathsum.explorer.answers.text import rank_by_interest
from pathsum.explorer.answers.weights import why_not_in_page
from pathsum.explorer.answers.whole_model import picture_questions, whole_atlas
from pathsum.explorer.explorer import Explorer
from pathsum.explorer.params import ModelParams, PlainParams, answer_key, decode
from pathsum.explorer.story import Story
from pathsum.heads.kinds import MIXED, UNKNOWN

# Example texts of which every prediction is explained; of texts that were chosen, all are. Larger
# models explain the most interesting predictions only, each of which takes them seconds.
EXPLAINED_TEXTS, EXPLAINED_HEADS = 2, 64
# Predictions of another text: explained by paths, and as a graph.
PREDICTIONS, CIRCUITS = 12, 4
# Score tables are large: how many texts have them, and how long such a text may be.
SCORED_TEXTS, SCORED_TOKENS = 2, 128
# Edges that can be opened: the strongest few, and more of them above this z.
MIN_Z, MIN_EDGES, MAX_EDGES = 4.0, 4, 12
# Snapshots whose attention can be seen while scrubbing.
MAX_STEPS = 24
# Heads with a page: all of a small model, those with a known kind first.
MAX_HEADS = 32
# The largest model whose weights fit into a fragment, in parameters.
MAX_IN_FRAGMENT = 900_000
# The questions that the page answers by running the model.
COMPUTED = ["run", "attention", "scores", "why", "paths", "story", "without", "lens", "lens_parts"]
CLAIMS = tuple(one.id for _, one in STATEMENTS)


class ReportView(StrEnum):
    """A view of the page that a report may hold; the pages of heads belong to the atlas."""

    STORY = "story"
    TEXT = "text"
    WHY = "why"
    ATLAS = "atlas"
    COMPOSITION = "composition"
    PATHS = "paths"
    LENS = "lens"
    TRAINING = "training"
    PAPER = "paper"
    COMPARE = "compare"


# The views of one prediction of a text.
PREDICTION_VIEWS = (
    *(ReportView.STORY, ReportView.TEXT, ReportView.WHY, ReportView.PATHS, ReportView.LENS),
)
# The question without whose answer a view has nothing to show; most have its name.
ESSENTIAL = {view: str(view) for view in ReportView} | {ReportView.TEXT: "run"}


@dataclass(frozen=True)
class Contents:
    """The contents of a report: views, and the position that is explained if it is only one.

    Slim contents have no score tables and no pages of heads, which take most of the space.
    """

    views: tuple[ReportView, ...] = tuple(ReportView)
    position: int | None = None
    slim: bool = False

    @property
    def digits(self) -> int:
        """Digits of numbers: single precision has seven, and a page shows at most four."""
        return 4 if self.slim else 6

    def has(self, *views: ReportView) -> bool:
        """Whether it holds one of these views."""
        return any(view in self.views for view in views)


@dataclass(frozen=True)
class Recorded:
    """A question that a report answers."""

    name: str
    params: PlainParams


def recorded(explorer: Explorer, contents: Contents | None = None) -> Iterator[Recorded]:
    """Every question of a report once, those that open the page first."""
    seen: set[str] = set()
    contents = contents or Contents()
    runs = runs_in_page(explorer, contents)
    for one in _questions(explorer, contents, runs):
        key = answer_key(one.name, one.params)
        is_computed = runs and one.name in COMPUTED and not {"model", "step"} & one.params.keys()
        if key not in seen and not is_computed:
            seen.add(key)
            yield one


def runs_in_page(explorer: Explorer, contents: Contents) -> bool:
    """Whether the page of a report runs the model itself."""
    fits = not contents.slim or explorer.model.weights.n_parameters <= MAX_IN_FRAGMENT
    return fits and not why_not_in_page(explorer.model)


def _questions(explorer: Explorer, contents: Contents, runs: bool) -> Iterator[Recorded]:
    n_layers = explorer.model.config.n_layers
    yield Recorded("model", {})
    yield Recorded("vocabulary", {})
    yield from (Recorded("weights", {}),) if runs else _texts(explorer, contents)
    if contents.has(ReportView.ATLAS):
        yield Recorded("atlas", {})
        if n_layers and not contents.slim:
            yield from _heads(explorer)
    if contents.has(ReportView.COMPOSITION) and n_layers > 1:
        yield Recorded("composition", {})
        yield Recorded("atlas", {})  # the kinds of heads, which label the graph
        yield from _edges(explorer)
    if contents.has(ReportView.PAPER):
        yield Recorded("terms", {})
        yield Recorded("paper", {})
        for claim in CLAIMS:
            yield Recorded("claim", {"claim": claim})
        yield from claim_pictures(explorer)
    has_snapshots = bool(explorer.session.models[0].snapshots)
    if has_snapshots and contents.has(ReportView.TRAINING):
        yield Recorded("training", {})
        yield from _steps(explorer)
    if contents.has(ReportView.COMPARE):
        if has_snapshots:
            yield from _usual_snapshot(explorer)
        for other in explorer.session.models[1:]:
            yield from _compared(explorer, other.name)


def claim_pictures(explorer: Explorer) -> Iterator[Recorded]:
    """The questions that the pictures of claims are drawn from."""
    for name in CLAIMS:
        claim = explorer.answer("claim", {"claim": name})
        assert isinstance(claim, Claim)
        model = claim.outline.model
        for question, params in picture_questions(claim.picture):
            if model != explorer.name:
                yield Recorded(question, {"model": model, **params})
            else:
                # Of its own model a report holds the attention of all heads together.
                is_one_head = question == "attention"
                yield Recorded(question, {"example": params["example"]} if is_one_head else params)


def _texts(explorer: Explorer, contents: Contents) -> Iterator[Recorded]:
    if contents.has(*PREDICTION_VIEWS, ReportView.ATLAS):
        for number in range(len(explorer.examples)):
            yield from _text(explorer, contents, number)


def _text(explorer: Explorer, contents: Contents, number: int) -> Iterator[Recorded]:
    has_text = contents.has(ReportView.TEXT)
    explains = contents.has(*PREDICTION_VIEWS)
    patterns = has_text or (contents.has(ReportView.ATLAS) and not contents.slim)
    if not (explains or patterns):
        return
    text: PlainParams = {"example": number}
    yield Recorded("run", text)
    if patterns:
        yield Recorded("attention", text)
    if has_text:
        for weighting in ("information", "effect"):
            yield Recorded("attention", {**text, "weighting": weighting})
    if contents.has(ReportView.STORY, ReportView.TEXT):
        yield Recorded("story", text)
    if explains:
        is_complete = number in explained_texts(explorer)
        yield from _explained(explorer, contents, number, is_complete)
    if has_text and not contents.slim and number in _scored(explorer):
        for head in explorer.model.heads:
            yield Recorded("scores", {"example": number, "head": head.label})


def _explained(
    explorer: Explorer, contents: Contents, example: int, is_complete: bool
) -> Iterator[Recorded]:
    """The predictions of a text that are explained, by paths and as graphs."""
    ranked = _ranked(explorer, example)
    if contents.position is not None:
        paths = graphs = [position_from_end(len(ranked), contents.position)]
    elif is_complete:
        paths = graphs = list(range(len(ranked)))
    else:
        told = _story_of(explorer, example)
        always = {len(ranked) - 1} if told is None else {len(ranked) - 1, told.position}
        paths = sorted(always.union(ranked[: PREDICTIONS - 1]))
        graphs = sorted(always.union(ranked[: CIRCUITS - 1]))
    for position in paths if contents.has(ReportView.TEXT, ReportView.PATHS) else ():
        yield Recorded("paths", {"example": example, "position": position})
    if explorer.model.config.mlp != "none":
        for position in sorted({*paths, *graphs}):
            yield Recorded("sources", {"example": example, "position": position})
    for position in graphs:
        yield Recorded("why", {"example": example, "position": position})
    if contents.has(ReportView.LENS):
        yield from _lens(explorer, contents, example, len(ranked))


def _lens(explorer: Explorer, contents: Contents, example: int, length: int) -> Iterator[Recorded]:
    """Both lenses of a text, and the parts of all layers at the position of its story."""
    if contents.position is None:
        told, blocks = _story_of(explorer, example), range(0, length, LENS_POSITIONS)
        position = None if told is None else told.position
    else:
        position = position_from_end(length, contents.position)
        blocks = [position - position % LENS_POSITIONS]
    for start in blocks:
        block: PlainParams = {"example": example, "start": start} if start else {"example": example}
        yield Recorded("lens", block)
        yield Recorded("lens", {**block, "readout": "held"})
    if position is not None:
        for layer in range(explorer.model.config.n_layers + 1):
            at: PlainParams = {"example": example, "layer": layer, "position": position}
            yield Recorded("lens_parts", at)


def position_from_end(length: int, position: int) -> int:
    """A position of a text of `length` tokens; negative ones count from the end."""
    return find_position(length, position + length if -length <= position < 0 else position)


def explained_texts(explorer: Explorer) -> set[int]:
    """The texts of which every prediction is explained: the first, and the shortest others."""
    examples = explorer.examples
    if len(explorer.model.heads) > EXPLAINED_HEADS:
        return set()
    if explorer.session.texts:
        return set(range(len(examples)))
    shortest = sorted(range(1, len(examples)), key=lambda number: len(examples[number].ids))
    return {0, *shortest[: EXPLAINED_TEXTS - 1]}


def _story_of(explorer: Explorer, example: int) -> Story | None:
    """The story of a text; the reason why there is none is reported when it is asked for."""
    try:
        told = explorer.answer("story", {"example": example})
    except (InputError, NotExactError):
        return None
    assert isinstance(told, Story)
    return told


def _ranked(explorer: Explorer, example: int) -> list[int]:
    """All predictions of a text, the most interesting first."""
    run = decode(explorer.ask("run", {"example": example}))
    return [place for place, _ in rank_by_interest(run["ids"], run["next_prob"].tolist())]


def _scored(explorer: Explorer) -> list[int]:
    """The texts with score tables: the first short ones that are explained completely."""
    examples = explorer.examples
    numbers = sorted(explained_texts(explorer)) or range(len(examples))
    short = [number for number in numbers if len(examples[number].ids) <= SCORED_TOKENS]
    return short[:SCORED_TEXTS]


def _heads(explorer: Explorer) -> Iterator[Recorded]:
    if explorer.model.config.n_layers > 1:
        yield Recorded("composition", {})  # with whom each head works
    for head in _shown_heads(explorer):
        for name in ("head", "contexts", "trigrams", "ablation"):
            yield Recorded(name, {"head": head})
        # What cannot be answered is reported when the page itself is asked for.
        with suppress(InputError, NotExactError):
            page = decode(explorer.ask("head", {"head": head}))
            if page["copying"]["top_1"] is None:
                yield Recorded("copying", {"head": head})
            rows = (*page["ov_rows"], *page["qk_rows"])
            for token in dict.fromkeys(row["token"]["id"] for row in rows):
                yield Recorded("token", {"head": head, "token": token})


def _shown_heads(explorer: Explorer) -> list[str]:
    """The heads that have a page: if not all of them, those of a known kind first."""
    every = [str(head.label) for head in explorer.model.heads]
    if len(every) <= MAX_HEADS:
        return every
    try:
        found = whole_atlas(explorer.session, ModelParams())
    except (InputError, NotExactError):
        return every[:MAX_HEADS]
    named = sorted(found.heads, key=lambda entry: entry.kind in (UNKNOWN, MIXED))
    return [str(entry.head) for entry in named[:MAX_HEADS]]


def _edges(explorer: Explorer) -> Iterator[Recorded]:
    yield Recorded("embed_and_logit_edges", {})
    # What cannot be answered is reported when composition itself is asked for.
    with suppress(NotExactError):
        ranked = all_composition(explorer.session, ModelParams()).edges(k=MAX_EDGES).edges
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
    for number in range(len(explorer.examples)):
        yield from _attended({"example": number})
        # By token ids: the other model may have other examples and another tokenizer.
        ids = decode(explorer.ask("run", {"example": number}))["ids"]
        yield from _attended({"model": other, "ids": ",".join(map(str, ids))})


def _steps(explorer: Explorer) -> Iterator[Recorded]:
    """The texts of the scrubber at steps spread over the run: random repeats, and the first text.

    The first text is recorded up to the prediction of its story and the token after it, with the
    attention of the heads that the story names.
    """
    steps = tuple(explorer.session.models[0].snapshots)
    apart = max(1, -(-len(steps) // MAX_STEPS))
    examples = explorer.examples
    probes = [number for number, example in enumerate(examples) if example.kind == "probe"]
    probe: PlainParams = {"example": (probes or [0])[0]}
    told = _story_of(explorer, 0)
    # The last step is recorded even if the others are thinned out.
    for step in sorted({*steps[::apart], *steps[-1:]}):
        yield from _attended({**probe, "step": step})
        if told is not None:
            ids = ",".join(map(str, examples[0].ids[: told.position + 2]))
            yield Recorded("run", {"ids": ids, "step": step})
            for head in _named_heads(told):
                yield Recorded("attention", {"ids": ids, "head": head, "step": step})


def _named_heads(story: Story) -> list[str]:
    """The heads that a story names: those that write, and those that they read."""
    writers = [str(reason.edge).partition("@")[0] for reason in story.reasons]
    named = {*story.heads, *(name for name in writers if LABEL.fullmatch(name))}
    return sorted(map(str, named | {one for one in (story.head, story.writer) if one is not None}))


def _usual_snapshot(explorer: Explorer) -> Iterator[Recorded]:
    """The opening state of the Compare view on a run: its last snapshot but one, on an example."""
    step = sorted(explorer.session.models[0].snapshots)[-2:][0]
    yield Recorded("compare", {"other": explorer.name, "other_step": step})
    yield from _attended({"example": 0})
    yield from _attended({"example": 0, "step": step})


def _attended(text: PlainParams) -> tuple[Recorded, Recorded]:
    """The run of a text, and the attention of all heads."""
    return Recorded("run", text), Recorded("attention", text)
