"""A zero-layer model: its logits are a given bigram table."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.errors import InputError
from pathsum.model.config import Config
from pathsum.model.make import from_tensors
from pathsum.model.model import Model
from pathsum.text import Tokenizer


def bigram(
    probabilities: Float[Tensor, "vocab vocab"],
    words: Sequence[str] | None = None,
    *,
    n_ctx: int = 64,
) -> Model:
    """A zero-layer model whose next-token probabilities after token i are row i of a table.

    W_E is the identity and W_U the logarithm of the table, so `W_E W_U` is the bigram
    log-likelihood exactly.

    >>> table = torch.tensor([[0.9, 0.1], [0.5, 0.5]])
    >>> bigram(table, ["a", "b"])(torch.tensor([0])).softmax(-1)
    tensor([[0.9000, 0.1000]])
    """
    if probabilities.ndim != 2 or probabilities.shape[0] != probabilities.shape[1]:
        raise InputError(
            f"the table has shape {list(probabilities.shape)}; give a square table, one row and "
            "one column per token"
        )
    sums = probabilities.sum(-1)
    if bool((probabilities <= 0).any()) or not torch.allclose(sums, torch.ones_like(sums)):
        raise InputError(
            "the rows of the table are not probabilities above 0 that sum to 1 (log 0 is not a "
            "logit); smooth the counts and divide each row by its sum"
        )
    vocab = probabilities.shape[0]
    config = Config(
        n_layers=0, n_heads=1, d_model=vocab, d_head=1, d_vocab=vocab, n_ctx=n_ctx, positions="none"
    )
    identity = torch.eye(vocab, dtype=probabilities.dtype)
    tokenizer = None if words is None else Tokenizer.of_words(words)
    return from_tensors(
        config,
        {"W_E": identity, "W_U": probabilities.log()},
        name="hand-built bigrams",
        tokenizer=tokenizer,
    )
