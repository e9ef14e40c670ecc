"""Tables about one head or one source token: token clusters, head and token cards, skip-trigrams.

Clusters are eigenvectors of a full OV circuit. With right eigenvectors v and left eigenvectors u,
scaled so that u · v = 1, the circuit is

    full OV = Σ_m λ_m v_m u_mᵀ

Through mode m, attending to token i changes the logit of token j by λ v[i] u[j]. Tokens for which v
and u are both large and of one sign raise each other (λ > 0) or lower each other (λ < 0). The
product v[i] u[i] is a token's share of the mode: shares sum to 1 and do not depend on how the
eigenvectors are scaled. A real mode has two ends, tokens with positive and with negative u; for
λ > 0 each end raises itself and lowers the other.

`source_table` is the paper's table of skip-trigrams: for one source, its destinations, its outs,
and examples.
"""

from dataclasses import dataclass
from itertools import product
from typing import Annotated

import torch
from jaxtyping import Bool, Float
from rich.console import RenderableType
from torch import Tensor

from pathsum.algebra.decompositions import eig, pinv
from pathsum.algebra.spectrum import balanced
from pathsum.base import Column, Progress, Record, Table, prose_column, silent, stacked, text_column
from pathsum.base.errors import InputError
from pathsum.base.table import columns_table
from pathsum.circuits import token_basis
from pathsum.circuits.copying import Copying, copying
from pathsum.circuits.positional import OffsetProfile, positional
from pathsum.circuits.qk_ov import (
    Effect,
    TokenAttention,
    effect,
    note_on_weights,
    require_trigrams,
    token_attention,
    token_ov,
    token_qk,
)
from pathsum.circuits.token_basis import Scored, Token, circuit_label, join_notes, top_scored
from pathsum.model import Head, HeadId, HeadName, Model, Path
from pathsum.model.sequences import require_tokens_out


def _format_eigenvalue(value: complex) -> str:
    return f"{value.real:+.2g}" + (f" ± {value.imag:.2g}i" if value.imag else "")


def _words(tokens: tuple[Scored, ...]) -> str:
    return " ".join(scored.token.text for scored in tokens) or "–"


@dataclass(frozen=True, eq=False)
class Mode(Record, kind="ov-mode"):
    """One eigenvalue and the tokens at its two ends, each with its share of the mode.

    `weight` is |λ| / Σ|λ|, counting both eigenvalues of a complex pair. Values are the shares
    v[i] u[i], or their real part for a complex pair, which also rotates tokens into one another.
    """

    eigenvalue: Annotated[complex, text_column("λ", _format_eigenvalue)]
    weight: Annotated[float, Column("weight", ".1%")]
    tokens: Annotated[tuple[Scored, ...], prose_column("one end", _words)]
    opposite: Annotated[tuple[Scored, ...], prose_column("other end", _words)]


@dataclass(frozen=True, eq=False)
class Clusters(Record, kind="ov-clusters"):
    """The strongest modes of a head's full OV circuit."""

    head: str
    modes: tuple[Mode, ...]
    note: str

    @property
    def table_title(self) -> str:
        """The head, and the definition of its clusters."""
        return f"{self.head}: token clusters, the eigenvectors of full OV"

    @property
    def table_note(self) -> str:
        """The meaning of the sign of λ, and notes."""
        legend = "the tokens of an end raise each other and lower the other end"
        return join_notes((f"λ > 0: {legend}; λ < 0: reversed", self.note))


