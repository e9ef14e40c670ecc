"""Rows of tokens, as tables of a page show them, from circuits between tokens."""

from collections.abc import Sequence

import torch

from pathsum.algebra import Factored, extremes
from pathsum.circuits.tokens.token import Scored, common_tokens, top_scored
from pathsum.explorer.answers.head_parts import TokenRow
from pathsum.model import Model

# Rows of a table, tokens in a row, and the largest entries among which rows are looked for.
ROWS, WIDTH, ENTRIES = 8, 6, 400
# Tokens among which such rows are looked for: all pairs of a large vocabulary take half a minute.
MOST_TOKENS = 8192


def token_row(token: int, found: Sequence[Scored]) -> TokenRow:
    """A token and those that go with it."""
    return TokenRow(
        token,
        tuple(scored.token.id for scored in found),
        tuple(scored.value for scored in found),
    )


def strongest_rows(model: Model, circuit: Factored) -> tuple[TokenRow, ...]:
    """The rows that hold the largest entries of a circuit, rare tokens left out.

    Each is one token with those that its row gives most to, the strongest row first.
    """
    shown = common_tokens(model)
    ids = _searched(model, shown).to(circuit.device)
    part = Factored(circuit.A[ids], circuit.B[:, ids])
    best = extremes.topk(part, min(ENTRIES, len(ids) ** 2))
    tokens = list(dict.fromkeys(ids[best.rows].tolist()))[:ROWS]
    return tuple(
        token_row(token, top_scored(model, circuit.row(token), WIDTH, shown)) for token in tokens
    )


def rows_note(model: Model) -> str:
    """Which tokens rows were looked for among, where not among all."""
    if int(common_tokens(model).sum()) <= MOST_TOKENS:
        return ""
    which = "first" if model.token_counts is None else "most common"
    return f"rows are chosen among the {MOST_TOKENS:,} {which} tokens"


def _searched(model: Model, shown: torch.Tensor) -> torch.Tensor:
    """The tokens that rows are looked for among: the most common, or by id where none counted."""
    ids = shown.nonzero()[:, 0]
    if len(ids) <= MOST_TOKENS:
        return ids
    if model.token_counts is not None:
        ids = ids[model.token_counts.cpu()[ids].argsort(descending=True, stable=True)]
    return ids[:MOST_TOKENS].sort().values


def as_pairs(values: torch.Tensor) -> torch.Tensor:
    """Complex numbers as [n, 2], in float32."""
    return torch.view_as_real(values.resolve_conj()).float()


def scaled_like(null: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """A null's eigenvalues at the scale of the circuit's own, so that both can be drawn together.

    Gaussian heads have no scale of their own: their root mean square is set to the circuit's.
    """
    size = null.abs().square().mean().sqrt()
    return null * (own.abs().square().mean().sqrt() / size) if size > 0 else null
