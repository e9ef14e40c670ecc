"""`composition`, `embed_and_logit_edges` and `edge`: which heads read the output of which."""

from dataclasses import dataclass

import torch
from jaxtyping import Complex
from torch import Tensor

from pathsum.algebra import Factored
from pathsum.base import HeadId, Path, Record, Side, Site
from pathsum.base.errors import InputError, NotExactError
from pathsum.base.options import parse_choice
from pathsum.circuits import (
    Composition,
    ScoredEdge,
    VirtualWeights,
    composition,
    token_ov,
    token_qk,
    virtual_weights,
)
from pathsum.circuits.copying import CopyingNull
from pathsum.circuits.matching import embedding_product, null_matching_spectra
from pathsum.circuits.reads_and_writes import KINDS, CompositionKind
from pathsum.circuits.token_basis import join_notes
from pathsum.claims.examples import Sequences
from pathsum.explorer.answers.head import TokenRow, real_pairs, rows_note, scaled_to, strongest_rows
from pathsum.explorer.params import ModelParams, page_words
from pathsum.explorer.session import Session
from pathsum.model import Model
from pathsum.model.losses import sequence_losses
from pathsum.paths import Estimate
from pathsum.text.token_pool import shuffled


@dataclass(frozen=True, kw_only=True)
class EdgeParams(ModelParams):
    """An edge by its name: `L0H7→L1H4.k` is L0H7 read by the keys of L1H4."""

    edge: str


@dataclass(frozen=True)
class ChanceCount:
    """The expected number of edges of each kind at or above z under the null."""

    z: float
    q: float
    k: float
    v: float


@dataclass(frozen=True, eq=False)
class CompositionAnswer(Record, kind="page-composition"):
    """Composition scores of all heads, and the null's edge counts at each threshold."""

    composition: Composition
    chance: tuple[ChanceCount, ...]


@dataclass(frozen=True)
class PatchEffectOn:
    """The rise of the loss on some sequences when the edge is patched."""

    on: str
    cost: Estimate


@dataclass(frozen=True, eq=False)
class EdgePage(Record, kind="page-edge"):
    """A composed circuit: its spectrum and null, its strongest tokens, and its effect on runs."""

    edge: Site
    weights: VirtualWeights
    eigenvalues: Tensor
    null_eigenvalues: Tensor
    rows: tuple[TokenRow, ...]
    row_meaning: str
    patching: tuple[PatchEffectOn, ...]
    note: str


# The thresholds of the slider: 1, 1.5, … 12.
THRESHOLDS = tuple(1 + step / 2 for step in range(23))
# Null draws whose eigenvalues are drawn behind those of the circuit.
NULL_DRAWS = 20
# Runs with at most this many logits (16 MB) are cached for the pages of other edges.
SHARED_LOGITS = 1 << 22

_ROW_MEANINGS: dict[str, str] = page_words("row_meanings")


def answer_composition(session: Session, params: ModelParams) -> CompositionAnswer:
    """Q-, K- and V-composition of all heads, and the expected number of edges under the null."""
    result = all_composition(session, params)
    counts = [
        ChanceCount(z, *(float(result.scores(kind).tails(z).sum()) for kind in KINDS))
        for z in THRESHOLDS
    ]
    return CompositionAnswer(result, tuple(counts))


def all_composition(session: Session, params: ModelParams) -> Composition:
    """The library's composition scores of a model, cached."""
    return session.result(params, "composition", lambda model, to: composition(model, progress=to))


def edge(session: Session, params: EdgeParams) -> EdgePage:
    """The composition of two heads: score, circuit between tokens, and effect on losses."""
    model = session.model(params)
    writer, reader, kind = _parse_edge(model, params.edge)
    session.progress(0, 4, "virtual weights")
    weights = virtual_weights(model, writer, f"{reader}.{kind}")
    circuit = _token_circuit(model, writer, reader, kind)
    session.progress(1, 4, "eigenvalues")
    values = circuit.eigenvalues()
    null = _null_eigenvalues(model, writer, reader, kind)
    session.progress(2, 4, "strongest rows")
    rows = strongest_rows(model, circuit)
    session.progress(3, 4, "patching the edge")
    scales = "the circuit between tokens omits the scales of normalization"
    return EdgePage(
        edge=Site(writer, reader, Side(kind)),
        weights=weights,
        eigenvalues=real_pairs(values),
        null_eigenvalues=real_pairs(scaled_to(null, values)),
        rows=rows,
        row_meaning=_ROW_MEANINGS[kind].format(writer=writer, reader=reader),
        patching=_patching(session, params, writer, reader, kind),
        note=join_notes(("" if model.config.norm == "none" else scales, rows_note(model))),
    )


