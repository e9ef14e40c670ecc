"""`paper`: the claims measured on a model, as one result."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from pathsum.base import Progress, Record, Table, prose_column, silent, text_column
from pathsum.base.arguments import checked
from pathsum.base.estimate import Estimate
from pathsum.explorer.params import ModelParams
from pathsum.explorer.session import Session, open_models
from pathsum.model import Model
from pathsum.paper.claim import Claim, measure, seeds_of
from pathsum.paper.rule import OVER_SEEDS, VERDICTS, Verdict
from pathsum.paper.seeds import OverSeeds
from pathsum.paper.tour import SECTIONS, find_statement


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
        counted = Counter(one.verdict for one in self.claims)
        return {verdict: counted[verdict] for verdict in VERDICTS}

    @property
    def tally_over_seeds(self) -> dict[Verdict, int]:
        """How many claims have each verdict over seeds, of those that seeds were measured for."""
        counted = Counter(one.outline.seeds.verdict for one in self.claims)
        return {verdict: counted[verdict] for verdict in VERDICTS}

    def to_table(self) -> Table:
        """Claim, value, seeds, the paper's value and the verdicts."""
        columns = (
            text_column("claim"),
            prose_column("measured"),
            text_column("verdict"),
            prose_column("seeds"),
            text_column("over seeds"),
            prose_column("the paper"),
        )
        rows = tuple(
            (
                one.outline.id,
                one.measured if one.value else one.note,
                one.verdict,
                _seeds_text(one.outline.seeds, one.outline.rule.unit),
                one.outline.seeds.verdict,
                one.outline.paper_value or None,
            )
            for one in self.claims
        )
        counts = ", ".join(f"{verdict}: {count}" for verdict, count in self.tally.items())
        over = ", ".join(f"{verdict}: {count}" for verdict, count in self.tally_over_seeds.items())
        note = f"{len(self.claims)} claims ({counts}). Over seeds: {over}. {OVER_SEEDS}"
        return Table(columns, rows, f"the paper's claims, {self.model}", note)

    def rules_table(self) -> Table:
        """The rule of each claim."""
        rows = tuple((one.outline.id, one.outline.rule_text) for one in self.claims)
        return Table((text_column("claim"), prose_column("rule")), rows, "rules")


def _seeds_text(seeds: OverSeeds, unit: str) -> str | None:
    """The mean over seeds with its interval, or the values if there are too few for one."""
    if seeds.mean is not None:
        return f"{seeds.mean.format('.3g')} {unit}".strip()
    values = [format(each.value, ".3g") for each in seeds.seeds if each.value is not None]
    return f"{', '.join(values)} {unit}".strip() if values else None


def seeds_table() -> Table:
    """Every claim with its rule, its values over seeds, and the verdict; nothing is measured."""
    columns = (
        text_column("claim"),
        prose_column("rule"),
        prose_column("each seed"),
        prose_column("mean over seeds"),
        prose_column("the paper"),
        text_column("verdict"),
    )
    rows: list[tuple[str | None, ...]] = []
    for section in SECTIONS:
        for one in section.statements:
            seeds = seeds_of(one)
            values = [
                "–" if each.value is None else format(each.value, ".3g") for each in seeds.seeds
            ]
            mean = None if seeds.mean is None else _seeds_text(seeds, one.rule.unit)
            rows.append(
                (
                    *(one.id, str(one.rule), ", ".join(values) or None, mean),
                    *(one.paper_value or None, seeds.verdict or "not measured"),
                )
            )
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
    """Measure the paper's claims on a model, each judged by a rule that was written before.

    A claim about models of another depth is measured on a bundled model of that depth, which
    `outline.model` names. `claims` chooses some by id. `over_bigram` is the model's loss minus that
    of the bigram table of its training text, for a model without a card that says it.

    >>> import pathsum as ps
    >>> found = ps.paper(ps.construct.induction(), claims=["two-induction", "two-mechanism"])
    >>> [(one.outline.id, one.verdict) for one in found.claims]
    [('two-induction', 'holds'), ('two-mechanism', 'holds')]

    A verdict says no more than its rule, which `outline.rule_text` states; the rules and their
    thresholds are in `pathsum.paper.rules`.
    """
    chosen = [find_statement(name) for name in claims] or [
        (section, one) for section in SECTIONS for one in section.statements
    ]
    bench = Session(open_models([model]))
    found: list[Claim] = []
    for number, (section, one) in enumerate(chosen):
        progress(number, len(chosen), one.title)
        within = bench.reporting(
            lambda _, __, what, at=number, title=one.title: progress(
                at, len(chosen), f"{title}: {what}"
            )
        )
        found.append(measure(section, one, within, ModelParams(), over_bigram))
    progress(len(chosen), len(chosen), "done")
    return Paper(bench.models[0].name, tuple(found), OVER_SEEDS)
