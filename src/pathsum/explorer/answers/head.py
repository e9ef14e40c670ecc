"""`head`, `copying`, `token`, `trigrams`, `contexts` and `ablation`: the page of one head."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from pathsum.algebra import Factored, extremes
from pathsum.base import Progress, Record
from pathsum.base.errors import TokenError
from pathsum.circuits import (
    OffsetProfile,
    SkipTrigrams,
    effect,
    positional,
    skip_trigrams,
    token_attention,
    token_ov,
    token_qk,
)
from pathsum.circuits.copying import CopyingNull, HeadCopying
from pathsum.circuits.qk_ov import Effect, TokenAttention
from pathsum.circuits.token_basis import (
    Scored,
    Token,
    as_path,
    common_tokens,
    join_notes,
    token_of,
    top_scored,
)
from pathsum.explorer.params import HeadParams
from pathsum.explorer.session import Session
from pathsum.heads.contexts import TopContexts, read_contexts
from pathsum.model import Model
from pathsum.model.sequences import require_tokens_out
from pathsum.paths import Ablation, After, IdealPattern, Reference, Replacement, ablate
from pathsum.paths import replace as replace_head
from pathsum.sources.load import load


@dataclass(frozen=True)
class TokenRow:
    """A token and the largest entries of its row."""

    token: Token
    others: tuple[Scored, ...]


@dataclass(frozen=True, kw_only=True)
class TokenParams(HeadParams):
    """One head and one token, by id."""

    token: int


@dataclass(frozen=True, eq=False)
class TokenTables(Record, kind="page-token"):
    """The OV circuit at a token (outputs, and sources that raise it), and its QK circuit.

    Attention scores are relative to the mean over keys, because a softmax compares the keys of one
    query.
    """

    effect: Effect
    raised_by: tuple[Scored, ...]
    attention: TokenAttention
    note: str


# Tokens per table of one token.
TABLE_LENGTH = 12
# Rows on a head's page, tokens per row, and the number of largest entries that select the rows.
ROWS, ROW_LENGTH, ENTRIES = 8, 6, 400
# Rows are searched among this many tokens; all pairs of a large vocabulary take half a minute.
MAX_TOKENS = 8192


def token(session: Session, params: TokenParams) -> TokenTables:
    """A head's circuits for one token as source, as destination and as output."""
    model = session.model(params)
    require_tokens_out(model, "the effect of a token as a source and as an output")
    name, source = model.head(params.head).label, model.token_id(params.token)
    is_common = common_tokens(model)
    k = min(TABLE_LENGTH, int(is_common.sum()))
    ov, qk = head_circuits(session, params)
    written = effect(model, name, source, k, ov=ov)
    attention = token_attention(model, name, source, k, qk=qk)
    return TokenTables(
        effect=written,
        raised_by=top_scored(model, ov.column(source), k, is_common),
        attention=attention,
        note=_remarks(written.note, attention.note),
    )


def head_circuits(session: Session, params: HeadParams) -> tuple[Factored, Factored]:
    """A head's full OV and QK in the token basis, cached for a small vocabulary."""
    config = session.model(params).config
    head = session.model(params).head(params.head).label

    def make(model: Model, _: Progress) -> tuple[Factored, Factored]:
        return token_ov(model, head), token_qk(model, head)

    if config.d_vocab > MAX_TOKENS:
        return make(session.model(params), session.progress)
    size = 16 * config.d_vocab * config.d_head
    return session.result(params, ("circuits", head), make, size)


def strongest_rows(model: Model, circuit: Factored) -> tuple[TokenRow, ...]:
    """The rows with the largest entries of a circuit between tokens, strongest first.

    Rare tokens are omitted. In a large vocabulary, only the most common tokens are searched, or the
    first tokens if counts are unknown.
    """
    is_common = common_tokens(model)
    ids = is_common.nonzero()[:, 0]
    if len(ids) > MAX_TOKENS and model.token_counts is not None:
        ids = ids[model.token_counts.cpu()[ids].argsort(descending=True, stable=True)]
    ids = ids[:MAX_TOKENS].sort().values.to(circuit.device)
    restricted = Factored(circuit.A[ids], circuit.B[:, ids])
    largest = extremes.topk(restricted, min(ENTRIES, len(ids) ** 2))
    tokens = list(dict.fromkeys(ids[largest.rows].tolist()))[:ROWS]
    return tuple(
        TokenRow(
            token_of(model, token), top_scored(model, circuit.row(token), ROW_LENGTH, is_common)
        )
        for token in tokens
    )


