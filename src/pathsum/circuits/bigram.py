"""The direct path, W_E W_U: next-token predictions without any head.

A model with no layers consists of this table alone; the optimum is the bigram log-likelihood of the
training text, up to a constant per row. In a deeper model, the same term complements the heads.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.algebra.decompositions import require_finite
from pathsum.base import LOGITS, Column, Progress, Record, Source, Table, silent, token_column
from pathsum.base.errors import NotExactError
from pathsum.base.options import batch_size, checked
from pathsum.base.table import columns_table, rows_table
from pathsum.circuits import token_basis
from pathsum.circuits.bigram_fit import BigramFit, fit_bigrams
from pathsum.circuits.token_basis import Scored, Token, join_notes, output_of, token_of
from pathsum.model import Model, folding
from pathsum.model.head import carries_text
from pathsum.model.sequences import TextOrTokens, require_tokens_out, split_corpus
from pathsum.model.transformer import soft_cap


@dataclass(frozen=True, eq=False)
class CertainRow(Record, kind="certain-row"):
    """A token after which the direct path is nearly certain; entropy in nats."""

    token: Annotated[Token, token_column("token")]
    entropy: Annotated[float, Column("entropy", unit="nats")]
    next: Annotated[Token, token_column("next")]
    probability: Annotated[float, Column("probability")]


@dataclass(frozen=True, eq=False)
class Continuations(Record, kind="continuations"):
    """The direct path's predictions after one token; values are probabilities."""

    token: Token
    entropy: float
    likely: tuple[Scored, ...]
    note: str

    def to_table(self) -> Table:
        """The likeliest next tokens."""
        title = f"after {self.token} (entropy {self.entropy:.2f} nats)"
        columns = (token_column("next", "token"), Column("probability", ".4f", read="value"))
        return columns_table(self.likely, columns, title, self.note)


@dataclass(frozen=True, eq=False)
class Bigram(Record, kind="bigram"):
    """The direct path of a model: its most certain rows and its fit to a corpus, if any."""

    certain: tuple[CertainRow, ...]
    mean_entropy: float
    fit: BigramFit | None
    note: str
    _model: Model

    def after(self, token: str | int, k: int | None = None) -> Continuations:
        """The k likeliest tokens (10) after one token."""
        return continuations(self._model, token, k)

    def to_table(self) -> Table:
        """The fit to text if there is one, else the most certain rows."""
        if self.fit is not None:
            return self.fit.to_table()
        note = join_notes((f"mean entropy {self.mean_entropy:.2f} nats", self.note))
        title = "the direct path W_E W_U: most certain rows"
        return rows_table(self.certain, title, note, CertainRow)


