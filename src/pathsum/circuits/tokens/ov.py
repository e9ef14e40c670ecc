"""The OV circuit between tokens: what attending to a source does to the logits of each token."""

from dataclasses import dataclass

import torch

from pathsum.algebra import Factored
from pathsum.base import Record, Table
from pathsum.circuits.tokens.token import (
    RARE,
    Scored,
    Token,
    common_tokens,
    find_token,
    hidden_note,
    joined,
    output_of,
    paired_table,
    resolve_k,
    token_of,
)
from pathsum.circuits.tokens.token_basis import as_path, basis_note, circuit_label
from pathsum.model import HeadName, Model, Path


@dataclass(frozen=True, eq=False)
class Effect(Record, kind="ov-effect"):
    """The effect on logits, relative to their mean, of attending to one source token.

    `own` is what it does to the token's own logit, None where outputs are not tokens.
    """

    head: str
    source: Token
    raises: tuple[Scored, ...]
    lowers: tuple[Scored, ...]
    own: float | None
    note: str

    def to_table(self) -> Table:
        """Raised and lowered tokens, side by side."""
        headings = ("raises", "by", "lowers", "by ")
        own = "" if self.own is None else f" (its own logit {self.own:+.3f})"
        title = f"{self.head}: attending to {self.source}{own}"
        return paired_table(headings, self.raises, self.lowers, title, self.note)


def token_ov(model: Model, circuit: HeadName | Path) -> Factored:
    """`full_ov` of a head or a virtual head by name: row the source, column the prediction.

    `W_E W_V W_O (W_U − mean over the vocabulary)`, so an entry is how far the logit rises above the
    mean of all logits for each unit of attention. Rows of the dense matrix sum to 0.

    >>> from pathsum.model import construct
    >>> model = construct.skip_trigrams([("keep", "in", "mind")])
    >>> ov = token_ov(model, "L0H0")
    >>> keep, mind = model.token_id("keep"), model.token_id("mind")
    >>> round(float(ov.row(keep)[mind]), 2)  # the effect, 10, less the mean of all logits
    7.5

    On a model that normalizes, embeddings are normalized if the first head is in layer 0 and
    unnormalized deeper, and the final scale (one positive number per position) is left out. On a
    model with a soft cap on its logits these are logits before the cap.
    """
    return as_path(model, circuit).full_ov(model)


def effect(
    model: Model,
    circuit: HeadName | Path,
    source: str | int,
    k: int | None = None,
    *,
    rare: int = RARE,
    ov: Factored | None = None,
) -> Effect:
    """The k outputs (10) that attending to `source` raises most, and the k that it lowers most.

    `ov` is the circuit's `token_ov`, if it is known already.
    """
    config = model.config
    k = resolve_k(k, 10, config.d_vocab_out, "tokens" if config.predicts_tokens else "outputs")
    path = as_path(model, circuit)
    token = find_token(model, source)
    row = (token_ov(model, path) if ov is None else ov).row(token)
    common = torch.ones_like(row, dtype=torch.bool)
    if config.predicts_tokens:
        common = common_tokens(model, rare).to(row.device)

    def largest(sign: int) -> tuple[Scored, ...]:
        best = (sign * row).masked_fill(~common, -torch.inf).topk(min(k, int(common.sum())))
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return tuple(Scored(output_of(model, output), sign * value) for output, value in pairs)

    return Effect(
        head=circuit_label(path),
        source=token_of(model, token),
        raises=largest(1),
        lowers=largest(-1),
        own=float(row[token]) if config.predicts_tokens else None,
        note=joined((basis_note(model, path), hidden_note(common, rare))),
    )
