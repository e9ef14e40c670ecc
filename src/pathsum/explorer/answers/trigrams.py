"""`trigrams`: a head's skip-trigrams, with patterns and bugs."""

from dataclasses import dataclass

from pathsum.circuits import Bug, SkipTrigram, skip_trigrams
from pathsum.circuits.tokens.token import common_tokens, token_frequencies
from pathsum.circuits.trigrams.triple import FREQUENCY_POWER, pattern_of
from pathsum.explorer.parameters import AboutHead
from pathsum.explorer.workbench import Workbench
from pathsum.model import Model
from pathsum.result import Record


@dataclass(frozen=True)
class TrigramRow:
    """`source … destination → out`; a bug is a cross term that two true ones force."""

    source: int
    destination: int
    out: int
    score: float
    pattern: str
    bug: bool
    because: str


@dataclass(frozen=True, eq=False)
class TrigramRows(Record, kind="page-trigrams"):
    """The strongest skip-trigrams of a head, by `measure`."""

    head: str
    measure: str
    rows: tuple[TrigramRow, ...]
    note: str


TRIPLES = 40
MOST_BUGS = 20


def trigrams(bench: Workbench, asked: AboutHead) -> TrigramRows:
    """A head's strongest skip-trigrams, and the bugs that they force."""
    model = bench.model(asked)
    name = model.head(asked.head).label
    most = int(common_tokens(model).sum()) ** 2
    found = skip_trigrams(model, name, min(TRIPLES, most))
    rows = [_row(triple) for triple in found]
    listed = {(row.source, row.destination, row.out) for row in rows}
    more = [bug for bug in found.bugs if _ids(bug) not in listed][:MOST_BUGS]
    return TrigramRows(
        head=name,
        measure=f"attention × effect × p(source)^{FREQUENCY_POWER}",
        rows=(*rows, *(_bug_row(model, bug) for bug in more)),
        note=found.note,
    )


def _row(triple: SkipTrigram) -> TrigramRow:
    return TrigramRow(
        source=triple.source.id,
        destination=triple.destination.id,
        out=triple.out.id,
        score=triple.score,
        pattern=str(triple.pattern),
        bug=triple.bug is not None,
        because=_because(triple.bug),
    )


def _bug_row(model: Model, bug: Bug) -> TrigramRow:
    common = 1.0
    if model.token_counts is not None:
        common = float(token_frequencies(model)[bug.source.id]) ** FREQUENCY_POWER
    source, destination, out = _ids(bug)
    return TrigramRow(
        source=source,
        destination=destination,
        out=out,
        score=bug.attention * bug.effect * common,
        pattern=str(pattern_of(model.tokenizer, source, destination, out)),
        bug=True,
        because=_because(bug),
    )


def _ids(bug: Bug) -> tuple[int, int, int]:
    return bug.source.id, bug.destination.id, bug.out.id


def _because(bug: Bug | None) -> str:
    if bug is None:
        return ""
    return f"forced by {bug.because[0]} and {bug.because[1]}; decided by {bug.decided_by}"
