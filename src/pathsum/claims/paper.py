"""All claims in the paper's order, and `paper`: the claims measured on a model, as one result."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch
from rich.console import RenderableType

from pathsum.base import Progress, Record, Table, prose_column, silent, stacked, text_column
from pathsum.base.errors import InputError, near_misses
from pathsum.base.estimate import Estimate
from pathsum.base.files import exists, user_path
from pathsum.base.options import checked
from pathsum.base.table import columns_table
from pathsum.claims.claim import (
    BarsPicture,
    Claim,
    Section,
    Statement,
    Subject,
    measure,
    shared_results,
)
from pathsum.claims.examples import examples
from pathsum.claims.one_layer import ONE
from pathsum.claims.stream import STREAM, ZERO
from pathsum.claims.two_layers import TWO
from pathsum.claims.verdict import OVER_SEEDS, VERDICTS, OverSeeds, Verdict
from pathsum.model import Model
from pathsum.model.sequences import require_causal
from pathsum.model.storage import CONFIG
from pathsum.sources import load
from pathsum.sources.named import BUNDLED, bundled_names
from pathsum.training import read_snapshots

SECTIONS = (
    Section("the residual stream", STREAM, lambda _: True, "any number of layers"),
    Section("zero layers", ZERO, lambda depth: depth == 0, "no layers"),
    Section("one layer", ONE, lambda depth: depth == 1, "one layer"),
    Section("two layers", TWO, lambda depth: depth >= 2, "two layers or more"),
)
IN_DETAIL = 3
"""With at most so many claims, the numbers of their bar charts are printed."""
STATEMENTS = tuple((section, one) for section in SECTIONS for one in section.statements)


def find_statement(name: str) -> tuple[Section, Statement]:
    """A claim by its id, and its section."""
    known = [one.id for _, one in STATEMENTS]
    if name not in known:
        raise InputError(
            f"there is no claim {name[:60]!r}{near_misses(name, known)}; the claims are "
            f"{', '.join(known)}"
        )
    return STATEMENTS[known.index(name)]


@dataclass(frozen=True, eq=False)
class Paper(Record, kind="paper"):
    """The paper's claims with their verdicts; `found["two-k"]` is one of them."""

    model: str
    claims: tuple[Claim, ...]
    over_seeds: str

    def __getitem__(self, name: str) -> Claim:
        find_statement(name)
        for one in self.claims:
            if one.outline.id == name:
                return one
        raise KeyError(f"claim {name!r} was not measured")

    @property
    def tally(self) -> dict[Verdict, int]:
        """How many claims have each verdict on the model."""
        return _tally(one.verdict for one in self.claims)

    @property
    def tally_over_seeds(self) -> dict[Verdict, int]:
        """How many claims have each verdict over seeds, of those that seeds were measured for."""
        return _tally(one.outline.seeds.verdict for one in self.claims)

    def to_table(self) -> Table:
        """Claim, value, seeds, the paper's value and the verdicts."""
        columns = (
            text_column("claim", lambda one: one.outline.id),
            prose_column("measured", lambda one: one.measured if one.value else one.note),
            text_column("verdict", "verdict"),
            prose_column(
                "seeds", lambda one: _seeds_text(one.outline.seeds, one.outline.rule.unit)
            ),
            text_column("over seeds", lambda one: one.outline.seeds.verdict),
            prose_column("the paper", lambda one: one.outline.paper_value or None),
        )
        counts = ", ".join(f"{verdict}: {count}" for verdict, count in self.tally.items())
        over = ", ".join(f"{verdict}: {count}" for verdict, count in self.tally_over_seeds.items())
        note = f"This model: {counts}. Over seeds: {over}. {OVER_SEEDS}"
        return columns_table(self.claims, columns, f"the paper's claims, {self.model}", note)

    def __rich__(self) -> RenderableType:
        """The table; for a few claims also the numbers of their bar charts."""
        pictures = [one.picture for one in self.claims] if len(self.claims) <= IN_DETAIL else []
        bars = [one.to_table() for one in pictures if isinstance(one, BarsPicture)]
        return stacked(self.to_table(), *bars)

    def rules_table(self) -> Table:
        """The rule of each claim."""
        rows = tuple((one.outline.id, one.outline.rule_text) for one in self.claims)
        return Table((text_column("claim"), prose_column("rule")), rows, "rules")


