"""What a claim is: its words, how it is measured, and the picture that shows it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pathsum.errors import InputError, NotExactError
from pathsum.explorer.claims.picture import Picture
from pathsum.explorer.params import ModelParams
from pathsum.explorer.workbench import Workbench
from pathsum.model import Model
from pathsum.paths import Estimate
from pathsum.sources.named import bundled_names

Verdict: TypeAlias = Literal["holds", "does not hold", "not measurable here"]
_VERDICTS: dict[bool, Verdict] = {True: "holds", False: "does not hold"}


@dataclass(frozen=True)
class Claim:
    """A claim of the paper in two sentences, what was measured, and what shows it.

    `view` is the URL state of the view that shows it and `picture` a smaller version of that view,
    both of the model that the claim was measured on (`model`, at `step`). `paper_value` is the
    paper's own value, "" if it gives none.
    """

    id: str
    section: str
    title: str
    text: str
    view: str
    picture: Picture | None
    measured: str
    interval: Estimate | None
    paper_value: str
    holds: Verdict
    note: str
    model: str
    step: int | None


@dataclass(frozen=True)
class Measurement:
    """What measuring a claim gave, and the view and picture that show it."""

    measured: str
    holds: bool
    interval: Estimate | None = None
    view: str = ""
    picture: Picture | None = None
    note: str = ""


@dataclass(frozen=True, eq=False)
class Subject:
    """The model that a claim is measured on."""

    bench: Workbench
    params: ModelParams

    @property
    def model(self) -> Model:
        """The model itself."""
        return self.bench.model(self.params)

    @property
    def name(self) -> str:
        """Its name on the page."""
        return self.bench.open_model(self.params).name

    def link(self, view: str, **state: str | int) -> str:
        """The URL state of a view of this model."""
        first = self.bench.models[0].name
        model = {} if self.name == first else {"m": self.name}
        step = {} if self.params.step is None else {"s": self.params.step}
        query = "&".join(f"{name}={value}" for name, value in (model | step | state).items())
        return f"#/{view}?{query}" if query else f"#/{view}"

    def probe_example(self) -> int:
        """The index of the first example of repeated random tokens; 0 if there is none."""
        kinds = [example.kind for example in self.bench.examples(self.params)]
        return kinds.index("probe") if "probe" in kinds else 0


@dataclass(frozen=True)
class Statement:
    """A claim before it is measured: its words, and how to measure it."""

    id: str
    title: str
    text: str
    measure: Callable[[Subject], Measurement]
    paper_value: str = ""


@dataclass(frozen=True)
class Section:
    """Claims about models of certain depths; `depths` says which, in words."""

    title: str
    statements: tuple[Statement, ...]
    fits: Callable[[int], bool]
    depths: str


def measure_section(section: Section, bench: Workbench, params: ModelParams) -> tuple[Claim, ...]:
    """Measure a section's claims on this model, or on a bundled one of the right depth."""
    here = Subject(bench, params)
    bundled = (Subject(bench, ModelParams(model=name)) for name in bundled_names())
    for subject in (here, *bundled):
        if section.fits(subject.model.config.n_layers):
            return tuple(_measured(one, section, subject) for one in section.statements)
    layers = here.model.config.n_layers
    note = f"This claim is about models with {section.depths}, and this one has {layers}."
    return tuple(_claim(one, section, here, None, note) for one in section.statements)


def _measured(statement: Statement, section: Section, subject: Subject) -> Claim:
    """A claim with its measurement, or with the reason why this model does not allow one."""
    try:
        found = statement.measure(subject)
    except (InputError, NotExactError) as error:
        return _claim(statement, section, subject, None, str(error))
    return _claim(statement, section, subject, found, found.note)


def _claim(
    statement: Statement, section: Section, subject: Subject, found: Measurement | None, note: str
) -> Claim:
    return Claim(
        id=statement.id,
        section=section.title,
        title=statement.title,
        text=statement.text,
        view=(found.view if found else "") or subject.link("text"),
        picture=None if found is None else found.picture,
        measured="" if found is None else found.measured,
        interval=None if found is None else found.interval,
        paper_value=statement.paper_value,
        holds="not measurable here" if found is None else _VERDICTS[found.holds],
        note=note,
        model=subject.name,
        step=subject.params.step,
    )
