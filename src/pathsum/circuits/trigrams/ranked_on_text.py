"""Skip-trigrams ranked by the loss that they save on text (see `text_effects`), as records.

Those that differ only by space or case share a row.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from pathsum.algebra import Factored
from pathsum.circuits.tokens.ov import token_ov
from pathsum.circuits.tokens.qk import token_qk
from pathsum.circuits.tokens.token import hidden_note, joined
from pathsum.circuits.trigrams.bugs import bug_cost, find_bugs
from pathsum.circuits.trigrams.text_effects import (
    CLASSIFIED,
    FIRES,
    Occurrence,
    TextEffect,
    TextRuns,
    effects_on_text,
)
from pathsum.circuits.trigrams.trigram_records import (
    Rank,
    SkipTrigram,
    SkipTrigrams,
    TriplePlace,
)
from pathsum.circuits.trigrams.triple import Triple, gather_evidence
from pathsum.model import Head, Model
from pathsum.model.sequences import Split, TextOrTokens, split
from pathsum.result import Progress
from pathsum.text.shards import spaced

TEXT_SEQUENCES = 32
"""Sequences of the text that are read at most, evenly spaced."""
AROUND = 3
"""Tokens of the text that are quoted before a destination."""


def text_rows(
    model: Model, text: Sequence[Int[Tensor, "_ _"]], most: int = TEXT_SEQUENCES
) -> list[Int[Tensor, " _"]]:
    """The sequences of a text that are read, cut to the model's context."""
    rows = [row for part in text for row in part]
    return [rows[place][: model.config.n_ctx] for place in spaced(len(rows), most)]


def text_runs(model: Model, corpus: TextOrTokens, sequences: int = TEXT_SEQUENCES) -> TextRuns:
    """The runs of the sequences that are ranked on, for several calls to share."""
    return TextRuns(model, _ReadText.of(model, corpus, sequences).rows)


@dataclass(frozen=True, eq=False)
class _ReadText:
    """A text for ranking: the sequences ranked on, those not read, and its two parts for bugs."""

    rows: list[Int[Tensor, " _"]]
    unread: tuple[Int[Tensor, "_ _"], ...]
    parts: Split

    @classmethod
    def of(cls, model: Model, corpus: TextOrTokens, most: int) -> "_ReadText":
        parts = split(model, corpus)
        held_out = model.held_out
        if held_out is None or corpus is not held_out:
            return cls(text_rows(model, parts.held_out, most), parts.counted, parts)
        # No part of it was trained on, so all of it can be read.
        read = torch.zeros(len(held_out), dtype=torch.bool)
        read[spaced(len(read), most)] = True
        unread = () if bool(read.all()) else (held_out[~read],)
        return cls(text_rows(model, [held_out], most), unread, parts)


@torch.no_grad()
def ranked_on_text(
    model: Model,
    heads: list[Head],
    k: int,
    corpus: TextOrTokens,
    common: Bool[Tensor, " vocab"],
    rare: int,
    sequences: int,
    progress: Progress,
    runs: TextRuns | None = None,
) -> SkipTrigrams:
    """Skip-trigrams by what they are worth on text, variants in one row.

    `runs` are those of the same sequences, from `text_runs`.
    """
    text = _ReadText.of(model, corpus, sequences)
    runs = TextRuns(model, text.rows) if runs is None else runs
    shown = common.clone()
    shown[list(model.token_pool(rare).excluded)] = False
    # More than are shown, because variants share a row.
    found = effects_on_text(model, heads, runs, 3 * k, shown, progress)
    groups: dict[tuple[str, ...], list[TextEffect]] = {}
    for effect in found.effects:
        groups.setdefault(_group(model, effect), []).append(effect)
    ranked = sorted(groups.values(), key=lambda group: -sum(one.worth for one in group))[:k]
    if not ranked:
        return SkipTrigrams((), (), None, _silence(found.predictions), Rank.TEXT, found.classes)
    triples = [Triple(one.head, *one.ids, 0.0, 0.0, 0.0) for one in found.effects[:k]]
    search = find_bugs(model, triples, text.parts.counted, common=common, progress=progress)
    named = [group[0].ids for group in ranked]
    evidence = gather_evidence(text.unread, named, progress=progress) if text.unread else {}
    heads_of = dict.fromkeys(group[0].head for group in ranked)
    circuits = {head: (token_qk(model, head), token_ov(model, head)) for head in heads_of}
    records = tuple(
        SkipTrigram.of(
            model,
            _scored(group, *circuits[group[0].head]),
            bug=search.by_triple.get((group[0].head, group[0].ids)),
            evidence=evidence.get(group[0].ids),
            fires=sum(one.fires for one in group),
            variants=tuple(_written(model, one) for one in group[1:]),
            occurrence=_quoted(model, text.rows, group[0].occurrence),
            place=_place(text.rows, group[0].occurrence),
        )
        for group in ranked
    )
    note = joined(
        (
            f"{len(text.rows)} sequences with {found.predictions} predictions",
            f"patterns: of the strongest {CLASSIFIED}, with {found.covered:.0%} of the gain"
            if found.classes
            else "",
            "" if text.unread else "no lift: every sequence was ranked on",
            "layers above 0: straight from the embedding" if model.config.n_layers > 1 else "",
            *(hidden_note(common, rare), search.note),
        )
    )
    cost = bug_cost(model, search.bugs, text.parts.held_out, progress=progress)
    return SkipTrigrams(records, tuple(search.bugs), cost, note, Rank.TEXT, found.classes)


def _silence(predictions: int) -> str:
    return (
        f"no skip-trigram fires: nowhere in {predictions} predictions does a head add {FIRES} to "
        "the logit of what comes next, from one source, and gain by it in total; rank='weights' "
        "lists the strongest in the weights"
    )


def _group(model: Model, effect: TextEffect) -> tuple[str, ...]:
    """A key shared by triples that differ only in spaces or case."""
    texts = [model.token_text(token) for token in effect.ids]
    if model.tokenizer is not None:
        plain = [model.tokenizer.text(token) for token in effect.ids]
        texts = [text.strip().casefold() or text for text in plain]
    return (effect.head, *texts)


def _scored(group: list[TextEffect], qk: Factored, ov: Factored) -> Triple:
    """The first of a group, with the score of all."""
    best = group[0]
    s, d, o = (torch.tensor([token]) for token in best.ids)
    attention, effect = float(qk.entries(d, s)), float(ov.entries(s, o))
    return Triple(best.head, *best.ids, attention, effect, sum(one.worth for one in group))


def _written(model: Model, effect: TextEffect) -> str:
    source, destination, out = map(model.token_text, effect.ids)
    return f"{source} … {destination} → {out}"


def _place(rows: Sequence[Int[Tensor, " pos"]], at: Occurrence) -> TriplePlace:
    ids = rows[at.sequence][: at.destination + 2].tolist()
    return TriplePlace(tuple(ids), at.source, at.destination)


def _quoted(model: Model, rows: Sequence[Int[Tensor, " pos"]], at: Occurrence) -> str:
    """The source with what is around it, an ellipsis, and the destination with what comes next."""

    def words(first: int, last: int) -> str:
        tokens = rows[at.sequence][max(first, 0) : last]
        return "".join(map(model.token_text, tokens.tolist()))

    after = words(at.destination + 1, at.destination + 2)
    if at.destination - at.source <= AROUND + 2:
        return f"{words(at.source - 1, at.destination + 1)}→{after}"
    before = words(at.source - 1, at.source + 2)
    return f"{before} … {words(at.destination - AROUND + 1, at.destination + 1)}→{after}"
