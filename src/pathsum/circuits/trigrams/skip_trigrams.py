"""Skip-trigrams `[source] … [destination] → [out]`, ranked by loss saved on text or by weights.

On text they are ranked by what they are worth to the model there (`on_text`), and those that differ
only by space or case are one row. From weights alone the strongest are found exactly. A head scores
f₁(destination, source) · f₂(source, out): QK decides which destinations attend to a source, OV what
the source raises. The score joins the two:

    score = attention · effect · p(source)^0.1

    attention   full QK, row centered: how much more this destination attends to this source than
                to the average one (softmax is taken for each destination)
    effect      full OV, W_U centered: how far the source lifts `out` above the mean logit
    p(source)   how common the source is in training text; 1 for all where that is unknown

and only triples with attention > 0 and effect > 0 count. OV does not see the destination, so a list
of triples would repeat each (source, out) with every destination that attends: they are
de-duplicated on (source, out), and the destination listed is the one that attends most.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool
from torch import Tensor

from pathsum.algebra import Factored, extremes
from pathsum.circuits.tokens.ov import token_ov
from pathsum.circuits.tokens.qk import token_qk
from pathsum.circuits.tokens.token import RARE, common_tokens, joined, resolve_k
from pathsum.circuits.trigrams.bugs import bug_cost, find_bugs
from pathsum.circuits.trigrams.ranked_on_text import TEXT_SEQUENCES, ranked_on_text
from pathsum.circuits.trigrams.text_effects import TextRuns
from pathsum.circuits.trigrams.trigram_records import Rank, SkipTrigram, SkipTrigrams
from pathsum.circuits.trigrams.triple import (
    Evidence,
    Ids,
    Triple,
    check_trigrams,
    gather_evidence,
    note_on_weights,
    source_weights,
)
from pathsum.errors import InputError
from pathsum.model import Head, HeadName, Model
from pathsum.model.sequences import TextOrTokens, require_text, split
from pathsum.result import Progress, parse_option, silent
from pathsum.result.arguments import checked


@torch.no_grad()
@checked
def skip_trigrams(
    model: Model,
    head: HeadName | None = None,
    k: int | None = None,
    *,
    corpus: TextOrTokens | None = None,
    rank: Rank | str | None = None,
    rare: int = RARE,
    offset: int | None = None,
    sequences: int = TEXT_SEQUENCES,
    runs: TextRuns | None = None,
    progress: Progress = silent,
) -> SkipTrigrams:
    """The k strongest (50) skip-trigrams of a head, or of all heads, over the whole vocabulary.

    `rank` is "text", what they are worth on text (`corpus`, else the held-out text that the model
    comes with), or "weights"; by default text where there is some. On text at most `sequences` of
    its sequences are ranked on, evenly spaced. `runs`, from `text_runs` with the same text and
    `sequences`, lets calls for several heads share the runs of the text.

    >>> from pathsum.model import construct
    >>> model = construct.skip_trigrams([("keep", "in", "mind"), ("keep", "at", "bay")])
    >>> for triple in skip_trigrams(model, k=2):
    ...     print(triple.head, triple)
    L0H0 keep … in → mind
    L0H1 keep … at → bay

    The list from weights is exact: for each source the destination that attends most is found by
    streaming, which turns the measure into a full OV circuit with scaled rows, whose largest
    entries are found by streaming. Fewer than k come back only where fewer have a positive score.
    Tokens that training saw fewer than `rare` times are hidden where counts are known.

    With a `corpus` each triple carries its evidence in text, bugs are separated from correct
    triples by their lift, and their cost in loss is measured. One in five of its sequences is held
    out. Ranked by weights, the evidence is that of the held-out part. Ranked on text, that is the
    part that is ranked on, and the evidence is from sequences that the ranking did not read,
    because triples that were chosen for what they do in a text have a lift there by selection.

    On a rotary model QK is averaged over offsets, or that of `offset`, which is for weights only:
    on text the attention is that of the run.

    On layers above 0 these are circuits of the direct path. Softmax makes sources compete, so even
    a one-layer model is more than a table of skip-trigrams.
    """
    check_trigrams(model, "a skip-trigram")
    common = common_tokens(model, rare)
    text = model.held_out if corpus is None else corpus
    chosen = _rank(rank, Rank.WEIGHTS if text is None else Rank.TEXT, offset)
    if sequences < 1:
        raise InputError(f"sequences={sequences}; rank on at least one")
    seen = int(common.sum())
    k = resolve_k(k, 50, seen * seen, "pairs of source and out")
    heads = list(model.heads) if head is None else [model.head(head)]
    if chosen is Rank.TEXT:
        text = require_text(model, text)
        return ranked_on_text(model, heads, k, text, common, rare, sequences, progress, runs)
    triples = _by_weights(heads, k, common, offset, progress)
    note = note_on_weights(model, heads, offset, common, rare)
    return _with_evidence(model, triples, corpus, common, offset, note, progress)


def _rank(rank: Rank | str | None, default: Rank, offset: int | None) -> Rank:
    chosen = default if rank is None else parse_option(Rank, rank, "rank")
    if chosen is Rank.TEXT and offset is not None:
        raise InputError(
            f"offset={offset} chooses a QK circuit of the weights, but on text the attention is "
            "that of the run; leave it out, or use rank='weights'"
        )
    return chosen


def _by_weights(
    heads: Sequence[Head], k: int, common: Tensor, offset: int | None, progress: Progress
) -> list[Triple]:
    """The k strongest triples of some heads; of a (source, out) of several, the strongest."""
    found: list[Triple] = []
    for index, each in enumerate(heads):
        progress(index, len(heads), f"skip-trigrams of {each.label}")
        found += _strongest(each, k, common, offset)
    progress(len(heads), len(heads), "skip-trigrams")
    kept: dict[tuple[int, int], Triple] = {}
    for triple in sorted(found, key=lambda triple: -triple.score):
        kept.setdefault((triple.source, triple.out), triple)
    return list(kept.values())[:k]


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
    evidence: dict[Ids, Evidence] = {}
    cost = None
    if parts is not None:
        named = [triple.tokens for triple in triples]
        evidence = gather_evidence(parts.held_out, named, progress=progress)
        cost = bug_cost(model, search.bugs, parts.held_out, progress=progress)
    records = tuple(
        SkipTrigram.of(
            model,
            triple,
            bug=search.by_triple.get((triple.head, triple.tokens)),
            evidence=evidence.get(triple.tokens),
        )
        for triple in triples
    )
    return SkipTrigrams(records, tuple(search.bugs), cost, joined((search.note, note)))


def _strongest(
    head: Head, k: int, common: Bool[Tensor, " vocab"], offset: int | None
) -> list[Triple]:
    """The triples of the k best (source, out) of one head among common tokens."""
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
    tokens = torch.stack((ids[rows], ids[best.columns[rows]], ids[columns]), 1)
    effect = ov.entries(ids[rows], ids[columns])
    numbers = torch.stack((best.values[rows], effect, top.values[real]), 1)
    return [
        Triple(head.label, *named, *scored)
        for named, scored in zip(tokens.tolist(), numbers.tolist(), strict=True)
    ]