def rows_note(model: Model) -> str:
    """The tokens among which rows were searched, if not all tokens."""
    if int(common_tokens(model).sum()) <= MAX_TOKENS:
        return ""
    which = "first" if model.token_counts is None else "most common"
    return f"rows are chosen among the {MAX_TOKENS:,} {which} tokens"


def real_pairs(values: Tensor) -> Tensor:
    """Complex numbers as [n, 2], in float32."""
    return torch.view_as_real(values.resolve_conj()).float()


def scaled_to(null: Tensor, eigenvalues: Tensor) -> Tensor:
    """Null eigenvalues scaled to the root mean square of `eigenvalues`, to draw both together."""
    size = null.abs().square().mean().sqrt()
    return null * (eigenvalues.abs().square().mean().sqrt() / size) if size > 0 else null


@dataclass(frozen=True, eq=False)
class HeadPage(Record, kind="page-head"):
    """A head from its weights: copying, offsets and strongest tokens.

    `null_eigenvalues` are eigenvalues of random heads, scaled to those of the head; `offsets` is
    None for a model without positions. The shares of tokens in `copying` are None for a large
    vocabulary; the question `copying` computes them. The questions `atlas` and `composition` have
    the scores, kinds and edges of all heads, which take longer for a large model.
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
    """A head ablated, and replaced by descriptions, on some sequences."""

    on: str
    ablations: tuple[Ablation, ...]
    replacements: tuple[Replacement, ...]


@dataclass(frozen=True, eq=False)
class HeadAblation(Record, kind="page-ablation"):
    """Ablations and replacements of a head on each set of sequences."""

    head: str
    tests: tuple[AblationOn, ...]


# The number of null draws whose eigenvalues are drawn, of skip-trigrams, and of further bugs.
NULL_DRAWS, TRIPLES, MAX_BUGS = 20, 40, 20
# Held-out sequences for ranking skip-trigrams; fewer than the library's default.
TRIPLE_SEQUENCES = 12

_ABLATIONS = (
    (Reference.ZERO, After.RECOMPUTED),
    (Reference.ZERO, After.FREEZE_PATTERNS),
    (Reference.MEAN, After.RECOMPUTED),
    (Reference.FIRST, After.RECOMPUTED),
)


def head(session: Session, params: HeadParams) -> HeadPage:
    """The page of a head, from its weights alone."""
    model = session.model(params)
    name = model.head(params.head).label
    null = session.result(params, "copying null", lambda model, _: CopyingNull(model))
    measures = "all" if model.config.d_vocab <= MAX_TOKENS else "eigenvalues"
    copying = null.measure([name], measures=measures).heads[0]
    spectra = null.spectra([as_path(model, name)])[0, : NULL_DRAWS // 2].flatten()
    has_positions = model.config.at(model.head(name).id.layer).positions != "none"
    profile = positional(model, name).heads[0] if has_positions else None
    ov, qk = head_circuits(session, params)
    return HeadPage(
        head=name,
        copying=copying,
        null_eigenvalues=real_pairs(scaled_to(torch.cat((spectra, -spectra)), copying.eigenvalues)),
        offsets=profile,
        ov_rows=strongest_rows(model, ov),
        qk_rows=strongest_rows(model, qk),
        note=_remarks(copying.note, profile.note if profile else "", rows_note(model)),
    )


def _remarks(*notes: str) -> str:
    """The remarks of several notes without duplicates."""
    return join_notes(tuple(dict.fromkeys(remark for note in notes for remark in note.split("; "))))


def copied_shares(session: Session, params: HeadParams) -> OwnLogits:
    """The shares of tokens that a head copies, which take vocabulary² products."""
    null = session.result(params, "copying null", lambda model, _: CopyingNull(model))
    copying = null.measure([params.head], progress=session.progress).heads[0]
    return OwnLogits(copying.head, copying.positive_diagonal, copying.top_1, copying.top_5)


def trigrams(session: Session, params: HeadParams) -> SkipTrigrams:
    """A head's strongest skip-trigrams, and the strongest forced bugs."""
    model = session.model(params)
    k = min(TRIPLES, int(common_tokens(model).sum()) ** 2)
    triples = skip_trigrams(
        model, params.head, k, sequences=TRIPLE_SEQUENCES, progress=session.progress
    )
    keys = {(each.source, each.destination, each.out) for each in triples}
    others = [b for b in triples.bugs if (b.source, b.destination, b.out) not in keys]
    return replace(triples, bugs=tuple(others[:MAX_BUGS]))