@torch.no_grad()
@checked
def bigram(
    model: Model,
    corpus: TextOrTokens | None = None,
    k: int | None = None,
    *,
    progress: Progress = silent,
) -> Bigram:
    """The direct path as a table of next tokens: its most certain rows, and its fit to a text.

    Args:
        model: The model.
        corpus: A text, sequences of token ids or a corpus, to compare the direct path with.
        k: The number of rows, 20 by default.
        progress: Called as the work proceeds.

    Returns:
        The rows with the lowest entropy. With a corpus, also the fit: KL and rank correlation with
        the text's bigram table by token frequency, and the loss of the direct path compared with
        smoothed unigram and bigram counts on held-out sequences.

    Example:
        >>> from pathsum.model import construct
        >>> model = construct.bigram(torch.tensor([[0.9, 0.1], [0.5, 0.5]]), ["a", "b"])
        >>> row = bigram(model, k=1).certain[0]
        >>> print(row.token, row.next, round(row.probability, 3))
        a a 0.9

    Computes all vocabulary² logits once; for a single token use `continuations`. b_U is part of the
    direct path. On a model with layers and normalization, the scale of the final read is omitted,
    so the probabilities follow from this formula and do not match any run.
    """
    direct = DirectPath(model)
    common = token_basis.common_tokens(model)
    tokens = common.nonzero().squeeze(1)
    k = token_basis.resolve_k(k, 20, len(tokens), "rows")
    batches: list[Tensor] = []
    blocks = tokens.split(block_rows(model))
    for index, block in enumerate(blocks):
        progress(index, len(blocks), "the direct path")
        log_p = direct.rows(block).log_softmax(-1)
        top = log_p.max(-1)
        entropy = -(log_p.exp() * log_p).sum(-1)
        batches.append(torch.stack((entropy.double(), top.indices.double(), top.values.double())))
    progress(len(blocks), len(blocks), "the direct path")
    entropy, following, log_best = torch.cat(batches, 1).cpu()
    order = entropy.argsort(stable=True)[:k]
    columns = (tokens[order], entropy[order], following[order].long(), log_best[order].exp())
    rows = tuple(
        CertainRow(token_of(model, token), entropy, output_of(model, after), probability)
        for token, entropy, after, probability in zip(*(c.tolist() for c in columns), strict=True)
    )
    note = join_notes((_basis_note(model), token_basis.hidden_note(model, common)))
    fit = None
    if corpus is not None:
        require_tokens_out(model, "the fit to a bigram table")
        sizes = model.config.d_vocab, block_rows(model)
        fit = fit_bigrams(split_corpus(model, corpus), direct.rows, *sizes, progress=progress)
    return Bigram(rows, float(entropy.mean()), fit, note, model)


@torch.no_grad()
def continuations(model: Model, token: str | int, k: int | None = None) -> Continuations:
    """The direct path's k likeliest predictions (10) after one token."""
    direct = DirectPath(model)
    k = token_basis.resolve_k(k, 10, model.config.d_vocab_out, "tokens")
    token_id = token_basis.find_token(model, token)
    log_p = direct.rows(torch.tensor([token_id]))[0].log_softmax(-1)
    top = log_p.topk(k)
    pairs = zip(top.indices.tolist(), top.values.exp().tolist(), strict=True)
    return Continuations(
        token=token_of(model, token_id),
        entropy=float(-(log_p.exp() * log_p).sum()),
        likely=tuple(Scored(output_of(model, output), p) for output, p in pairs),
        note=_basis_note(model),
    )


class DirectPath:
    """Rows of `W_E W_U + b_U`, the final normalization folded in, computed on request.

    On a model without layers, these are exactly its logits. A soft cap on logits is applied to the
    direct path only.

    >>> from pathsum.model import construct
    >>> path = DirectPath(construct.bigram(torch.tensor([[0.9, 0.1], [0.5, 0.5]])))
    >>> path.rows(torch.tensor([0])).softmax(-1)
    tensor([[0.9000, 0.1000]])
    """

    def __init__(self, model: Model) -> None:
        if not carries_text(model, (Source("embed"), LOGITS)):
            raise NotExactError(
                "the direct path was edited in this model: the logits see the same embedding for "
                "every text; use the model without that edit"
            )
        self.weights = model.weights
        self.bias = folding.logit_bias(model.weights)

    def rows(self, tokens: Int[Tensor, " n"]) -> Float[Tensor, "n vocab"]:
        """The direct path's logits after some tokens."""
        x = folding.embeddings_as_read(self.weights, self.weights.config.n_layers, tokens)
        logits = require_finite(
            folding.apply_unembedding(self.weights, x) + self.bias, "a block of W_E W_U"
        )
        return soft_cap(logits, self.weights.config.logit_cap)


def block_rows(model: Model) -> int:
    """The number of rows of the direct path in one block."""
    return batch_size(4 * model.config.d_vocab_out)


def _basis_note(model: Model) -> str:
    depth = folding.token_basis_note(model.weights, model.config.n_layers)
    cap = model.config.logit_cap
    return join_notes((depth, "" if cap is None else f"the direct path alone, capped at ±{cap:g}"))
