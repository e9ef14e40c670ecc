"""Byte-level BPE: a tokenizer learned from a text, which can write every other text too."""

from collections.abc import Iterable

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers

from pathsum.errors import InputError
from pathsum.text.tokenizer import Tokenizer

START = "<|start|>"
"""The token before every document and every sequence; its id is 0 in tokenizers made here."""

_BYTES = 256
_KNOWN_STARTS = (START, "<|endoftext|>", "<|begin_of_text|>", "<s>", "<bos>")


def train_bpe(texts: Iterable[str], vocabulary: int) -> Tokenizer:
    """A tokenizer of exactly `vocabulary` tokens: the start token, 256 bytes, and merges.

    >>> tokenizer = train_bpe(["the cat and the hat, the cat"] * 9, 262)
    >>> tokenizer.size, tokenizer.text(0)
    (262, '<|start|>')

    Training is deterministic: the same texts in the same order give the same merges.
    """
    least = _BYTES + 1
    if vocabulary < least:
        raise InputError(
            f"a vocabulary of {vocabulary} is too small for byte-level BPE, which needs {least}: "
            f"256 bytes and the start token; {least} or more would be right"
        )
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[START],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    tokenizer = Tokenizer(backend)
    if tokenizer.size < vocabulary:
        raise InputError(
            f"the text gives only {tokenizer.size} tokens, and {vocabulary} were asked for; "
            f"give more text, or ask for a vocabulary of at most {tokenizer.size}"
        )
    return tokenizer


def start_of(tokenizer: Tokenizer) -> int:
    """The id of a tokenizer's start token, whichever of the usual names it has."""
    for text in _KNOWN_STARTS:
        found = tokenizer.backend.token_to_id(text)
        if found is not None:
            return found
    raise InputError(
        "the tokenizer has no token that marks a start (one of "
        f"{', '.join(_KNOWN_STARTS)}), and every training sequence begins with one; add one to it"
    )