def _parse_edge(model: Model, name: str) -> tuple[HeadId, HeadId, CompositionKind]:
    edge = Site.parse(name[:60])
    if not isinstance(edge.writer, HeadId) or not isinstance(edge.reader, HeadId):
        raise InputError(f"{edge} does not connect two heads; use an edge such as 'L0H7→L1H4.k'")
    writer, reader = model.head(edge.writer).id, model.head(edge.reader).id
    assert edge.side is not None
    return writer, reader, parse_choice(KINDS, edge.side.value, "side")


def _token_circuit(model: Model, writer: str, reader: str, kind: str) -> Factored:
    """The composed circuit between tokens."""
    through = Path("embed", [writer])
    if kind == "v":
        return token_ov(model, Path("embed", [writer, reader]))
    if kind == "q":
        return token_qk(model, reader, query_through=through)
    return token_qk(model, reader, key_through=through)


def _null_eigenvalues(
    model: Model, writer: HeadId, reader: HeadId, kind: CompositionKind
) -> Complex[Tensor, " n"]:
    """Eigenvalues with the reader (for values, also the writer) rotated at random."""
    if kind == "v":
        null = CopyingNull(model, draws=NULL_DRAWS)
        spectra = null.spectra([Path("embed", [writer, reader])])
    else:
        product = embedding_product(model, writer.layer)
        spectra = null_matching_spectra(model, [reader], writer, product, draws=NULL_DRAWS)
    return torch.cat((spectra, -spectra)).flatten()


def _patching(
    session: Session, params: EdgeParams, writer: str, reader: str, kind: CompositionKind
) -> tuple[PatchEffectOn, ...]:
    """The rise of the loss when the edge is patched from a run of shuffled tokens."""
    model = session.model(params)
    rows: list[PatchEffectOn] = []
    for sequences in session.sequences(params):
        shuffled_tokens = shuffled(sequences.tokens, int(model.config.start_token is not None))
        texts = (
            sequences,
            Sequences(f"{sequences.name}, shuffled", shuffled_tokens, sequences.first),
        )
        if sequences.tokens.numel() * model.config.d_vocab_out <= SHARED_LOGITS:
            trace, other = (session.sequence_run(params, each) for each in texts)
        else:
            trace, other = (model.trace(each.tokens) for each in texts)
        patched = trace.patch({(writer, reader, kind): other})
        before = sequence_losses(trace.logits, sequences.tokens, sequences.first)
        cost = sequence_losses(patched.logits, sequences.tokens, sequences.first).above(before)
        rows.append(PatchEffectOn(sequences.name, cost))
    return tuple(rows)


@dataclass(frozen=True, eq=False)
class EmbedAndLogitEdges(Record, kind="page-embed-and-logit-edges"):
    """Edges from the embedding and to the logits, strongest first; `note` lists omissions.

    The scores are those of `pathsum.circuits.virtual_weights`, comparable with scores between two
    heads.
    """

    edges: tuple[ScoredEdge, ...]
    note: str


# Four products with the vocabulary per head take too long for larger models.
MAX_END_HEADS = 48


def embed_and_logit_edges(session: Session, params: ModelParams) -> EmbedAndLogitEdges:
    """Edges from the embedding to every query, key and value, and from every head to the logits."""
    model = session.model(params)
    if len(model.heads) > MAX_END_HEADS:
        return EmbedAndLogitEdges(
            (), f"Edges of the embedding and the logits are omitted above {MAX_END_HEADS} heads."
        )
    edges: list[ScoredEdge] = []
    notes: dict[str, None] = {}
    labels = model.config.every_head
    pairs = [("embed", f"{label}.{side}") for label in labels for side in "qkv"]
    for write, read in (*pairs, *((label, "logits") for label in labels)):
        try:
            weights = virtual_weights(model, write, read)
        except (InputError, NotExactError) as error:
            notes[str(error)] = None
            continue
        edges.append(ScoredEdge(weights.edge, weights.score, weights.excess, weights.z, weights.p))
    edges.sort(key=lambda edge: -edge.z)
    return EmbedAndLogitEdges(tuple(edges), join_notes(tuple(notes)))
