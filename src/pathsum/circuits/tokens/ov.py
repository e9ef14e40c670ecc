"""The OV circuit between tokens: what attending to a source does to the logits of each token."""

from dataclasses import dataclass

from pathsum.algebra import Factored, center_rows
from pathsum.circuits.tokens.token import (
    RARE,
    Scored,
    Token,
    common_tokens,
    find_token,
    hidden_note,
    joined,
    paired_table,
    resolve_k,
    token_of,
    top_scored,
)
from pathsum.circuits.tokens.token_basis import as_path, basis_note, circuit_label
from pathsum.model import HeadName, Model, Path
from pathsum.model.sequences import require_tokens_out
from pathsum.result import Record, Table


@dataclass(frozen=True, eq=False)
class Effect(Record, kind="ov-effect"):
    """What attending to one source token does to logits, relative to their mean."""

    head: str
    source: Token
    raises: tuple[Scored, ...]
    lowers: tuple[Scored, ...]
    own: float
    note: str

    def to_table(self) -> Table:
        """What it raises and what it lowers, side by side."""
        headings = ("raises", "by", "lowers", "by ")
        title = f"{self.head}: attending to {self.source} (its own logit {self.own:+.3f})"
        return paired_table(headings, self.raises, self.lowers, title, self.note)


def token_ov(model: Model, circuit: HeadName | Path) -> Factored:
    """Full OV of a head or a virtual head, W_U centered: row the source, column the prediction.

    `W_E W_V W_O (W_U − mean over the vocabulary)`, so an entry is how far the logit rises above the
    mean of all logits for each unit of attention. Rows of the dense matrix sum to 0.

    >>> from pathsum.model import construct
    >>> model = construct.skip_trigrams([("keep", "in", "mind")])
    >>> ov = token_ov(model, "L0H0")
    >>> keep, mind = model.token_id("keep"), model.token_id("mind")
    >>> round(float(ov.row(keep)[mind]), 2)  # the effect, 10, less the mean of all logits
    7.5

    On a model that normalizes, embeddings are as the first head's layer reads them at layer 0 and
    unnormalized deeper, and the final scale (one positive number per position) is left out. On a
    model with a soft cap on its logits these are logits before the cap.
    """
    return center_rows(as_path(model, circuit).full_ov(model))


def effect(
    model: Model,
    circuit: HeadName | Path,
    source: str | int,
    k: int | None = None,
    *,
    rare: int = RARE,
) -> Effect:
    """The tokens (10 if k is not given) that attending to `source` raises and lowers most."""
    require_tokens_out(model, "what a head does to tokens")
    k = resolve_k(k, 10, model.config.d_vocab, "tokens")
    path = as_path(model, circuit)
    token = find_token(model, source)
    row = token_ov(model, path).row(token)
    common = common_tokens(model, rare)
    lowers = tuple(Scored(s.token, -s.value) for s in top_scored(model, -row, k, common))
    return Effect(
        head=circuit_label(path),
        source=token_of(model, token),
        raises=top_scored(model, row, k, common),
        lowers=lowers,
        own=float(row[token]),
        note=joined((basis_note(model, path), hidden_note(common, rare))),
    )
