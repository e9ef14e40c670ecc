"""`head`, `trigrams` and `ablation`: the page of one head."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pathsum.base import Record
from pathsum.circuits import (
    OffsetProfile,
    SkipTrigrams,
    positional,
    skip_trigrams,
)
from pathsum.circuits.copying import CopyingNull, HeadCopying
from pathsum.circuits.tokens.token import common_tokens, joined
from pathsum.circuits.tokens.token_basis import as_path
from pathsum.circuits.trigrams.skip_trigrams import text_runs
from pathsum.claims.examples import Sequences
from pathsum.explorer.answers.tokens import (
    MAX_TOKENS,
    TokenRow,
    as_pairs,
    head_circuits,
    rows_note,
    scaled_to,
    strongest_rows,
)
from pathsum.explorer.params import HeadParams
from pathsum.explorer.workbench import Workbench
from pathsum.model import Trace
from pathsum.paths import Ablation, After, IdealPattern, Knockout, Replacement, ablate
from pathsum.paths import replace as replace_head


@dataclass(frozen=True, eq=False)
class HeadPage(Record, kind="page-head"):
    """A head from its weights: copying, offsets and strongest tokens.

    `null_eigenvalues` are those of random heads, scaled to the head's own; `offsets` is None for a
    model without positions. The shares of tokens in `copying` are None for a large vocabulary, and
    are the answer to the question `copying`. Its scores and kind are in the answer to `atlas`, its
    edges in that to `composition`: those take a while on a large model, and serve all heads.
    """

    head: str
    copying: HeadCopying
    null_eigenvalues: Tensor
    offsets: OffsetProfile | None
    ov_rows: tuple[TokenRow, ...]
    qk_rows: tuple[TokenRow, ...]
    note: str


@dataclass(frozen=True)
class OwnLogits(Record, kind="page-copying"):
    """The shares of tokens that a head copies, as in `HeadCopying`."""

    head: str
    positive_diagonal: float | None
    top_1: float | None
    top_5: float | None


@dataclass(frozen=True, eq=False)
class AblationOn:
    """A head knocked out, and replaced by descriptions, on some sequences."""

    on: str
    ablations: tuple[Ablation, ...]
    replacements: tuple[Replacement, ...]


@dataclass(frozen=True, eq=False)
class HeadAblation(Record, kind="page-ablation"):
    """Ablations and replacements of a head on each set of sequences."""

    head: str
    tests: tuple[AblationOn, ...]


# Null draws whose eigenvalues are shown, skip-trigrams and further bugs listed.
NULL_DRAWS, TRIPLES, MAX_BUGS = 20, 40, 20
# Held-out sequences on which a page ranks skip-trigrams; the library takes more.
TRIPLE_SEQUENCES = 12

_KNOCKOUTS = (
    (Knockout.ZERO, After.RECOMPUTED),
    (Knockout.ZERO, After.PATTERNS_PRESERVED),
    (Knockout.MEAN, After.RECOMPUTED),
    (Knockout.FIRST, After.RECOMPUTED),
)


def head(bench: Workbench, params: HeadParams) -> HeadPage:
    """Everything about a head that follows from weights alone."""
    model = bench.model(params)
    name = model.head(params.head).label
    null = bench.result(params, "copying null", CopyingNull)
    measures = "all" if model.config.d_vocab <= MAX_TOKENS else "eigenvalues"
    copies = null.measure([name], measures=measures).heads[0]
    drawn = null.spectra([as_path(model, name)])[0, : NULL_DRAWS // 2].flatten()
    profile = None if model.config.positions == "none" else positional(model, name).heads[0]
    circuits = head_circuits(bench, params)
    return HeadPage(
        head=name,
        copying=copies,
        null_eigenvalues=as_pairs(scaled_to(torch.cat((drawn, -drawn)), copies.eigenvalues)),
        offsets=profile,
        ov_rows=strongest_rows(model, circuits.ov),
        qk_rows=strongest_rows(model, circuits.qk),
        note=joined(_distinct(copies.note, profile.note if profile else "", rows_note(model))),
    )


def _distinct(*notes: str) -> list[str]:
    """The remarks of several notes, each once."""
    return list(dict.fromkeys(remark for note in notes for remark in note.split("; ")))


def own_logits(bench: Workbench, params: HeadParams) -> OwnLogits:
    """The shares of tokens whose own logit a head raises; they take vocabulary² products."""
    null = bench.result(params, "copying null", CopyingNull)
    found = null.measure([params.head], progress=bench.progress).heads[0]
    return OwnLogits(found.head, found.positive_diagonal, found.top_1, found.top_5)


def trigrams(bench: Workbench, params: HeadParams) -> SkipTrigrams:
    """A head's strongest skip-trigrams, and the strongest bugs that they force."""
    model = bench.model(params)
    most = int(common_tokens(model).sum()) ** 2
    runs = None
    if model.held_out is not None:
        # The pages of all heads share the runs of the text.
        text = model.held_out
        runs = bench.result(
            params, "text runs", lambda model: text_runs(model, text, TRIPLE_SEQUENCES)
        )
    k = min(TRIPLES, most)
    found = skip_trigrams(
        model,
        params.head,
        k,
        sequences=TRIPLE_SEQUENCES,
        runs=runs,
        progress=bench.progress,
    )
    listed = {(each.source, each.destination, each.out) for each in found}
    others = [b for b in found.bugs if (b.source, b.destination, b.out) not in listed]
    return replace(found, bugs=tuple(others[:MAX_BUGS]))


def ablation(bench: Workbench, params: HeadParams) -> HeadAblation:
    """Knock a head out in four ways and put descriptions in its place, on each set of sequences."""
    model = bench.model(params)
    name = model.head(params.head).label
    tests: list[AblationOn] = []
    sequences = bench.sequences(params)
    for place, on in enumerate(sequences):
        bench.progress(place, len(sequences), f"ablating {name} on {on.name}")
        tests.append(_ablation_on(bench.sequence_run(params, on), name, on))
    return HeadAblation(name, tuple(tests))


def _ablation_on(start: Trace, name: str, on: Sequences) -> AblationOn:
    model, tokens, first = start.model, on.tokens, on.first
    ablations = [
        ablate(
            model,
            name,
            tokens,
            knockout=knockout,
            after=after,
            from_position=first,
            start=start,
        )
        for knockout, after in _KNOCKOUTS
    ]
    replacements = [
        replace_head(model, name, tokens, pattern=pattern, from_position=first, start=start)
        for pattern in IdealPattern
    ]
    replacements.append(
        replace_head(model, name, tokens, ov="copying", from_position=first, start=start)
    )
    return AblationOn(on.name, tuple(ablations), tuple(replacements))
