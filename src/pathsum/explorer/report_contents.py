"""The questions that a report answers.

A page can run a small model itself (see `answers.weights`): then the model's weights replace all
answers about texts. For other models, a report covers every example text, every head, the strongest
edges, every prediction of two texts, and the most interesting predictions of the others. `Contents`
selects views and a position.
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

# The number of example texts with every prediction explained. The user's texts are all explained;
# models with more heads, which take seconds per prediction, explain only the most interesting ones.
EXPLAINED_TEXTS, EXPLAINED_HEADS = 2, 64
# The number of predictions of other texts that are explained by paths, and as a graph.
PREDICTIONS, CIRCUITS = 12, 4
# Score tables are large: the number of texts that have them, and the longest such text.
SCORED_TEXTS, SCORED_TOKENS = 2, 128
# Edges with a page: at least MIN_EDGES, and up to MAX_EDGES above this z.
MIN_Z, MIN_EDGES, MAX_EDGES = 4.0, 4, 12
# The number of snapshots with attention patterns.
MAX_STEPS = 24
# The number of heads with a page; heads with a known kind come first.
MAX_HEADS = 32
# The largest model whose weights fit into a fragment, in parameters.
MAX_IN_FRAGMENT = 900_000
# The questions that the page answers by running the model.
COMPUTED = ["run", "attention", "scores", "why", "paths", "story", "without", "lens", "lens_parts"]
CLAIMS = tuple(one.id for _, one in STATEMENTS)


class ReportView(StrEnum):
    """A view of the page that a report can include; the pages of heads belong to the atlas."""

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
# The question without whose answer a view has no content, which mostly has the same name.
ESSENTIAL = {view: str(view) for view in ReportView} | {ReportView.TEXT: "run"}


@dataclass(frozen=True)
class Contents:
    """The contents of a report: views, and the only position to explain, if any.

    Slim contents have no score tables and no pages of heads, which take most of the space.
    """

    views: tuple[ReportView, ...] = tuple(ReportView)
    position: int | None = None
    slim: bool = False

    @property
    def digits(self) -> int:
        """Significant digits of numbers: single precision has seven, and a page shows four."""
        return 4 if self.slim else 6

    def has(self, *views: ReportView) -> bool:
        """Whether the report includes one of these views."""
        return any(view in self.views for view in views)


@dataclass(frozen=True)
class ReportQuestion:
    """A question that a report answers."""

    name: str
    params: PlainParams


def report_questions(
    explorer: Explorer, contents: Contents | None = None
) -> Iterator[ReportQuestion]:
    """The questions of a report, each once, in the order in which the page needs them."""
    keys: set[str] = set()
    contents = contents or Contents()
    is_run = runs_in_page(explorer, contents)
    for question in _questions(explorer, contents, is_run):
        key = answer_key(question.name, question.params)
        is_computed = (
            is_run and question.name in COMPUTED and not {"model", "step"} & question.params.keys()
        )
        if key not in keys and not is_computed:
            keys.add(key)
            yield question


def runs_in_page(explorer: Explorer, contents: Contents) -> bool:
    """Whether the page of a report runs the model itself."""
    fits = not contents.slim or explorer.model.weights.n_parameters <= MAX_IN_FRAGMENT
    return fits and not why_not_in_page(explorer.model)


def _questions(explorer: Explorer, contents: Contents, runs: bool) -> Iterator[ReportQuestion]:
    n_layers = explorer.model.config.n_layers
    yield ReportQuestion("model", {})
    yield ReportQuestion("vocabulary", {})
    yield from (ReportQuestion("weights", {}),) if runs else _texts(explorer, contents)
    if contents.has(ReportView.ATLAS):
        yield ReportQuestion("atlas", {})
        if n_layers and not contents.slim:
            yield from _heads(explorer)
    if contents.has(ReportView.COMPOSITION) and n_layers > 1:
        yield ReportQuestion("composition", {})
        yield ReportQuestion("atlas", {})  # the kinds of heads, which label the graph
        yield from _edges(explorer)
    if contents.has(ReportView.PAPER):
        yield ReportQuestion("terms", {})
        yield ReportQuestion("paper", {})
        for claim in CLAIMS:
            yield ReportQuestion("claim", {"claim": claim})
        yield from claim_pictures(explorer)
    has_snapshots = bool(explorer.session.models[0].snapshots)
    if has_snapshots and contents.has(ReportView.TRAINING):
        yield ReportQuestion("training", {})
        yield from _steps(explorer)
    if contents.has(ReportView.COMPARE):
        if has_snapshots:
            yield from _default_comparison(explorer)
        for other in explorer.session.models[1:]:
            yield from _comparison(explorer, other.name)


def claim_pictures(explorer: Explorer) -> Iterator[ReportQuestion]:
    """The questions whose answers the pictures of claims show."""
    for name in CLAIMS:
        claim = explorer.answer("claim", {"claim": name})
        assert isinstance(claim, Claim)
        model = claim.outline.model
        for question, params in picture_questions(claim.picture):
            if model != explorer.name:
                yield ReportQuestion(question, {"model": model, **params})
            else:
                # For its first model, a report contains the attention of all heads together.
                is_one_head = question == "attention"
                yield ReportQuestion(
                    question, {"example": params["example"]} if is_one_head else params
                )


def _texts(explorer: Explorer, contents: Contents) -> Iterator[ReportQuestion]:
    if contents.has(*PREDICTION_VIEWS, ReportView.ATLAS):
        for number in range(len(explorer.examples)):
            yield from _text(explorer, contents, number)


def _text(explorer: Explorer, contents: Contents, number: int) -> Iterator[ReportQuestion]:
    has_text = contents.has(ReportView.TEXT)
    explains = contents.has(*PREDICTION_VIEWS)
    patterns = has_text or (contents.has(ReportView.ATLAS) and not contents.slim)
    if not (explains or patterns):
        return
    text: PlainParams = {"example": number}
    yield ReportQuestion("run", text)
    if patterns:
        yield ReportQuestion("attention", text)
    if has_text:
        for weighting in ("information", "effect"):
            yield ReportQuestion("attention", {**text, "weighting": weighting})
    if contents.has(ReportView.STORY, ReportView.TEXT):
        yield ReportQuestion("story", text)
    if explains:
        is_complete = number in explained_texts(explorer)
        yield from _predictions(explorer, contents, number, is_complete)
    if has_text and not contents.slim and number in _texts_with_scores(explorer):
        for head in explorer.model.heads:
            yield ReportQuestion("scores", {"example": number, "head": head.label})


def _predictions(
    explorer: Explorer, contents: Contents, example: int, is_complete: bool
) -> Iterator[ReportQuestion]:
    """The explained predictions of a text, by paths and as graphs."""
    ranked = _ranked(explorer, example)
    if contents.position is not None:
        paths = graphs = [position_from_end(len(ranked), contents.position)]
    elif is_complete:
        paths = graphs = list(range(len(ranked)))
    else:
        story = _story_of(explorer, example)
        always = {len(ranked) - 1} if story is None else {len(ranked) - 1, story.position}
        paths = sorted(always.union(ranked[: PREDICTIONS - 1]))
        graphs = sorted(always.union(ranked[: CIRCUITS - 1]))
    for position in paths if contents.has(ReportView.TEXT, ReportView.PATHS) else ():
        yield ReportQuestion("paths", {"example": example, "position": position})
    if explorer.model.config.mlp != "none":
        for position in sorted({*paths, *graphs}):
            yield ReportQuestion("sources", {"example": example, "position": position})
    for position in graphs:
        yield ReportQuestion("why", {"example": example, "position": position})
    if contents.has(ReportView.LENS):
        yield from _lens(explorer, contents, example, len(ranked))


def _lens(
    explorer: Explorer, contents: Contents, example: int, length: int
) -> Iterator[ReportQuestion]:
    """Both lenses of a text, and the parts of all layers at the position of its story."""
    if contents.position is None:
        story, blocks = _story_of(explorer, example), range(0, length, LENS_POSITIONS)
        position = None if story is None else story.position
    else:
        position = position_from_end(length, contents.position)
        blocks = [position - position % LENS_POSITIONS]
    for start in blocks:
        block: PlainParams = {"example": example, "start": start} if start else {"example": example}
        yield ReportQuestion("lens", block)
        yield ReportQuestion("lens", {**block, "readout": "held"})
    if position is not None:
        for layer in range(explorer.model.config.n_layers + 1):
            at: PlainParams = {"example": example, "layer": layer, "position": position}
            yield ReportQuestion("lens_parts", at)


def position_from_end(length: int, position: int) -> int:
    """A position of a text of `length` tokens; negative ones count from the end."""
    return find_position(length, position + length if -length <= position < 0 else position)


def explained_texts(explorer: Explorer) -> set[int]:
    """The texts with every prediction explained: the first, and the shortest others."""
    examples = explorer.examples
    if len(explorer.model.heads) > EXPLAINED_HEADS:
        return set()
    if explorer.session.texts:
        return set(range(len(examples)))
    shortest = sorted(range(1, len(examples)), key=lambda number: len(examples[number].ids))
    return {0, *shortest[: EXPLAINED_TEXTS - 1]}


def _story_of(explorer: Explorer, example: int) -> Story | None:
    """The story of a text; None if it raises an error, which the question `story` reports."""
    try:
        story = explorer.answer("story", {"example": example})
    except (InputError, NotExactError):
        return None
    assert isinstance(story, Story)
    return story


def _ranked(explorer: Explorer, example: int) -> list[int]:
    """All predictions of a text, the most interesting first."""
    run = decode(explorer.ask("run", {"example": example}))
    return [position for position, _ in rank_by_interest(run["ids"], run["next_prob"].tolist())]


def _texts_with_scores(explorer: Explorer) -> list[int]:
    """The texts with score tables: the first short texts with every prediction explained."""
    examples = explorer.examples
    numbers = sorted(explained_texts(explorer)) or range(len(examples))
    short = [number for number in numbers if len(examples[number].ids) <= SCORED_TOKENS]
    return short[:SCORED_TEXTS]


def _heads(explorer: Explorer) -> Iterator[ReportQuestion]:
    if explorer.model.config.n_layers > 1:
        yield ReportQuestion("composition", {})  # the partners of each head
    for head in _heads_with_page(explorer):
        for name in ("head", "contexts", "trigrams", "ablation"):
            yield ReportQuestion(name, {"head": head})
        # The question `head` itself reports this error.
        with suppress(InputError, NotExactError):
            page = decode(explorer.ask("head", {"head": head}))
            if page["copying"]["top_1"] is None:
                yield ReportQuestion("copying", {"head": head})
            rows = (*page["ov_rows"], *page["qk_rows"])
            for token in dict.fromkeys(row["token"]["id"] for row in rows):
                yield ReportQuestion("token", {"head": head, "token": token})


def _heads_with_page(explorer: Explorer) -> list[str]:
    """The heads with a page; if not all of them, heads of a known kind come first."""
    labels = [str(head.label) for head in explorer.model.heads]
    if len(labels) <= MAX_HEADS:
        return labels
    try:
        atlas = whole_atlas(explorer.session, ModelParams())
    except (InputError, NotExactError):
        return labels[:MAX_HEADS]
    entries = sorted(atlas.heads, key=lambda entry: entry.kind in (UNKNOWN, MIXED))
    return [str(entry.head) for entry in entries[:MAX_HEADS]]


def _edges(explorer: Explorer) -> Iterator[ReportQuestion]:
    yield ReportQuestion("embed_and_logit_edges", {})
    # The question `composition` itself reports this error.
    with suppress(NotExactError):
        ranked = all_composition(explorer.session, ModelParams()).edges(k=MAX_EDGES).edges
        for rank, edge in enumerate(ranked):
            if rank < MIN_EDGES or edge.z >= MIN_Z:
                yield ReportQuestion("edge", {"edge": str(edge.edge)})


def _comparison(explorer: Explorer, other: str) -> Iterator[ReportQuestion]:
    """The comparison with another model: aligned heads, and runs of the same tokens."""
    yield ReportQuestion("model", {"model": other})
    yield ReportQuestion("compare", {"other": other})
    try:
        explorer.ask("compare", {"other": other})
    except (InputError, NotExactError):
        return  # the question `compare` itself reports this error
    for number in range(len(explorer.examples)):
        yield from _run_and_attention({"example": number})
        # By token ids: the other model may have other examples and another tokenizer.
        ids = decode(explorer.ask("run", {"example": number}))["ids"]
        yield from _run_and_attention({"model": other, "ids": ",".join(map(str, ids))})


def _steps(explorer: Explorer) -> Iterator[ReportQuestion]:
    """Runs at steps spread over the training: of random repeats, and of the first text.

    The first text ends one token after the prediction of its story. Its attention is included for
    the heads in the story.
    """
    steps = tuple(explorer.session.models[0].snapshots)
    stride = max(1, -(-len(steps) // MAX_STEPS))
    examples = explorer.examples
    probes = [number for number, example in enumerate(examples) if example.kind == "probe"]
    probe: PlainParams = {"example": (probes or [0])[0]}
    story = _story_of(explorer, 0)
    # The last step is always included.
    for step in sorted({*steps[::stride], *steps[-1:]}):
        yield from _run_and_attention({**probe, "step": step})
        if story is not None:
            ids = ",".join(map(str, examples[0].ids[: story.position + 2]))
            yield ReportQuestion("run", {"ids": ids, "step": step})
            for head in _story_heads(story):
                yield ReportQuestion("attention", {"ids": ids, "head": head, "step": step})


def _story_heads(story: Story) -> list[str]:
    """The heads in a story: those that write the logit, and those that they read."""
    writers = [str(reason.edge).partition("@")[0] for reason in story.reasons]
    heads = {*story.heads, *(name for name in writers if LABEL.fullmatch(name))}
    return sorted(
        map(str, heads | {each for each in (story.head, story.writer) if each is not None})
    )


def _default_comparison(explorer: Explorer) -> Iterator[ReportQuestion]:
    """The default of the Compare view for a run: its second-to-last snapshot on an example."""
    step = sorted(explorer.session.models[0].snapshots)[-2:][0]
    yield ReportQuestion("compare", {"other": explorer.name, "other_step": step})
    yield from _run_and_attention({"example": 0})
    yield from _run_and_attention({"example": 0, "step": step})


def _run_and_attention(text: PlainParams) -> tuple[ReportQuestion, ReportQuestion]:
    """The run of a text, and the attention of all heads."""
    return ReportQuestion("run", text), ReportQuestion("attention", text)