def _tally(verdicts: Iterable[Verdict | None]) -> dict[Verdict, int]:
    counted = Counter(verdicts)
    return {verdict: counted[verdict] for verdict in VERDICTS}


def _seeds_text(seeds: OverSeeds, unit: str) -> str | None:
    """The mean over seeds with its interval, or the values if there are too few for one."""
    if seeds.mean is not None:
        return f"{seeds.mean.format('.3g')} {unit}".strip()
    values = [format(each.value, ".3g") for each in seeds.seeds if each.value is not None]
    return f"{', '.join(values)} {unit}".strip() if values else None


def seeds_table() -> Table:
    """Every claim with its rule, its values over seeds, and the verdict; nothing is measured."""
    prose = map(prose_column, ("rule", "each seed", "mean over seeds", "the paper"))
    rows: list[tuple[str | None, ...]] = []
    for _, one in STATEMENTS:
        seeds = one.seeds()
        values = ["–" if each.value is None else format(each.value, ".3g") for each in seeds.seeds]
        mean = None if seeds.mean is None else _seeds_text(seeds, one.rule.unit)
        measured = (", ".join(values) or None, mean, one.paper_value or None)
        rows.append((one.id, str(one.rule), *measured, seeds.verdict or "not measured"))
    columns = (text_column("claim"), *prose, text_column("verdict"))
    return Table(columns, tuple(rows), "the paper's claims over seeds", OVER_SEEDS)


@torch.no_grad()
@checked
def paper(
    model: str | Path | Model,
    *,
    claims: Sequence[str] = (),
    over_bigram: Estimate | None = None,
    progress: Progress = silent,
) -> Paper:
    """Measure the paper's claims on a model, each judged by a rule that was fixed in advance.

    A claim about models of another depth is measured on a bundled model of that depth, which
    `outline.model` names. `claims` chooses some by id. `over_bigram` is the model's loss minus that
    of the bigram table of its training text; give it for a model without a card.

    >>> import pathsum as ps
    >>> found = ps.paper(ps.construct.induction(), claims=["two-induction", "two-mechanism"])
    >>> [(one.outline.id, one.verdict) for one in found.claims]
    [('two-induction', 'holds'), ('two-mechanism', 'holds')]

    A verdict is only as strong as its rule, `outline.rule_text`; `pathsum.claims` lists the rules
    with their claims.
    """
    if isinstance(model, Model):
        require_causal(model, "the paper")
    chosen = [find_statement(name) for name in claims] or STATEMENTS
    at = 0

    def report(_: int, __: int, what: str) -> None:
        progress(at, len(chosen), f"{chosen[at][1].title}: {what}")

    subject = replace(open_subject(model, report), over_bigram=over_bigram)

    @cache
    def bundled(name: str) -> Subject:
        return replace(open_subject(name, report), is_own=False, address={"model": name})

    found: list[Claim] = []
    for at, (section, one) in enumerate(chosen):
        progress(at, len(chosen), one.title)
        found.append(measure(section, one, subject, bundled))
    progress(len(chosen), len(chosen), "done")
    return Paper(subject.name, tuple(found), OVER_SEEDS)


def open_subject(model: str | Path | Model, progress: Progress = silent) -> Subject:
    """A model to measure claims on, opened by name, folder or hub id if it is not loaded.

    The folder of a training run that has not finished gives the last snapshot.
    """
    if isinstance(model, Model):
        return Subject(model, model.name, examples(model), shared_results(model, progress))
    folder = BUNDLED / str(model) if str(model) in bundled_names() else user_path(model)
    unfinished = exists(folder) and folder.is_dir() and not (folder / CONFIG).exists()
    snapshots = read_snapshots(folder) if unfinished else ()
    loaded = snapshots[-1].model if snapshots else load(model)
    results = shared_results(loaded, progress)
    return Subject(loaded, folder.name, examples(loaded), results, folder=folder)
