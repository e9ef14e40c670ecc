"""A tokenizer: text to ids and back, and single tokens as a person can read them."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import tokenizers
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers

from pathsum.errors import FileError, TokenError, near_misses

_VISIBLE = str.maketrans({" ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍"})


def visible(text: str) -> str:
    """A token's text with its white space made visible, and nothing that moves a terminal.

    >>> visible(" def\\n")
    '·def⏎'
    """
    shown = text.translate(_VISIBLE)
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in shown)


class Tokenizer:
    """A `tokenizers` tokenizer with the few questions that circuits ask of one.

    `Tokenizer.of_words(["the", "cat"])` makes one with a token a word, for models built by hand.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    @classmethod
    def of_words(cls, words: Sequence[str]) -> "Tokenizer":
        """One token a word, split at white space; word i has id i."""
        vocabulary = {word: index for index, word in enumerate(words)}
        if len(vocabulary) != len(words):
            raise TokenError("a word is listed twice; each token needs a text of its own")
        backend = Backend(models.WordLevel(vocabulary))
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        return cls(backend)

    @classmethod
    def from_file(cls, file: Path) -> "Tokenizer":
        """Read a `tokenizer.json`."""
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise FileError(f"{file} is not UTF-8 text, so it is not a tokenizer.json") from error
        return cls.from_json(text, str(file))

    @classmethod
    def from_json(cls, text: str, name: str = "the tokenizer") -> "Tokenizer":
        """Read the text of a `tokenizer.json`."""
        try:
            return cls(Backend.from_str(text))
        except Exception as error:  # tokenizers raises bare Exception, nothing finer
            raise FileError(
                f"{name} is not a tokenizer that tokenizers {tokenizers.__version__} can read "
                f"({error}); a tokenizer.json as written by that library would be right"
            ) from error

    def to_json(self) -> str:
        """The text of `tokenizer.json`."""
        return self.backend.to_str(pretty=False)

    @property
    def size(self) -> int:
        """How many ids it knows, special tokens included."""
        return self.backend.get_vocab_size(with_added_tokens=True)

    @cached_property
    def special_tokens(self) -> tuple[int, ...]:
        """Ids of tokens that mark something (start, end, padding) and never occur inside text."""
        added = self.backend.get_added_tokens_decoder()
        return tuple(sorted(token for token, piece in added.items() if piece.special))

    def encode(self, text: str) -> list[int]:
        """Ids of a text, without special tokens."""
        if isinstance(self.backend.model, models.WordLevel):
            self._refuse_unknown_words(text)
        return self.backend.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids."""
        return self.backend.decode(list(ids), skip_special_tokens=False)

    def text(self, token: int) -> str:
        """One token's text, with its leading space if it has one."""
        piece = self.backend.id_to_token(token)
        if piece is None:
            return f"<{token}>"
        decoder = self.backend.decoder
        return piece if decoder is None else decoder.decode([piece])

    def show(self, token: int) -> str:
        """One token's text with white space made visible."""
        return visible(self.text(token))

    def id(self, text: str) -> int:
        """The id of a text that is one token; an error shows the pieces of one that is several."""
        special = self.backend.token_to_id(text)
        if special is not None:
            return special
        ids = self.encode(text)
        if len(ids) == 1:
            return ids[0]
        if not ids:
            raise TokenError("an empty text is no token; one token's text would be right")
        pieces = " + ".join(repr(self.text(token)) for token in ids)
        raise TokenError(
            f"{text!r} is {len(ids)} tokens in this tokenizer ({pieces}); "
            "one of these pieces, or a number as a token's id, would be right"
        )

    def _refuse_unknown_words(self, text: str) -> None:
        for word in text.split():
            if word not in self._vocabulary:
                raise TokenError(
                    f"{word!r} is not a word of this tokenizer, which knows {self._examples()}"
                    + near_misses(word, self._vocabulary)
                )

    @cached_property
    def _vocabulary(self) -> dict[str, int]:
        return self.backend.get_vocab(with_added_tokens=True)

    def _examples(self, count: int = 6) -> str:
        words = sorted(self._vocabulary, key=self._vocabulary.__getitem__)
        listed = ", ".join(repr(word) for word in words[:count])
        return listed + (f" and {len(words) - count} more" if len(words) > count else "")
