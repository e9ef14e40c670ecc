"""Tokenizer: text to ids and back, readable tokens, and byte-level BPE training."""

import binascii
import math
import os
import re
import threading
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers

from pathsum.base.errors import FileError, InputError, PathsumError, TokenError, near_misses
from pathsum.base.files import parse_object, read_text
from pathsum.base.options import list_some
from pathsum.base.sentence import shorten

START = "<|start|>"
"""The token before every document and every sequence; its id is 0 in tokenizers trained here."""

_BYTES = 256
_START_NAMES = (START, "<|endoftext|>", "<|begin_of_text|>", "<s>", "<bos>")
# Byte-level BPE writes each byte as one letter: printable bytes as themselves, the others in order
# as the letters from 256 on.
_PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
_OTHERS = [byte for byte in range(_BYTES) if byte not in _PRINTABLE]
_BYTE_OF = {chr(byte): byte for byte in _PRINTABLE} | {
    chr(_BYTES + index): byte for index, byte in enumerate(_OTHERS)
}
# The most bytes that a text may grow to before it is split into tokens, and a piece when it is
# shown. The rules of a hostile tokenizer.json, applied one after another, double a text each time.
_MAX_TEXT_BYTES = 1 << 28
# By how much a rule may multiply the bytes of a text; other rules, unknown to us, are given 4.
_GROWTH: dict[str, float] = {
    **dict.fromkeys(("NFC", "NFD"), 3.0),
    **dict.fromkeys(("NFKC", "NFKD"), 11.0),
    **dict.fromkeys(("BertNormalizer", "Metaspace"), 5.0),
    **dict.fromkeys(("Lowercase", "ByteLevel", "BPEDecoder", "CTC", "WordPiece"), 2.0),
    **dict.fromkeys(("Strip", "StripAccents", "Nmt", "Split", "Digits", "Punctuation"), 1.0),
    **dict.fromkeys(("Whitespace", "WhitespaceSplit", "BertPreTokenizer", "Fuse"), 1.0),
    **dict.fromkeys(("CharDelimiterSplit", "UnicodeScripts", "FixedLength", "ByteFallback"), 1.0),
}
_VISIBLE = str.maketrans({" ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍"})


def visible(text: str) -> str:
    """A token's text with visible white space, and without terminal control characters.

    >>> visible(" def\\n")
    '·def⏎'
    """
    spaced = text.translate(_VISIBLE)
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in spaced)


