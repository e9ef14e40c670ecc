"""Claims of the paper: statement, rule, measurement and picture; measurement on a model.

A claim is one function, whose docstring has the claim's title and text; rules.toml has its rule:

    @statement("two-k")
    def strongest_edge(subject: Subject) -> Measurement: …

Its picture is plain data; the report and the browser draw it by its `type`.
"""

import inspect
import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, TypeAlias, TypeVar, runtime_checkable

from pathsum.base import Column, Progress, Record, Table, token_column
from pathsum.base.errors import InputError, NotExactError
from pathsum.base.estimate import Estimate
from pathsum.base.table import rows_table
from pathsum.claims.examples import Example
from pathsum.claims.verdict import ClaimRule, OverSeeds, Verdict, over_seeds
from pathsum.model import Model
from pathsum.model.storage import CONFIG
from pathsum.sources.named import BUNDLED, bundled_names


@dataclass(frozen=True)
class Bar:
    """A bar with its interval and null; `link` leads to a view of it."""

    name: Annotated[str, token_column("")]
    value: Annotated[float, Column("value", ".3g")]
    low: Annotated[float | None, Column("low", ".3g")] = None
    high: Annotated[float | None, Column("high", ".3g")] = None
    null: Annotated[float | None, Column("null", ".3g")] = None
    link: str = ""

    @classmethod
    def of(cls, name: str, value: Estimate, link: str = "") -> "Bar":
        """From an estimate."""
        return cls(name, value.value, value.low, value.high, value.null, link)


@dataclass(frozen=True)
class BarsPicture:
    """Named values as bars; `threshold` is the value at which the rule's verdict changes."""

    title: str
    axis: str
    bars: tuple[Bar, ...]
    threshold: float | None = None
    type: Literal["bars"] = "bars"

    def to_table(self) -> Table:
        """The bars as numbers."""
        return rows_table(self.bars, self.title, self.axis)


@dataclass(frozen=True)
class Point:
    """A named point of a group."""

    name: str
    x: float
    y: float
    group: str
    link: str = ""


@dataclass(frozen=True)
class PointsPicture:
    """Points by two numbers; `guide` draws x = y, or x = 0 and y = 0."""

    title: str
    x: str
    y: str
    points: tuple[Point, ...]
    guide: Literal["diagonal", "axes"]
    type: Literal["points"] = "points"


@dataclass(frozen=True)
class Line:
    """A named curve."""

    name: str
    values: tuple[float, ...]


@dataclass(frozen=True)
class LinesPicture:
    """Curves over positions 0, 1, 2 …; `mark` is a position with the label `mark_name`."""

    title: str
    x: str
    y: str
    lines: tuple[Line, ...]
    mark: int | None
    mark_name: str
    type: Literal["lines"] = "lines"


@dataclass(frozen=True)
class Stack:
    """A row of parts that add up."""

    name: str
    parts: tuple[int, ...]


@dataclass(frozen=True)
class StacksPicture:
    """Rows whose parts add up to the same total."""

    title: str
    axis: str
    parts: tuple[str, ...]
    rows: tuple[Stack, ...]
    type: Literal["stacks"] = "stacks"


@dataclass(frozen=True)
class PatternPicture:
    """The attention pattern of a head on an example."""

    head: str
    example: int
    type: Literal["pattern"] = "pattern"


@dataclass(frozen=True)
class LossPicture:
    """The loss at every position of an example."""

    example: int
    type: Literal["losses"] = "losses"


@dataclass(frozen=True)
class OffsetsPicture:
    """A head's scores by distance, from positions alone."""

    head: str
    type: Literal["offsets"] = "offsets"


@dataclass(frozen=True)
class GraphPicture:
    """The composition graph."""

    type: Literal["graph"] = "graph"


Picture: TypeAlias = (
    BarsPicture
    | PointsPicture
    | LinesPicture
    | StacksPicture
    | PatternPicture
    | LossPicture
    | OffsetsPicture
    | GraphPicture
)


T = TypeVar("T")


@dataclass(frozen=True)
class Outline:
    """A claim of the paper before its measurement on a model.

    `paper_value` is the value in the paper, "" if it has none, and `paper_number` the same as a
    number for the rule. `model` is the model that the claim is measured on, "" if none fits
    (`note`).
    """

    id: str
    section: str
    title: str
    text: str
    rule: ClaimRule
    rule_text: str
    paper_value: str
    paper_number: float | None
    seeds: OverSeeds
    model: str
    step: int | None
    note: str


@dataclass(frozen=True, eq=False)
class Claim(Record, kind="page-claim"):
    """A claim measured on a model: its value with interval, the verdict by its rule, its picture.

    `measured` is the value in words, `view` a link to the explorer's view of it. A claim that does
    not apply has no value, and `note` is the reason.
    """

    outline: Outline
    verdict: Verdict
    value: Estimate | None
    measured: str
    note: str
    view: str
    picture: Picture | None


@dataclass(frozen=True)
class Measurement:
    """The measurement of a claim: the number for its rule, in words, and a picture."""

    value: Estimate
    measured: str
    view: str = ""
    picture: Picture | None = None
    note: str = ""


@runtime_checkable
class Results(Protocol):
    """Computes a named result of a model once, for all claims about the model."""

    def __call__(self, name: str, compute: Callable[[Model, Progress], T], /) -> T:
        """The result of this name, computed if it is new."""
        ...


