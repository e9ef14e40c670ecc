"""What a claim is, and how it is measured."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pathsum.errors import InputError, NotExactError
from pathsum.explorer.numbers import finite
from pathsum.explorer.parameters import AboutModel
from pathsum.explorer.workbench import Workbench
from pathsum.model import Model
from pathsum.paths import Estimate
from pathsum.sources.named import bundled_names

Verdict: TypeAlias = Literal["holds", "does not hold", "not measurable here"]
_VERDICTS: dict[bool, Verdict] = {True: "holds", False: "does not hold"}


@dataclass(frozen=True)
class Claim:
    """A claim of the paper in two sentences, the view that shows it, and what was measured.

    `view` is the URL state that shows it; `papers` is the paper's own value, "" where there is
    none; `model` names the model that it was measured on.
    """

    id: str
    section: str
    title: str
    text: str
    view: str
    measured: str
    low: float | None
    high: float | None
    papers: str
    holds: Verdict
    note: str
    model: str


@dataclass(frozen=True)
class Measured:
    """What came of measuring a claim; `view` is left out where it follows from the claim alone."""

    measured: str
    holds: bool
    interval: Estimate | None = None
    view: str = ""
    note: str = ""


@dataclass(frozen=True, eq=False)
class Subject:
    """The model that a claim is measured on."""

    bench: Workbench
    asked: AboutModel

    @property
    def model(self) -> Model:
        """The model itself."""
        return self.bench.model(self.asked)

    @property
    def name(self) -> str:
        """Its name on the page."""
        return self.bench.one(self.asked).name

    def link(self, view: str, **state: str | int) -> str:
        """The URL state of a view of this model."""
        first = self.bench.served[0].name
        model = {} if self.name == first else {"m": self.name}
        step = {} if self.asked.step is None else {"s": self.asked.step}
        said = "&".join(f"{name}={value}" for name, value in (model | step | state).items())
        return f"#/{view}?{said}" if said else f"#/{view}"

    def probe_example(self) -> int:
        """Where the random tokens shown twice are among the examples; the first if they are not."""
        examples = self.bench.examples(self.asked)
        kinds = [example.kind for example in examples]
        return kinds.index("probe") if "probe" in kinds else 0


@dataclass(frozen=True)
class Statement:
    """A claim before it is measured: its words, and how to measure it."""

    id: str
    title: str
    text: str
    measure: Callable[[Subject], Measured]
    papers: str = ""


@dataclass(frozen=True)
class Section:
    """Claims about models of one depth: which depths, in a test and in words."""

    title: str
    statements: tuple[Statement, ...]
    fits: Callable[[int], bool]
    about: str


def state(section: Section, bench: Workbench, asked: AboutModel) -> tuple[Claim, ...]:
    """Measure a section's claims, each on a model of the depth that it is about.

    That is the model that is looked at where its depth fits, else the bundled one that fits.
    """
    here = Subject(bench, asked)
    bundled = (Subject(bench, AboutModel(model=name)) for name in bundled_names())
    for subject in (here, *bundled):
        if section.fits(subject.model.config.n_layers):
            return tuple(_stated(one, section, subject) for one in section.statements)
    layers = here.model.config.n_layers
    note = f"This is about models with {section.about}, and this one has {layers}."
    return tuple(_claim(one, section, here, None, note) for one in section.statements)


def _stated(statement: Statement, section: Section, subject: Subject) -> Claim:
    """A claim measured; what cannot be measured on this model says why."""
    try:
        found = statement.measure(subject)
    except (InputError, NotExactError) as error:
        return _claim(statement, section, subject, None, str(error))
    return _claim(statement, section, subject, found, found.note)


def _claim(
    statement: Statement, section: Section, subject: Subject, found: Measured | None, note: str
) -> Claim:
    interval = None if found is None else found.interval
    verdict = "not measurable here" if found is None else _VERDICTS[found.holds]
    return Claim(
        id=statement.id,
        section=section.title,
        title=statement.title,
        text=statement.text,
        view=(found.view if found else "") or subject.link("text"),
        measured="" if found is None else found.measured,
        low=None if interval is None else finite(interval.low),
        high=None if interval is None else finite(interval.high),
        papers=statement.papers,
        holds=verdict,
        note=note,
        model=subject.name,
    )