class Tokenizer:
    """A `tokenizers` tokenizer with the few operations that circuits need.

    `Tokenizer.of_words(["the", "cat"])` makes one with one token per word, for hand-built models.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = _deterministic(backend)
        self._growth = self._decoded_growth = 1.0
        # Tables and graphs ask for the same texts thousands of times.
        self._texts: dict[int, str] = {}
        self._visible: dict[int, str] = {}

    @classmethod
    def of_words(cls, words: Sequence[str]) -> "Tokenizer":
        """One token per word, split at white space; word i has id i."""
        vocabulary = {word: index for index, word in enumerate(words)}
        if len(vocabulary) != len(words):
            raise TokenError("a word is listed twice; every token needs its own text")
        backend = Backend(models.WordLevel(vocabulary))
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        return cls(backend)

    @classmethod
    def from_file(cls, file: Path) -> "Tokenizer":
        """Read a `tokenizer.json`."""
        return cls.from_json(read_text(file), str(file))

    @classmethod
    def from_json(cls, text: str, name: str = "the tokenizer") -> "Tokenizer":
        """Read the text of a `tokenizer.json`."""
        growth, decoded_growth = _check_growth(text, name)
        with _panics_to(FileError, f"{name} is not a tokenizer that can be used"), _quiet_stderr():
            try:
                tokenizer = cls(Backend.from_str(text))
            except Exception as error:  # tokenizers raises bare Exception, nothing finer
                raise FileError(
                    f"{name} is not a tokenizer that tokenizers {tokenizers.__version__} can read "
                    f"({error}); give a tokenizer.json written by that library"
                ) from error
            tokenizer._growth, tokenizer._decoded_growth = growth, decoded_growth
            # Some settings make the library panic on every text: fail here, not at the first use.
            with suppress(Exception):
                tokenizer.backend.encode("a b", add_special_tokens=False)
        return tokenizer

    def to_json(self) -> str:
        """The text of `tokenizer.json`."""
        return self.backend.to_str(pretty=False)

    @property
    def size(self) -> int:
        """The number of ids, special tokens included."""
        return self.backend.get_vocab_size(with_added_tokens=True)

    @property
    def has_whole_words(self) -> bool:
        """Whether every token is a word, so that none continues another."""
        return isinstance(self.backend.model, models.WordLevel)

    @cached_property
    def special_tokens(self) -> tuple[int, ...]:
        """Ids of tokens that mark something (start, end, padding) and never occur inside text."""
        pieces = self.backend.get_added_tokens_decoder()
        return tuple(sorted(token for token, piece in pieces.items() if piece.special))

    @cached_property
    def fragments(self) -> tuple[int, ...]:
        """Ids of tokens that are parts of characters, which have no text to show."""
        return tuple(token for token in range(self.size) if "\ufffd" in self.text(token))

    def encode(self, text: str) -> list[int]:
        """Ids of a text, without special tokens."""
        if self.has_whole_words:
            self._check_known_words(text)
        return self._encoding(text).ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of several texts at once, without special tokens."""
        for text in texts:
            self._check_encodable(text)
        with _panics_to(TokenError, "the tokenizer fails on one of these texts"):
            encodings = self.backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """The start and end of each token of a text, in characters."""
        return self._encoding(text).offsets

    def _encoding(self, text: str) -> tokenizers.Encoding:
        self._check_encodable(text)
        with _panics_to(TokenError, "the tokenizer fails on this text"):
            return self.backend.encode(text, add_special_tokens=False)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids."""
        pieces = (self.backend.id_to_token(token) or "" for token in ids)
        _check_length(4 * sum(map(len, pieces)), self._decoded_growth, "text")
        with _panics_to(TokenError, "the tokenizer fails on these ids"):
            return self.backend.decode(list(ids), skip_special_tokens=False)

    def text(self, token: int) -> str:
        """One token's text, with its leading space if it has one."""
        if token not in self._texts:
            self._texts[token] = self._decoded(token)
        return self._texts[token]

    def _decoded(self, token: int) -> str:
        piece = self.backend.id_to_token(token) if 0 <= token < 2**32 else None
        if piece is None:
            return f"<{token}>"
        decoder = self.backend.decoder
        _check_length(4 * len(piece), self._decoded_growth, f"token {token}")
        with _panics_to(TokenError, f"the tokenizer fails on token {token}"):
            return piece if decoder is None else decoder.decode([piece])

    def token_bytes(self, token: int) -> bytes | None:
        """One token's bytes, for tokens that are not whole characters; None if it is unknown."""
        piece = self.backend.id_to_token(token) or ""
        if single := re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", piece):
            return bytes.fromhex(single[1])
        is_bytes = bool(piece) and all(letter in _BYTE_OF for letter in piece)
        return bytes(_BYTE_OF[letter] for letter in piece) if is_bytes else None

    def show(self, token: int) -> str:
        """One token's text with visible white space."""
        if token not in self._visible:
            self._visible[token] = visible(self.text(token))
        return self._visible[token]

    def id(self, text: str) -> int:
        """The id of a text that is one token; the error for several tokens shows the pieces."""
        ids = self.encode(text)
        special = self.backend.token_to_id(text)
        if special is not None or len(ids) == 1:
            return ids[0] if special is None else special
        if not ids:
            raise TokenError("an empty text is not a token; give the text of one token")
        pieces = " + ".join(repr(self.text(token)) for token in ids)
        raise TokenError(
            f"{text!r} is {len(ids)} tokens in this tokenizer ({pieces}); "
            "give one of these pieces, or a token's id"
        )

    def _check_encodable(self, text: str) -> None:
        try:
            length = len(text.encode("utf-8"))
        except UnicodeEncodeError as error:
            raise TokenError(
                f"character {error.start} of the text is half of a surrogate pair "
                f"(\\u{ord(text[error.start]):04x}), which is not text; remove it"
            ) from error
        _check_length(length, self._growth, "text")

    def _check_known_words(self, text: str) -> None:
        for word in text.split():
            if word not in self._vocabulary:
                words = sorted(self._vocabulary, key=self._vocabulary.__getitem__)
                sample = list_some(list(map(repr, words)), 6)
                raise TokenError(
                    f"{shorten(word, 60)!r} is not a word of this tokenizer, which knows {sample}"
                    f"{near_misses(word, words)}"
                )

    @cached_property
    def _vocabulary(self) -> dict[str, int]:
        return self.backend.get_vocab(with_added_tokens=True)


def _deterministic(backend: Backend) -> Backend:
    """The tokenizer, or a copy of it without padding, truncation and dropout if it has any."""
    dropout = getattr(backend.model, "dropout", None)
    if backend.padding is None and backend.truncation is None and not dropout:
        return backend
    copy = Backend.from_str(backend.to_str())
    copy.no_padding()
    copy.no_truncation()
    if dropout:
        model: Any = copy.model
        model.dropout = None
        copy.model = model
    return copy