@dataclass(frozen=True, eq=False)
class Subject:
    """A model to measure claims on, under a name.

    `examples` are its example texts, `folder` contains its card, if it has one. `is_own` is False
    for a bundled model that stands in for the user's. `over_bigram` is its loss on held-out text
    minus the loss of the bigram table of its training text, by default from its card. `address` is
    the state of the explorer that selects the model: its name and step.
    """

    model: Model
    name: str
    examples: tuple[Example, ...]
    result: Results
    step: int | None = None
    folder: Path | None = None
    is_own: bool = True
    over_bigram: Estimate | None = None
    address: Mapping[str, str | int] = field(default_factory=dict[str, str | int])

    def link(self, view: str, **state: str | int) -> str:
        """A link to a view of this model in the explorer.

        >>> from pathsum.claims.paper import open_subject
        >>> open_subject("hand-built-induction").link("text", head="L1H0", example=2)
        '#/text?head=L1H0&example=2'
        """
        query = "&".join(f"{name}={value}" for name, value in {**self.address, **state}.items())
        return f"#/{view}?{query}" if query else f"#/{view}"

    def probe_example(self) -> int | None:
        """The index of the first example of repeated random tokens, if there is one."""
        kinds = [example.kind for example in self.examples]
        return kinds.index("probe") if "probe" in kinds else None

    def probe_link(self, head: str = "", near_end: int | None = None) -> str:
        """The text view on repeated random tokens, at a head, `near_end` tokens before the end."""
        example = self.probe_example()
        state: dict[str, str | int] = {} if example is None else {"example": example}
        state |= {"head": head} if head else {}
        if near_end is not None and example is not None:
            state["position"] = max(0, len(self.examples[example].ids) - near_end)
        return self.link("text", **state)

    def pattern_picture(self, head: str) -> PatternPicture | None:
        """A head's attention on repeated random tokens."""
        example = self.probe_example()
        return None if example is None else PatternPicture(head, example)


def shared_results(model: Model, progress: Progress) -> Results:
    """`Results` of one model in memory."""
    results: dict[str, Any] = {}

    def result(name: str, compute: Callable[[Model, Progress], T], /) -> T:
        if name not in results:
            results[name] = compute(model, progress)
        return results[name]

    return result


@dataclass(frozen=True)
class Statement:
    """A claim: its statement, its rule, and the function that measures the rule's number."""

    id: str
    title: str
    text: str
    rule: ClaimRule
    measure: Callable[[Subject], Measurement] = field(repr=False)
    paper_value: str = ""
    paper_number: float | None = None

    def seeds(self, layers: int | None = None) -> OverSeeds:
        """Values over seeds of this depth, else of the deepest models with measurements."""
        depths = {value.layers for value in over_seeds(self.id, self.rule).seeds}
        measured = layers if layers in depths else max(depths, default=None)
        return over_seeds(self.id, self.rule, measured)


_RULES = tomllib.loads((Path(__file__).parent / "rules.toml").read_text(encoding="utf-8"))


def statement(name: str) -> Callable[[Callable[[Subject], Measurement]], Statement]:
    """Make the decorated function the measurement of a claim of rules.toml.

    Its docstring has the title and the text.
    """
    rule = dict(_RULES[name])
    paper = {key: rule.pop(key) for key in ("paper_value", "paper_number") if key in rule}

    def decorate(measure: Callable[[Subject], Measurement]) -> Statement:
        title, _, text = inspect.cleandoc(measure.__doc__ or "").partition("\n\n")
        words = " ".join(text.split())
        return Statement(name, title, words, ClaimRule(**rule), measure, **paper)

    return decorate


@dataclass(frozen=True)
class Section:
    """Claims about models of certain depths; `depths` names them in words."""

    title: str
    statements: tuple[Statement, ...]
    fits: Callable[[int], bool]
    depths: str

    def stand_in(self, layers: int) -> str | None:
        """The model to measure: "" if a model with so many layers fits, else a bundled model."""
        if self.fits(layers):
            return ""
        return next((name for name in bundled_names() if self.fits(_bundled_layers(name))), None)


def _bundled_layers(name: str) -> int:
    """The number of layers of a bundled model, from its config file."""
    return json.loads((BUNDLED / name / CONFIG).read_text(encoding="utf-8"))["config"]["n_layers"]


def outline(section: Section, claim: Statement, subject: Subject) -> Outline:
    """A claim in words, and the model that it is measured on: this or a bundled model."""
    layers, model, step, note = subject.model.config.n_layers, subject.name, subject.step, ""
    bundled = section.stand_in(layers)
    if bundled is None:
        model, step = "", None
        note = f"This claim is about models with {section.depths}, and this one has {layers}."
    elif bundled:
        layers, model, step = _bundled_layers(bundled), bundled, None
    words = (claim.id, section.title, claim.title, claim.text, claim.rule, str(claim.rule))
    paper = (claim.paper_value, claim.paper_number)
    return Outline(*words, *paper, claim.seeds(layers), model, step, note)


def measure(
    section: Section, claim: Statement, subject: Subject, bundled: Callable[[str], Subject]
) -> Claim:
    """Measure a claim on this model, or on a bundled model of the right depth."""
    about = outline(section, claim, subject)
    if about.model and not section.fits(subject.model.config.n_layers):
        subject = bundled(about.model)
    try:
        if not about.model:
            raise InputError(about.note)
        result = claim.measure(subject)
        verdict = claim.rule.verdict(result.value.value)
    except (InputError, NotExactError) as error:
        return Claim(about, "not applicable", None, "", str(error), subject.link("text"), None)
    value, view = claim.rule.bounded(result.value), result.view or subject.link("text")
    return Claim(about, verdict, value, result.measured, result.note, view, result.picture)


def as_estimate(score: Estimate) -> Estimate:
    """A head's score as a plain estimate."""
    return Estimate(**{f.name: getattr(score, f.name) for f in fields(Estimate)})
