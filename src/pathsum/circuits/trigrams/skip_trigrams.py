"""Skip-trigrams: the strongest `[source] … [destination] → [out]` of a head, exactly.

A head scores f₁(destination, source) · f₂(source, out): QK decides which destinations attend to a
source, OV what the source raises. Triples are ranked by a score that joins the two:

    score = attention · effect · p(source)^0.1

    attention   full QK, row centered: how much more this destination attends to this source than
                to the average one (softmax is taken for each destination)
    effect      full OV, W_U centered: how far the source lifts `out` above the mean logit
    p(source)   how common the source is in training text; 1 for all where that is unknown

and only triples with attention > 0 and effect > 0 count. OV does not see the destination, so a list
of triples would repeat each (source, out) with every destination that attends: they are
de-duplicated on (source, out), and the destination listed is the one that attends most.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pathsum.algebra import Factored, extremes
from pathsum.circuits.tokens.ov import token_ov
from pathsum.circuits.tokens.qk import rotary_note, token_qk
from pathsum.circuits.tokens.token import (
    RARE,
    Token,
    common_tokens,
    hidden_note,
    joined,
    resolve_k,
    token_of,
)
from pathsum.circuits.tokens.token_basis import (
    logit_cap_note,
    require_heads,
    require_logit_edges,
    require_score_edges,
    score_cap_note,
)
from pathsum.circuits.trigrams.bug_cost import BugCost, bug_cost
from pathsum.circuits.trigrams.bugs import Bug, find_bugs
from pathsum.circuits.trigrams.triple import (
    Evidence,
    Pattern,
    Triple,
    gather_evidence,
    pattern_of,
    source_weights,
)
from pathsum.model import Head, HeadId, HeadName, Model
from pathsum.model.sequences import TextOrTokens, split
from pathsum.result import Column, Progress, Record, Table, silent, text_column, token_column


@dataclass(frozen=True, eq=False)
class SkipTrigram(Record, kind="skip-trigram"):
    """One `[source] … [destination] → [out]` of one head.

    `bug` is set if the triple is known to be a cross term that two other triples of the head force.
    `evidence` is what held-out text shows about it, if a corpus was given.
    """

    head: HeadId
    source: Token
    destination: Token
    out: Token
    attention: float
    effect: float
    score: float
    pattern: Pattern
    bug: Bug | None
    evidence: Evidence | None

    def __str__(self) -> str:
        return f"{self.source} … {self.destination} → {self.out}"


@dataclass(frozen=True, eq=False)
class SkipTrigrams(Record, kind="skip-trigrams"):
    """The strongest skip-trigrams, best first; a sequence of `SkipTrigram`."""

    triples: tuple[SkipTrigram, ...]
    bugs: tuple[Bug, ...]
    cost: BugCost | None
    note: str

    def __len__(self) -> int:
        return len(self.triples)

    def __iter__(self) -> Iterator[SkipTrigram]:
        return iter(self.triples)

    def __getitem__(self, index: int) -> SkipTrigram:
        return self.triples[index]

    def to_table(self) -> Table:
        """One row per triple."""
        seen = any(triple.evidence is not None for triple in self.triples)
        columns = [text_column("head"), *map(token_column, ("source", "dest", "out"))]
        columns += [Column("QK", ".2f"), Column("OV", ".2f"), Column("score", ".2f")]
        columns += [text_column("pattern"), token_column("bug")]
        columns += [Column("n"), Column("lift", ".1f")] if seen else []
        rows = tuple(_row(triple, seen) for triple in self.triples)
        legend = "score = QK (attention) · OV (effect) · p(source)^0.1"
        legend += "; n, lift: antecedents in held-out text, out's rate over the bigram's" * seen
        cost = "" if self.cost is None else str(self.cost)
        return Table(
            tuple(columns), rows, title="skip-trigrams", note=joined((legend, cost, self.note))
        )


@torch.no_grad()
def skip_trigrams(
    model: Model,
    head: HeadName | None = None,
    k: int | None = None,
    *,
    corpus: TextOrTokens | None = None,
    rare: int = RARE,
    offset: int | None = None,
    progress: Progress = silent,
) -> SkipTrigrams:
    """The k strongest (50) skip-trigrams of a head, or of all heads, over the whole vocabulary.

    >>> from pathsum.model import construct
    >>> model = construct.skip_trigrams([("keep", "in", "mind"), ("keep", "at", "bay")])
    >>> for triple in skip_trigrams(model, k=2):
    ...     print(triple.head, triple)
    L0H0 keep … in → mind
    L0H1 keep … at → bay

    Exact: for each source the destination that attends most is found by streaming, which turns the
    measure into a full OV circuit with scaled rows, whose largest entries are found by streaming.
    Fewer than k come back only where fewer have a positive score. Tokens that training saw fewer
    than `rare` times are hidden where counts are known.

    With a `corpus` (sequences of token ids) each triple carries its evidence in held-out text,
    bugs are separated from correct triples by their lift, and their cost in loss is measured. One
    in five sequences is held out. On a rotary model QK is averaged over offsets, or that of
    `offset`.

    On layers above 0 these are circuits of the direct path. Softmax makes sources compete, so even
    a one-layer model is more than a table of skip-trigrams.
    """
    require_heads(model)
    require_score_edges(model, "skip-trigrams")
    require_logit_edges(model, "skip-trigrams")
    common = common_tokens(model, rare)
    seen = int(common.sum())
    k = resolve_k(k, 50, seen * seen, "pairs of source and out")
    heads = list(model.heads) if head is None else [model.head(head)]
    found: list[_Candidates] = []
    for index, each in enumerate(heads):
        progress(index, len(heads), f"skip-trigrams of {each.label}")
        found.append(_strongest(each, k, common, offset))
    triples = _best_of(found, k, model.config.d_vocab)
    progress(len(heads), len(heads), "skip-trigrams")
    deeper = model.config.norm != "none" and any(each.id.layer > 0 for each in heads)
    note = joined(
        (
            "layers above 0: direct path, scale omitted" if deeper else "",
            *(rotary_note(model, offset), score_cap_note(model.config)),
            *(logit_cap_note(model.config), hidden_note(common, rare)),
        )
    )
    return _with_evidence(model, triples, corpus, common, offset, note, progress)


def _with_evidence(
    model: Model,
    triples: list[Triple],
    corpus: TextOrTokens | None,
    common: Bool[Tensor, " vocab"],
    offset: int | None,
    note: str,
    progress: Progress,
) -> SkipTrigrams:
    """Triples as records, with bugs and, given a corpus, their evidence."""
    parts = None if corpus is None else split(model, corpus)
    search = find_bugs(
        model,
        triples,
        parts.counted if parts else None,
        common=common,
        offset=offset,
        progress=progress,
    )
    bugs, note = search.bugs, joined((search.note, note))
    evidence: dict[tuple[int, int, int], Evidence] = {}
    cost = None
    if parts is not None:
        named = [triple.tokens for triple in triples]
        evidence = gather_evidence(parts.held_out, named, progress=progress)
        cost = bug_cost(model, bugs, parts.held_out, progress=progress)
    by_triple = {(bug.head, bug.source.id, bug.destination.id, bug.out.id): bug for bug in bugs}
    records = tuple(
        SkipTrigram(
            head=triple.head,
            source=token_of(model, triple.source),
            destination=token_of(model, triple.destination),
            out=token_of(model, triple.out),
            attention=triple.attention,
            effect=triple.effect,
            score=triple.score,
            pattern=pattern_of(model.tokenizer, *triple.tokens),
            bug=by_triple.get((triple.head, *triple.tokens)),
            evidence=evidence.get(triple.tokens),
        )
        for triple in triples
    )
    return SkipTrigrams(records, tuple(bugs), cost, note)


@dataclass(frozen=True, eq=False)
class _Candidates:
    """A head's best (source, out) pairs and what their scores are made of."""

    head: HeadId
    score: Float[Tensor, " k"]
    source: Int[Tensor, " k"]
    destination: Int[Tensor, " k"]
    out: Int[Tensor, " k"]
    attention: Float[Tensor, " k"]
    effect: Float[Tensor, " k"]