def _check_growth(text: str, name: str) -> tuple[float, float]:
    """By how much a tokenizer.json may multiply a text before it is split, and a piece's text.

    Raises FileError if it has rules that make even a short text, or one of its added tokens, too
    long. The library would apply them while it reads the file.
    """
    document = parse_object(text, name, "give a tokenizer.json written by tokenizers")
    before = [document.get("normalizer"), document.get("pre_tokenizer")]
    growth, decoded = _growth(before), _growth(document.get("decoder"))
    tokens = document.get("added_tokens") or []
    contents = [token.get("content") for token in tokens if isinstance(token, dict)]
    longest = max((len(token) for token in contents if isinstance(token, str)), default=0)
    for factor in (growth, decoded):
        if 4 * max(longest, len("a b")) * factor > _MAX_TEXT_BYTES:
            raise FileError(
                f"{name} has rules that may multiply the length of a text by {factor:.1g}, which "
                "would exhaust memory; use another tokenizer.json"
            )
    return growth, decoded


def _growth(rule: Any) -> float:
    """By how much a rule, or a list of rules in order, may multiply the bytes of a text."""
    if isinstance(rule, list):
        return min(math.prod(map(_growth, rule)), 1e300)
    if not isinstance(rule, dict):
        return 1.0
    # By fields first: the library also reads rules without a type.
    for key in ("normalizers", "pretokenizers", "decoders"):
        if key in rule:
            return _growth(rule[key])
    if "content" in rule and "pattern" in rule:
        pattern = rule["pattern"]
        literal = pattern.get("String") if isinstance(pattern, dict) else pattern
        content = len(str(rule["content"]).encode("utf-8", "replace"))
        if isinstance(literal, str) and literal:
            return max(1.0, content / len(literal.encode("utf-8", "replace")))
        return 1.0 + content  # a regular expression may match between all characters
    if "prepend" in rule:
        return 1.0 + len(str(rule["prepend"]).encode("utf-8", "replace"))
    if "precompiled_charsmap" in rule:
        return _longest_replacement(rule["precompiled_charsmap"])
    return _GROWTH.get(str(rule.get("type")), 4.0)


def _longest_replacement(charsmap: Any) -> float:
    """The longest of SentencePiece's replacements: after a trie, strings that end in zeros."""
    try:
        table = binascii.a2b_base64(charsmap if isinstance(charsmap, str) else bytes(charsmap))
    except (TypeError, ValueError):
        return 1.0  # which the library refuses to read
    strings = table[4 + int.from_bytes(table[:4], "little") :]
    return float(max(1, *map(len, strings.split(b"\0"))))


def _check_length(length: int, growth: float, name: str) -> None:
    if length * growth > _MAX_TEXT_BYTES:
        raise TokenError(
            f"a {name} of {length:,} bytes is too long for this tokenizer, whose rules may "
            f"multiply its length by {growth:.3g}; the most is {_MAX_TEXT_BYTES:,} bytes in all"
        )


@contextmanager
def _panics_to(kind: type[PathsumError], problem: str) -> Generator[None]:
    """Turn a panic of the tokenizers library, which is not an Exception, into a PathsumError."""
    try:
        yield
    except (Exception, KeyboardInterrupt, SystemExit, GeneratorExit) as error:
        if isinstance(error, PathsumError) or not isinstance(error, Exception):
            raise
        raise kind(f"{problem} ({error}); use another tokenizer.json") from error
    except BaseException as error:
        raise kind(
            f"{problem} (the library panics: {error}); use another tokenizer.json"
        ) from error


# stderr belongs to the process: a second thread would take the first one's silence for it.
_SILENCE = threading.Lock()


@contextmanager
def _quiet_stderr() -> Generator[None]:
    """Silence the process's stderr during a panic: the error carries its message."""
    with _SILENCE:
        try:
            stderr = os.dup(2)
        except OSError:  # stderr is closed
            yield
            return
        sink = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(sink, 2)
            yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            os.close(sink)


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
            f"256 bytes and the start token; use {least} or more"
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
            f"the text gives only {tokenizer.size} tokens, but vocabulary is {vocabulary}; give "
            f"more text, or use a vocabulary of at most {tokenizer.size}"
        )
    return tokenizer


def start_token_of(tokenizer: Tokenizer) -> int:
    """The id of a tokenizer's start token, under any of the usual names."""
    for token in map(tokenizer.backend.token_to_id, _START_NAMES):
        if token is not None:
            return token
    raise InputError(
        "the tokenizer has no token that marks a start (one of "
        f"{', '.join(_START_NAMES)}), and every training sequence begins with one; add one"
    )