@torch.no_grad()
def clusters(
    model: Model,
    circuit: HeadName | Path,
    modes: int | None = None,
    k: int | None = None,
) -> Clusters:
    """The modes with the largest |λ| (5), each with the k tokens (6) of largest share at its ends.

    Works on d_head × d_head products; only the requested modes are computed for the vocabulary.
    """
    require_tokens_out(model, "a mode of a head")
    modes = token_basis.resolve_k(modes, 5, model.config.d_head, "modes")
    k = token_basis.resolve_k(k, 6, model.config.d_vocab, "tokens")
    path = token_basis.as_path(model, circuit)
    ov = balanced(token_ov(model, path).to(torch.float64))
    values, small = eig(ov.B @ ov.A)
    dual = pinv(small)
    total = float(values.abs().sum())
    common = token_basis.common_tokens(model)
    order = values.abs().argsort(descending=True, stable=True)
    noise = 16 * torch.finfo(model.weights.dtype).eps * float(ov.A.norm() * ov.B.norm())
    # Of a complex pair, the eigenvalue with positive imaginary part; the other is its conjugate.
    indices = [int(i) for i in order if values[i].imag >= 0 and values[i].abs() > noise][:modes]
    records: list[Mode] = []
    for i in indices:
        value = complex(values[i])
        right = ov.A.to(small.dtype) @ small[:, i]
        left = dual[i] @ ov.B.to(small.dtype) / values[i]
        weight = (2 if value.imag > 0 else 1) * abs(value) / total
        records.append(Mode(value, weight, *_ends(model, right, left, k, common)))
    note = join_notes((token_basis.basis_note(model, path), token_basis.hidden_note(model, common)))
    return Clusters(circuit_label(path), tuple(records), note)


def _ends(
    model: Model, right: Tensor, left: Tensor, k: int, common: Tensor
) -> tuple[tuple[Scored, ...], tuple[Scored, ...]]:
    shares: Float[Tensor, " vocab"] = (right * left).real.cpu()
    peak = int(shares.masked_fill(~common, -torch.inf).argmax())
    # The phase of the strongest token decides which end is which.
    sign = (left * left[peak].conj()).real.cpu()
    first, second = (
        top_scored(model, shares, k, common & side & (shares > 0)) for side in (sign >= 0, sign < 0)
    )
    return first, second


EXAMPLES = 3


@dataclass(frozen=True, eq=False)
class SourceRow(Record, kind="source-row"):
    """The effects of one source token through one head.

    `destinations` attend most (centered QK), `outs` are raised most (centered OV), and `strength`
    is the largest QK times the largest OV. Examples pair them in order.
    """

    head: HeadId
    destinations: tuple[Scored, ...]
    outs: tuple[Scored, ...]
    strength: float
    examples: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class SourceTable(Record, kind="source-table"):
    """The paper's table for one source token, one row per head, strongest first."""

    source: Token
    rows: tuple[SourceRow, ...]
    note: str

    def to_table(self) -> Table:
        """Source, destinations, outs and examples, as the paper prints them."""
        columns = (
            *(text_column("head", "head"), Column("strength", ".1f", read="strength")),
            prose_column("destinations", lambda row: _words(row.destinations)),
            prose_column("outs", lambda row: _words(row.outs)),
            prose_column("examples", lambda row: ", ".join(row.examples)),
        )
        title = f"skip-trigrams with the source {self.source}"
        legend = "strength = best QK · best OV, both centered"
        return columns_table(self.rows, columns, title, join_notes((legend, self.note)))


@torch.no_grad()
def source_table(
    model: Model,
    source: str | int,
    head: HeadName | None = None,
    k: int | None = None,
    *,
    offset: int | None = None,
    progress: Progress = silent,
) -> SourceTable:
    """For one source: k destinations that attend to it, k outs it raises (default: 5), examples.

    >>> from pathsum.model import construct
    >>> model = construct.skip_trigrams([("keep", "in", "mind"), ("keep", "at", "bay")])
    >>> print(*source_table(model, "keep", k=1).rows[0].examples)
    keep … in mind
    """
    require_trigrams(model, "a table of skip-trigrams")
    k = token_basis.resolve_k(k, 5, model.config.d_vocab, "tokens")
    token = token_basis.find_token(model, source)
    common = token_basis.common_tokens(model)
    heads = list(model.heads) if head is None else [model.head(head)]
    rows: list[SourceRow] = []
    for index, reader in enumerate(heads):
        progress(index, len(heads), f"source table of {reader.label}")
        rows.append(_row(reader, token, k, common, offset))
    rows.sort(key=lambda row: -row.strength)
    note = note_on_weights(model, heads, offset, common)
    return SourceTable(token_basis.token_of(model, token), tuple(rows), note)