def _strongest(
    head: Head, k: int, common: Bool[Tensor, " vocab"], offset: int | None
) -> _Candidates:
    """The k best (source, out) of one head among common tokens."""
    model = head.model
    ids = common.nonzero().squeeze(1).to(model.weights.device)
    qk = token_qk(model, head.id, offset=offset)
    # For each source the destination that attends most: the row maxima of the transpose.
    best = extremes.argmax_rows(Factored(qk.B.mT[ids], qk.A[ids].mT))
    weight = best.values.clamp(min=0) * source_weights(model).to(best.values)[ids]
    ov = token_ov(model, head.id)
    top = extremes.topk(Factored(ov.A[ids] * weight[:, None], ov.B[:, ids]), k)
    real = top.values > 0
    rows, columns = top.rows[real], top.columns[real]
    return _Candidates(
        head=head.label,
        score=top.values[real],
        source=ids[rows],
        destination=ids[best.columns[rows]],
        out=ids[columns],
        attention=best.values[rows],
        effect=ov.entries(ids[rows], ids[columns]),
    )


def _best_of(found: list[_Candidates], k: int, vocab: int) -> list[Triple]:
    """The best k over heads; of a (source, out) that several heads have, the strongest."""
    rows = [
        Triple(each.head, *ids, *numbers)
        for each in found
        for ids, numbers in zip(
            torch.stack((each.source, each.destination, each.out), 1).tolist(),
            torch.stack((each.attention, each.effect, each.score), 1).tolist(),
            strict=True,
        )
    ]
    rows.sort(key=lambda triple: -triple.score)
    kept: dict[int, Triple] = {}
    for triple in rows:
        kept.setdefault(triple.source * vocab + triple.out, triple)
        if len(kept) == k:
            break
    return list(kept.values())


def _row(triple: SkipTrigram, seen: bool) -> tuple[bool | int | float | str | None, ...]:
    row: tuple[bool | int | float | str | None, ...] = (
        *(triple.head, triple.source.text, triple.destination.text, triple.out.text),
        *(triple.attention, triple.effect, triple.score),
        *(str(triple.pattern), "bug" if triple.bug else ""),
    )
    if not seen:
        return row
    known = triple.evidence
    return (*row, known.antecedents if known else None, known.lift if known else None)
