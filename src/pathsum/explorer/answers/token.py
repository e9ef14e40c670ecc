"""`token`: what one head does with one token."""

from dataclasses import dataclass

from pathsum.circuits import attention, effect, token_ov
from pathsum.circuits.tokens.token import common_tokens, joined, top_scored
from pathsum.explorer.answers.head_parts import TokenRow
from pathsum.explorer.parameters import AboutHead
from pathsum.explorer.token_rows import token_row
from pathsum.explorer.workbench import Workbench
from pathsum.result import Record


@dataclass(frozen=True, kw_only=True)
class TokenOf(AboutHead):
    """One head and one token, by id."""

    token: int


@dataclass(frozen=True, eq=False)
class TokenTables(Record, kind="page-token"):
    """OV: what attending to the token raises and lowers, and what raises it. QK: who it attends to.

    `attends_to` has the token as query, `attended_by` as key; scores are relative to the mean over
    keys, because a softmax compares the keys of one query.
    """

    head: str
    token: int
    raises: TokenRow
    lowers: TokenRow
    copied_from: TokenRow
    attends_to: TokenRow
    attended_by: TokenRow
    note: str


SHOWN = 12


def token(bench: Workbench, asked: TokenOf) -> TokenTables:
    """What a head does with a token, as source, as destination, and as what is raised."""
    model = bench.model(asked)
    name, wanted = model.head(asked.head).label, model.token_id(asked.token)
    shown = common_tokens(model)
    k = min(SHOWN, int(shown.sum()))
    does, looks = effect(model, name, wanted, k), attention(model, name, wanted, k)
    sources = top_scored(model, token_ov(model, name).column(wanted), k, shown)
    return TokenTables(
        head=name,
        token=wanted,
        raises=token_row(wanted, does.raises),
        lowers=token_row(wanted, does.lowers),
        copied_from=token_row(wanted, sources),
        attends_to=token_row(wanted, looks.attends_to),
        attended_by=token_row(wanted, looks.attended_by),
        note=joined(tuple(dict.fromkeys((*does.note.split("; "), *looks.note.split("; "))))),
    )
