"""`vocabulary`: every token's text, for search and tables."""

from dataclasses import dataclass

from torch import Tensor

from pathsum.explorer.parameters import AboutModel
from pathsum.explorer.workbench import Workbench
from pathsum.model import Model
from pathsum.result import Record


@dataclass(frozen=True, eq=False)
class Vocabulary(Record, kind="page-vocabulary"):
    """`tokens[i]` is what token i decodes to, spaces and all; `undecodable` have no text.

    `counts` says how often training saw each token, where the model knows.
    """

    tokens: tuple[str, ...]
    counts: Tensor | None
    undecodable: tuple[int, ...]


# What decoding leaves of bytes that are no character by themselves.
REPLACEMENT = "\ufffd"


def vocabulary(bench: Workbench, asked: AboutModel) -> Vocabulary:
    """Every token's text; those that are no text by themselves are listed, and empty."""
    model = bench.model(asked)
    texts = [piece(model, token) for token in range(model.config.d_vocab)]
    return Vocabulary(
        tokens=tuple(text or "" for text in texts),
        counts=model.token_counts,
        undecodable=tuple(token for token, text in enumerate(texts) if text is None),
    )


def piece(model: Model, token: int) -> str | None:
    """A token's text, spaces and all, or None where it is no text by itself."""
    if model.tokenizer is None or token >= model.tokenizer.size:
        return None
    text = model.tokenizer.text(token)
    return None if REPLACEMENT in text else text