def ablation(session: Session, params: HeadParams) -> HeadAblation:
    """Ablate a head in four ways and replace it by descriptions, on each set of sequences."""
    model = session.model(params)
    name = model.head(params.head).label
    tests: list[AblationOn] = []
    samples = session.sequences(params)
    for done, sequences in enumerate(samples):
        session.progress(done, len(samples), f"ablating {name} on {sequences.name}")
        ablations = [
            ablate(
                model,
                name,
                sequences.tokens,
                reference=reference,
                after=after,
                from_position=sequences.first,
            )
            for reference, after in _ABLATIONS
        ]
        replacements = [
            replace_head(
                model, name, sequences.tokens, pattern=pattern, from_position=sequences.first
            )
            for pattern in IdealPattern
        ]
        copying = replace_head(
            model, name, sequences.tokens, ov="copying", from_position=sequences.first
        )
        tests.append(AblationOn(sequences.name, tuple(ablations), (*replacements, copying)))
    return HeadAblation(name, tuple(tests))


# The number of contexts in each order and of sequences, fewer than the library's defaults for the
# sake of speed.
CONTEXTS, CONTEXT_SEQUENCES = 8, 24
# A sequence is prose if at least this share of it is letters and spaces, at most this share digits
# and signs that code is written with, and nothing is indented.
PROSE, CODE_SIGNS, MOST_SIGNS = 0.92, frozenset("_`={}[]<>#\\|@*~^$%&+/0123456789"), 0.005
INDENT = " " * 4
# The bundled model whose held-out text is used for models without one, and the sequence length.
CORPUS_OF, CONTEXT_LENGTH = "two-layer", 128
# Up to this many heads, contexts of all heads are computed at once; the size of that result.
SHARED_HEADS, SHARED_READING_BYTES = 16, 32 * 2**20


@dataclass(frozen=True, kw_only=True)
class ContextsParams(HeadParams):
    """A head, and the text of its contexts: only prose, if there is any, or all text."""

    text: Literal["prose", "all"] = "prose"


def _context_text(session: Session, params: HeadParams) -> tuple[Sequence[Tensor], str]:
    """The text in which contexts are searched, and its name.

    This is the model's held-out text or, without one, the user's texts, or the bundled held-out
    text if the tokenizer can encode it, or the example texts.
    """
    model = session.model(params)
    if model.held_out is not None:
        return list(model.held_out), "held-out text"
    if not session.texts and (bundled := _bundled_text(model)) is not None:
        return bundled, "the bundled prose and code"
    ids = [example.ids for example in session.examples(params) if len(example.ids) > 1]
    return [torch.tensor(each) for each in ids], "the example texts"


def _bundled_text(model: Model) -> list[Tensor] | None:
    """Sequences of the held-out text of a bundled model, in this model's tokens."""
    source = load(CORPUS_OF)
    if model.tokenizer is None or source.tokenizer is None or source.held_out is None:
        return None
    length = min(CONTEXT_LENGTH, model.config.n_ctx)
    try:
        # The first token of a row is the start token.
        ids = [model.encode(source.tokenizer.decode(row[1:].tolist())) for row in source.held_out]
    except TokenError:
        return None
    return [torch.tensor(row[:length]) for row in ids]


def _is_prose(model: Model, ids: Tensor) -> bool:
    if model.tokenizer is None:
        return False
    text = model.tokenizer.decode(ids[1:].tolist())
    letters = sum(letter.isalpha() or letter == " " for letter in text)
    signs = sum(letter in CODE_SIGNS for letter in text)
    return letters >= PROSE * len(text) and signs <= MOST_SIGNS * len(text) and INDENT not in text


def contexts(session: Session, params: ContextsParams) -> TopContexts:
    """The contexts in a text (`_context_text`) where a head is most active, and typical ones."""
    model = session.model(params)
    text, name = _context_text(session, params)
    prose = [row for row in text if _is_prose(model, row)] if params.text == "prose" else []
    text, name = (prose, f"prose in {name}") if prose else (text, name)
    # In a small model, all heads share one pass over the text.
    shared = len(model.heads) <= SHARED_HEADS
    labels = model.config.every_head if shared else (model.head(params.head).label,)
    reading = session.result(
        params,
        f"contexts in {name}" + ("" if shared else f" of {labels[0]}"),
        lambda model, report: read_contexts(
            model, labels, text, sequences=CONTEXT_SEQUENCES, progress=report
        ),
        SHARED_READING_BYTES,
    )
    top = reading.top(params.head, CONTEXTS)
    return replace(top, note=join_notes((f"on {top.sequences} sequences of {name}", top.note)))
