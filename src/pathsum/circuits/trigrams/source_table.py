"""The paper's table of skip-trigrams: for one source, its destinations, its outs, and examples."""

from dataclasses import dataclass
from itertools import product

import torch
from jaxtyping import Bool
from torch import Tensor

from pathsum.base import Column, Progress, Record, Table, prose_column, silent, text_column
from pathsum.circuits.tokens.ov import token_ov
from pathsum.circuits.tokens.qk import token_qk
from pathsum.circuits.tokens.token import (
    RARE,
    Scored,
    Token,
    common_tokens,
    find_token,
    joined,
    resolve_k,
    token_of,
    top_scored,
)
from pathsum.circuits.trigrams.triple import check_trigrams, note_on_weights
from pathsum.model import Head, HeadId, HeadName, Model

EXAMPLES = 3


@dataclass(frozen=True, eq=False)
class SourceRow(Record, kind="source-row"):
    """The effects of one source token through one head.

    `destinations` attend most (centered QK), `outs` are what it raises most (centered OV), and
    `strength` is the best of one times the best of the other. Examples pair them in order.
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
            text_column("head"),
            Column("strength", ".1f"),
            prose_column("destinations"),
            prose_column("outs"),
            prose_column("examples"),
        )
        rows = tuple(
            (
                *(row.head, row.strength),
                " ".join(scored.token.text for scored in row.destinations),
                " ".join(scored.token.text for scored in row.outs),
                ", ".join(row.examples),
            )
            for row in self.rows
        )
        title = f"skip-trigrams with the source {self.source}"
        legend = "strength = best QK · best OV, both centered"
        return Table(columns, rows, title=title, note=joined((legend, self.note)))


@torch.no_grad()
def source_table(
    model: Model,
    source: str | int,
    head: HeadName | None = None,
    k: int | None = None,
    *,
    rare: int = RARE,
    offset: int | None = None,
    progress: Progress = silent,
) -> SourceTable:
    """For one source: the destinations that attend to it, the outs it raises, example strings.

    k of each are listed, 5 if it is not given.

    >>> from pathsum.model import construct
    >>> model = construct.skip_trigrams([("keep", "in", "mind"), ("keep", "at", "bay")])
    >>> print(*source_table(model, "keep", k=1).rows[0].examples)
    keep … in mind
    """
    check_trigrams(model, "a table of skip-trigrams")
    k = resolve_k(k, 5, model.config.d_vocab, "tokens")
    token = find_token(model, source)
    common = common_tokens(model, rare)
    heads = list(model.heads) if head is None else [model.head(head)]
    rows: list[SourceRow] = []
    for index, each in enumerate(heads):
        progress(index, len(heads), f"source table of {each.label}")
        rows.append(_row(each, token, k, common, offset))
    rows.sort(key=lambda row: -row.strength)
    note = note_on_weights(model, heads, offset, common, rare)
    return SourceTable(token_of(model, token), tuple(rows), note)


def _row(
    head: Head, source: int, k: int, common: Bool[Tensor, " vocab"], offset: int | None
) -> SourceRow:
    model = head.model
    qk = token_qk(model, head.id, offset=offset)
    attention = top_scored(model, qk.column(source), k, common)
    effect = top_scored(model, token_ov(model, head.id).row(source), k, common)
    destinations = tuple(scored for scored in attention if scored.value > 0)
    outs = tuple(scored for scored in effect if scored.value > 0)
    strength = destinations[0].value * outs[0].value if destinations and outs else 0.0
    # Advance in both lists together, so that examples are not all of the first destination.
    places = sorted(product(range(len(destinations)), range(len(outs))), key=sum)
    text = model.token_text(source)
    examples = tuple(
        _spoken(model, text, destinations[d].token, outs[o].token) for d, o in places[:EXAMPLES]
    )
    return SourceRow(head.label, destinations, outs, strength, examples)


def _spoken(model: Model, source: str, destination: Token, out: Token) -> str:
    """`keep … in mind`: no space is added to pieces that have their own."""
    carries = out.text.startswith("·") or destination.text.endswith(("·", "⏎"))
    words = model.tokenizer is None or model.tokenizer.backend.decoder is None
    gap = " " if words and not carries else ""
    return f"{source} … {destination}{gap}{out}"
