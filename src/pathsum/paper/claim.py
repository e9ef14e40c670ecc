"""What a claim is: its words, its rule, how it is measured, and the picture that shows it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pathsum.base import Record
from pathsum.base.errors import InputError, NotExactError
from pathsum.base.estimate import Estimate
from pathsum.explorer.open_models import bundled_config
from pathsum.explorer.params import ModelParams
from pathsum.explorer.workbench import Workbench
from pathsum.model import Model
from pathsum.paper.picture import PatternPicture, Picture
from pathsum.paper.rule import Rule, Verdict
from pathsum.paper.seeds import OverSeeds, over_seeds
from pathsum.sources.named import BUNDLED, bundled_names


@dataclass(frozen=True)
class Outline:
    """A claim of the paper before it is measured here.

    `paper_value` is what the paper gives, "" if nothing, and `paper_number` the same as a number
    that the rule applies to. `model` is the one that it is measured on, "" if none fits (`note`).
    """

    id: str
    section: str
    title: str
    text: str
    rule: Rule
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

    `measured` says the value in words, `view` is the URL state of the view that shows it. A claim
    that does not apply has no value, and `note` says why.
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
    """What measuring a claim gave: the number that its rule judges, in words, and a picture."""

    value: Estimate
    measured: str
    view: str = ""
    picture: Picture | None = None
    note: str = ""


@dataclass(frozen=True, eq=False)
class Subject:
    """The model that a claim is measured on.

    `over_bigram` is its loss on held-out text minus that of the bigram table of its training text,
    where that is known; by default it is read from the model's card.
    """

    bench: Workbench
    params: ModelParams
    over_bigram: Estimate | None = None

    @property
    def model(self) -> Model:
        """The model itself."""
        return self.bench.model(self.params)

    @property
    def name(self) -> str:
        """Its name on the page."""
        return self.bench.open_model(self.params).name

    @property
    def folder(self) -> Path:
        """Where its files are, if it has any."""
        path = self.bench.open_model(self.params).path
        return BUNDLED / path if path in bundled_names() else Path(path)

    def link(self, view: str, **state: str | int) -> str:
        """The URL state of a view of this model."""
        first = self.bench.models[0].name
        model = {} if self.name == first else {"model": self.name}
        step = {} if self.params.step is None else {"step": self.params.step}
        query = "&".join(f"{name}={value}" for name, value in (model | step | state).items())
        return f"#/{view}?{query}" if query else f"#/{view}"

    def probe_example(self) -> int | None:
        """The index of the first example of repeated random tokens; None if the page has none."""
        kinds = [example.kind for example in self.bench.examples(self.params)]
        return kinds.index("probe") if "probe" in kinds else None

    def probe_link(self, head: str = "", near_end: int | None = None) -> str:
        """The text view on repeated random tokens, at a head and so many tokens before the end."""
        example = self.probe_example()
        if example is None:
            return self.link("text", **({"head": head} if head else {}))
        state: dict[str, str | int] = {"example": example} | ({"head": head} if head else {})
        if near_end is not None:
            length = len(self.bench.examples(self.params)[example].ids)
            state["position"] = max(0, length - near_end)
        return self.link("text", **state)

    def pattern_picture(self, head: str) -> PatternPicture | None:
        """A head's attention on repeated random tokens."""
        example = self.probe_example()
        return None if example is None else PatternPicture(head, example)


@dataclass(frozen=True)
class Statement:
    """A claim: its words, the rule that decides it, and how to measure the number it judges."""

    id: str
    title: str
    text: str
    rule: Rule
    measure: Callable[[Subject], Measurement]
    paper_value: str = ""
    paper_number: float | None = None


@dataclass(frozen=True)
class Section:
    """Claims about models of certain depths; `depths` says which, in words."""

    title: str
    statements: tuple[Statement, ...]
    fits: Callable[[int], bool]
    depths: str


def outline(
    section: Section, statement: Statement, bench: Workbench, params: ModelParams
) -> Outline:
    """A claim in words, and the model it would be measured on: this one, or a bundled one."""
    where = _fitting(section, bench, params)
    layers = _layers(bench, params)
    note = ""
    if where is None:
        note = f"This claim is about models with {section.depths}, and this one has {layers}."
    else:
        layers = _layers(bench, where)
    return Outline(
        id=statement.id,
        section=section.title,
        title=statement.title,
        text=statement.text,
        rule=statement.rule,
        rule_text=str(statement.rule),
        paper_value=statement.paper_value,
        paper_number=statement.paper_number,
        seeds=seeds_of(statement, layers),
        model="" if where is None else where.model or bench.models[0].name,
        step=None if where is None else where.step,
        note=note,
    )


def measure(
    section: Section,
    statement: Statement,
    bench: Workbench,
    params: ModelParams,
    over_bigram: Estimate | None = None,
) -> Claim:
    """Measure a claim on this model, or on a bundled one of the right depth."""
    about = outline(section, statement, bench, params)
    where = _fitting(section, bench, params)
    if where is None:
        return _not_applicable(about, about.note, Subject(bench, params))
    subject = Subject(bench, where, over_bigram)
    try:
        found = statement.measure(subject)
        verdict = statement.rule.verdict(found.value.value)
    except (InputError, NotExactError) as error:
        return _not_applicable(about, str(error), subject)
    return Claim(
        outline=about,
        verdict=verdict,
        value=statement.rule.bounded(found.value),
        measured=found.measured,
        note=found.note,
        view=found.view or subject.link("text"),
        picture=found.picture,
    )


def _not_applicable(about: Outline, note: str, subject: Subject) -> Claim:
    return Claim(about, "not applicable", None, "", note, subject.link("text"), None)


def _fitting(section: Section, bench: Workbench, params: ModelParams) -> ModelParams | None:
    """This model if the section is about its depth, else the first bundled one that fits."""
    bundled = (ModelParams(model=name) for name in bundled_names())
    return next((one for one in (params, *bundled) if section.fits(_layers(bench, one))), None)


def _layers(bench: Workbench, params: ModelParams) -> int:
    """How many layers a model has; a bundled one is not loaded for this."""
    name = params.model
    if name in bundled_names() and name not in {one.name for one in bench.models}:
        return bundled_config(str(name))["n_layers"]
    return bench.model(params).config.n_layers


def seeds_of(statement: Statement, layers: int | None = None) -> OverSeeds:
    """Over seeds of this depth, else of the deepest models that the claim was measured on."""
    if layers is not None:
        same = over_seeds(statement.id, statement.rule, layers)
        if same.seeds:
            return same
    every = over_seeds(statement.id, statement.rule)
    deepest = max((one.layers for one in every.seeds), default=None)
    return every if deepest is None else over_seeds(statement.id, statement.rule, deepest)


def as_estimate(score: Estimate) -> Estimate:
    """A head's score without what only heads have."""
    return Estimate(
        score.value,
        score.stderr,
        score.low,
        score.high,
        score.null,
        score.p,
        score.draws,
    )