def _row(
    head: Head, source: int, k: int, common: Bool[Tensor, " vocab"], offset: int | None
) -> SourceRow:
    model = head.model
    qk = token_qk(model, head.id, offset=offset)
    attention = top_scored(model, qk.column(source), k, common)
    effect = top_scored(model, token_ov(model, head.id).row(source), k, common)
    destinations, outs = (
        tuple(scored for scored in ranked if scored.value > 0) for ranked in (attention, effect)
    )
    strength = destinations[0].value * outs[0].value if destinations and outs else 0.0
    # Advance in both lists together, so that examples are not all of the first destination.
    pairs = sorted(product(range(len(destinations)), range(len(outs))), key=sum)
    words = model.tokenizer is None or model.tokenizer.backend.decoder is None
    examples: list[str] = []
    for d, o in pairs[:EXAMPLES]:
        to, out = destinations[d].token.text, outs[o].token.text
        # Pieces of words contain their own spaces.
        gap = "" if not words or out.startswith("·") or to.endswith(("·", "⏎")) else " "
        examples.append(f"{model.token_text(source)} … {to}{gap}{out}")
    return SourceRow(head.label, destinations, outs, strength, tuple(examples))


@dataclass(frozen=True, eq=False)
class HeadCard(Record, kind="head-card"):
    """A head, or a virtual head, summarized from weights: copying, token clusters, offsets.

    `profile` is None for a virtual head, whose pattern is a product of two, and where the model
    has no positions; `copying` and `clusters` where its outputs are not tokens.
    """

    head: str
    copying: Copying | None
    clusters: Clusters | None
    profile: OffsetProfile | None

    def to_table(self) -> Table:
        """The card's first table: the copying numbers, if outputs are tokens."""
        card = self.profile if self.copying is None else self.copying
        assert card is not None  # see head_card
        return card.to_table()

    def __rich__(self) -> RenderableType:
        cards = [self.copying, self.clusters, self.profile]
        return stacked(*(card for card in cards if card is not None))


@dataclass(frozen=True, eq=False)
class TokenCard(Record, kind="token-card"):
    """One token's role in a head or virtual head.

    `attention` is None for a virtual head, which attends by a product of patterns without a QK
    circuit.
    """

    head: str
    token: Token
    attention: TokenAttention | None
    effect: Effect

    def to_table(self) -> Table:
        """The tokens it raises and lowers."""
        return self.effect.to_table()

    def __rich__(self) -> RenderableType:
        tables = [self.attention, self.effect]
        return stacked(*(table for table in tables if table is not None))


def head_card(model: Model, circuit: HeadName | Path, *, progress: Progress = silent) -> HeadCard:
    """A head's copying, token clusters and offset profile."""
    path = token_basis.as_path(model, circuit)
    single = path.order == 1 and model.config.at(path.heads[0].layer).positions != "none"
    profile = positional(model, path.heads[0]).heads[0] if single else None
    if profile is None:
        require_tokens_out(model, "the card of a head without offsets")
    if not model.config.predicts_tokens:
        return HeadCard(circuit_label(path), None, None, profile)
    copies = copying(model, path, progress=progress)
    return HeadCard(circuit_label(path), copies, clusters(model, path), profile)


def token_card(
    model: Model,
    circuit: HeadName | Path,
    token: str | int,
    k: int | None = None,
    *,
    offset: int | None = None,
) -> TokenCard:
    """The attention of a token to others and from others, and the logits it changes as a source."""
    path = token_basis.as_path(model, circuit)
    if path.order > 1 and offset is not None:
        raise InputError(
            f"offset={offset} was given for the virtual head {circuit_label(path)}, which has no "
            "QK circuit; name one head"
        )
    does, attends = effect(model, path, token, k), None
    if path.order == 1:
        attends = token_attention(model, path.heads[0], token, k, offset=offset)
    return TokenCard(circuit_label(path), does.source, attends, does)
