"""`token`: what a head does with one token; and the token rows of head and edge pages."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pathsum.algebra import Factored, extremes
from pathsum.base import Record
from pathsum.circuits import attention, effect, token_ov, token_qk
from pathsum.circuits.qk_ov import Attention, Effect
from pathsum.circuits.token_basis import Scored, Token, common_tokens, joined, token_of, top_scored
from pathsum.explorer.params import HeadParams
from pathsum.explorer.workbench import Workbench
from pathsum.model import Model
from pathsum.model.sequences import require_tokens_out


@dataclass(frozen=True)
class TokenRow:
    """A token and the tokens that go with it most, with their values."""

    token: Token
    others: tuple[Scored, ...]


@dataclass(frozen=True, kw_only=True)
class TokenParams(HeadParams):
    """One head and one token, by id."""

    token: int


@dataclass(frozen=True, eq=False)
class TokenTables(Record, kind="page-token"):
    """OV: what attending to the token raises and lowers, and what raises it. QK: who attends to it.

    Attention scores are relative to the mean over keys, because a softmax compares the keys of one
    query.
    """

    effect: Effect
    raised_by: tuple[Scored, ...]
    attention: Attention
    note: str


# Tokens per table of one token.
TABLE_LENGTH = 12
# Rows on a head's page, tokens per row, and how many of the largest entries rows are taken from.
ROWS, ROW_LENGTH, ENTRIES = 8, 6, 400
# Rows are searched among this many tokens: all pairs of a large vocabulary take half a minute.
MAX_TOKENS = 8192


def token(bench: Workbench, params: TokenParams) -> TokenTables:
    """What a head does with a token as source, as destination and as output."""
    model = bench.model(params)
    require_tokens_out(model, "what a token does as a source and as an output")
    name, wanted = model.head(params.head).label, model.token_id(params.token)
    shown = common_tokens(model)
    k = min(TABLE_LENGTH, int(shown.sum()))
    circuits = head_circuits(bench, params)
    moved = effect(model, name, wanted, k, ov=circuits.ov)
    attends = attention(model, name, wanted, k, qk=circuits.qk)
    return TokenTables(
        effect=moved,
        raised_by=top_scored(model, circuits.ov.column(wanted), k, shown),
        attention=attends,
        note=joined(tuple(dict.fromkeys((*moved.note.split("; "), *attends.note.split("; "))))),
    )


@dataclass(frozen=True, eq=False)
class HeadCircuits:
    """A head's full OV and QK in the token basis."""

    ov: Factored
    qk: Factored


def head_circuits(bench: Workbench, params: HeadParams) -> HeadCircuits:
    """A head's circuits between tokens; those of a small vocabulary are kept."""

    def make(model: Model) -> HeadCircuits:
        return HeadCircuits(token_ov(model, params.head), token_qk(model, params.head))

    model = bench.model(params)
    if model.config.d_vocab > MAX_TOKENS:
        return make(model)
    return bench.result(params, f"circuits of {model.head(params.head).label}", make)


def strongest_rows(model: Model, circuit: Factored) -> tuple[TokenRow, ...]:
    """The rows that hold the largest entries of a circuit between tokens, strongest first.

    Each is one token with the tokens that its row gives most to. Rare tokens are left out.
    """
    shown = common_tokens(model)
    ids = _searched(model, shown).to(circuit.device)
    part = Factored(circuit.A[ids], circuit.B[:, ids])
    best = extremes.topk(part, min(ENTRIES, len(ids) ** 2))
    tokens = list(dict.fromkeys(ids[best.rows].tolist()))[:ROWS]
    return tuple(
        TokenRow(token_of(model, token), top_scored(model, circuit.row(token), ROW_LENGTH, shown))
        for token in tokens
    )


def rows_note(model: Model) -> str:
    """Which tokens rows were searched among, if not all of them."""
    if int(common_tokens(model).sum()) <= MAX_TOKENS:
        return ""
    which = "first" if model.token_counts is None else "most common"
    return f"rows are chosen among the {MAX_TOKENS:,} {which} tokens"


def _searched(model: Model, shown: Tensor) -> Tensor:
    """The ids that rows are searched among: the most common, or the first if counts are unknown."""
    ids = shown.nonzero()[:, 0]
    if len(ids) <= MAX_TOKENS:
        return ids
    if model.token_counts is not None:
        ids = ids[model.token_counts.cpu()[ids].argsort(descending=True, stable=True)]
    return ids[:MAX_TOKENS].sort().values


def as_pairs(values: Tensor) -> Tensor:
    """Complex numbers as [n, 2], in float32."""
    return torch.view_as_real(values.resolve_conj()).float()


def scaled_to(null: Tensor, own: Tensor) -> Tensor:
    """Null eigenvalues scaled to the root mean square of the circuit's own, to draw both together.

    Gaussian heads have no scale of their own.
    """
    size = null.abs().square().mean().sqrt()
    return null * (own.abs().square().mean().sqrt() / size) if size > 0 else null
