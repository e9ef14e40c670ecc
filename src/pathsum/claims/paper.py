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
"""Up to this number of claims, the numbers of their bar charts are printed."""
STATEMENTS = tuple((section, claim) for section in SECTIONS for claim in section.statements)


def find_statement(name: str) -> tuple[Section, Statement]:
    """A claim by its id, and its section."""
    ids = [claim.id for _, claim in STATEMENTS]
    if name not in ids:
        raise InputError(
            f"there is no claim {name[:60]!r}{near_misses(name, ids)}; the claims are "
            f"{', '.join(ids)}"
        )
    return STATEMENTS[ids.index(name)]


@dataclass(frozen=True, eq=False)
class Paper(Record, kind="paper"):
    """The paper's claims with their verdicts, indexed by id: `paper["two-k"]`."""

    model: str
    claims: tuple[Claim, ...]
    over_seeds: str

    def __getitem__(self, name: str) -> Claim:
        find_statement(name)
        for claim in self.claims:
            if claim.outline.id == name:
                return claim
        raise KeyError(f"claim {name!r} was not measured")

    @property
    def tally(self) -> dict[Verdict, int]:
        """The number of claims with each verdict on the model."""
        return _tally(claim.verdict for claim in self.claims)

    @property
    def tally_over_seeds(self) -> dict[Verdict, int]:
        """The number of claims with each verdict over seeds, among claims measured on seeds."""
        return _tally(claim.outline.seeds.verdict for claim in self.claims)

    def to_table(self) -> Table:
        """Claim, value, seeds, the paper's value and the verdicts."""
        columns = (
            text_column("claim", lambda claim: claim.outline.id),
            prose_column("measured", lambda claim: claim.measured if claim.value else claim.note),
            text_column("verdict", "verdict"),
            prose_column(
                "seeds", lambda claim: _seeds_text(claim.outline.seeds, claim.outline.rule.unit)
            ),
            text_column("over seeds", lambda claim: claim.outline.seeds.verdict),
            prose_column("the paper", lambda claim: claim.outline.paper_value or None),
        )
        counts = ", ".join(f"{verdict}: {count}" for verdict, count in self.tally.items())
        over = ", ".join(f"{verdict}: {count}" for verdict, count in self.tally_over_seeds.items())
        note = f"This model: {counts}. Over seeds: {over}. {OVER_SEEDS}"
        return columns_table(self.claims, columns, f"the paper's claims, {self.model}", note)

    def __rich__(self) -> RenderableType:
        """The table; for a few claims also the numbers of their bar charts."""
        pictures = [claim.picture for claim in self.claims] if len(self.claims) <= IN_DETAIL else []
        bars = [claim.to_table() for claim in pictures if isinstance(claim, BarsPicture)]
        return stacked(self.to_table(), *bars)

    def rules_table(self) -> Table:
        """The rule of each claim."""
        rows = tuple((claim.outline.id, claim.outline.rule_text) for claim in self.claims)
        return Table((text_column("claim"), prose_column("rule")), rows, "rules")


def _tally(verdicts: Iterable[Verdict | None]) -> dict[Verdict, int]:
    counts = Counter(verdicts)
    return {verdict: counts[verdict] for verdict in VERDICTS}


def _seeds_text(seeds: OverSeeds, unit: str) -> str | None:
    """The mean over seeds with its interval, or the values if there are too few for one."""
    if seeds.mean is not None:
        return f"{seeds.mean.format('.3g')} {unit}".strip()
    values = [format(seed.value, ".3g") for seed in seeds.seeds if seed.value is not None]
    return f"{', '.join(values)} {unit}".strip() if values else None


def seeds_table() -> Table:
    """Every claim with its rule and its stored values and verdict over seeds."""
    prose = map(prose_column, ("rule", "each seed", "mean over seeds", "the paper"))
    rows: list[tuple[str | None, ...]] = []
    for _, claim in STATEMENTS:
        seeds = claim.seeds()
        values = ["–" if seed.value is None else format(seed.value, ".3g") for seed in seeds.seeds]
        mean = None if seeds.mean is None else _seeds_text(seeds, claim.rule.unit)
        measured = (", ".join(values) or None, mean, claim.paper_value or None)
        rows.append((claim.id, str(claim.rule), *measured, seeds.verdict or "not measured"))
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

    Args:
        model: A model, its name or its folder. A claim about models of another depth is measured on
            a bundled model of that depth, which `outline.model` names.
        claims: The ids of claims, by default all.
        over_bigram: The model's loss minus the loss of the bigram table of its training text, for a
            model without a card.
        progress: Called as the work proceeds.

    Returns:
        The claims in the paper's order, each with its measured value and its verdict.

    Example:
        >>> import pathsum as ps
        >>> result = paper(ps.construct.induction(), claims=["two-induction", "two-mechanism"])
        >>> [(claim.outline.id, claim.verdict) for claim in result.claims]
        [('two-induction', 'holds'), ('two-mechanism', 'holds')]

    A verdict is only as strong as its rule, `outline.rule_text`; `pathsum.claims` lists the rules
    with their claims.
    """
    if isinstance(model, Model):
        require_causal(model, "the paper")
    requested = [find_statement(name) for name in claims] or STATEMENTS
    number = 0

    def report(_: int, __: int, what: str) -> None:
        progress(number, len(requested), f"{requested[number][1].title}: {what}")

    subject = replace(open_subject(model, report), over_bigram=over_bigram)

    @cache
    def bundled(name: str) -> Subject:
        return replace(open_subject(name, report), is_own=False, address={"model": name})

    measured: list[Claim] = []
    for number, (section, claim) in enumerate(requested):
        progress(number, len(requested), claim.title)
        measured.append(measure(section, claim, subject, bundled))
    progress(len(requested), len(requested), "done")
    return Paper(subject.name, tuple(measured), OVER_SEEDS)


def open_subject(model: str | Path | Model, progress: Progress = silent) -> Subject:
    """A model to measure claims on, opened by name, folder or hub id if it is not loaded.

    For the folder of an unfinished training run, the last snapshot is opened.
    """
    if isinstance(model, Model):
        return Subject(model, model.name, examples(model), shared_results(model, progress))
    folder = BUNDLED / str(model) if str(model) in bundled_names() else user_path(model)
    unfinished = exists(folder) and folder.is_dir() and not (folder / CONFIG).exists()
    snapshots = read_snapshots(folder) if unfinished else ()
    loaded = snapshots[-1].model if snapshots else load(model)
    results = shared_results(loaded, progress)
    return Subject(loaded, folder.name, examples(loaded), results, folder=folder)
