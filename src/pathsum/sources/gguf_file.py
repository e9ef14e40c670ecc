"""GGUF files: metadata, tensors and the tokenizer.

The header is parsed here, because the reader of the gguf package makes several arrays per string,
which takes seconds for a tokenizer. Tensors are dequantized by the gguf package when they are read.
"""

import mmap
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend
from torch import Tensor

from pathsum.base.errors import ConfigError, FileError, PathsumError, damaged, near_misses
from pathsum.base.files import first_bytes
from pathsum.model.store import Store
from pathsum.text import Tokenizer

_STRING, _ARRAY = 8, 9
# The largest total number of entries in the arrays of a header. The largest vocabularies have
# 300,000 tokens, each with a text, a score, a kind and up to two merges.
_MAX_ENTRIES = 1 << 22
# The longest token of a SentencePiece tokenizer, and the total length of all, in characters.
_MAX_TOKEN_LENGTH, _MAX_CHARACTERS = 1 << 9, 1 << 23
# GGUF's value types as format characters of struct.
_NUMBERS = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}


@dataclass(frozen=True)
class _Tensor:
    shape: tuple[int, ...]
    kind: int
    offset: int
    n_bytes: int


class GgufFile(Store):
    """The tensors in float32, by the names in the file, and the metadata as plain values."""

    def __init__(self, file: Path) -> None:
        self.file = file
        header = _Header(file)
        try:
            self.metadata: Mapping[str, Any] = header.read_metadata()
            tensors = header.read_tensors()
        except (struct.error, IndexError, OverflowError, RecursionError, MemoryError) as error:
            raise damaged(file, f"has an incomplete or invalid header ({error})") from error
        alignment = self.metadata.get("general.alignment", 32)
        if alignment not in (1 << bits for bits in range(3, 21)):
            problem = f"has general.alignment={alignment!r}, which is not a power of two from 8 on"
            raise damaged(file, problem)
        self._start = -(-header.at // alignment) * alignment
        self._tensors = {name: self._locate(name, *entry) for name, entry in tensors.items()}
        self.shapes = {name: tensor.shape for name, tensor in self._tensors.items()}
        self.dtypes = dict.fromkeys(self._tensors, torch.float32)
        self._check_offsets(alignment)
        self._bytes = np.memmap(file, dtype=np.uint8, mode="c")

    def copies(self, name: str) -> bool:
        """Whether a tensor is dequantized, because it is not stored as float32."""
        return self._tensors[name].kind != 0

    def get(self, name: str) -> Tensor:
        """A tensor: mapped if it is stored as float32, otherwise dequantized."""
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize

        tensor = self._tensors[name]
        data = self._bytes[tensor.offset : tensor.offset + tensor.n_bytes]
        kind = GGMLQuantizationType(tensor.kind)
        if kind is GGMLQuantizationType.F32:
            return torch.from_numpy(data.view(np.float32)).reshape(tensor.shape)
        if kind is GGMLQuantizationType.F16:
            return torch.from_numpy(data.view(np.float16)).reshape(tensor.shape).float()
        try:
            # A plain array, because slicing a memmap many times is slow.
            numbers = dequantize(np.asarray(data).reshape(*tensor.shape[:-1], -1), kind)
        except NotImplementedError as error:
            raise FileError(
                f"{self.file} stores {name} as {kind.name}, which the gguf package does not "
                "dequantize; use a file in F16 or Q8_0"
            ) from error
        return torch.from_numpy(np.ascontiguousarray(numbers)).reshape(tensor.shape)

    def _check_offsets(self, alignment: int) -> None:
        """Raise an error unless tensors are aligned, disjoint, and inside the file."""
        end, before = self._start, "the header"
        for name, tensor in sorted(self._tensors.items(), key=lambda item: item[1].offset):
            where = f"stores {name} at byte {tensor.offset}, which is"
            if tensor.offset < end or (tensor.offset - self._start) % alignment:
                raise damaged(
                    self.file, f"{where} inside {before} or not a multiple of {alignment}"
                )
            end, before = tensor.offset + tensor.n_bytes, name
        size = self.file.stat().st_size
        if end > size:
            raise damaged(self.file, f"has {size:,} bytes, and its header describes {end:,}")

    def _locate(self, name: str, shape: tuple[int, ...], kind: int, offset: int) -> _Tensor:
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

        kinds = {member.value: member for member in GGMLQuantizationType}
        if kind not in kinds:
            raise FileError(
                f"{self.file} stores {name} in the layout {kind}, which this version of the gguf "
                "package does not know; update gguf, or use a file in F16 or Q8_0"
            )
        block, size = GGML_QUANT_SIZES[kinds[kind]]
        if not 1 <= len(shape) <= 4 or offset % 4 or shape[-1] % block:
            problem = f"{list(shape)[:8]} at byte {offset}, in blocks of {block}"
            raise damaged(self.file, f"stores {name} of shape {problem}, which is not valid GGUF")
        return _Tensor(shape, kind, self._start + offset, prod(shape) // block * size)


class _Header:
    """A cursor over the header of a file."""

    def __init__(self, file: Path) -> None:
        if first_bytes(file, 4) != b"GGUF":
            raise FileError(f"{file} does not begin with GGUF, so it is not a GGUF file")
        self.file, self.at, self._entries = file, 4, 0
        try:
            with file.open("rb") as stream:
                self._map = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise FileError(f"{file} cannot be mapped into memory: {error.strerror}") from error
        try:
            version = self._number(4)
            self._n_tensors, self._n_values = self._number(10), self._number(10)
        except struct.error as error:
            raise damaged(file, "ends inside its header") from error
        if version not in (2, 3):
            raise FileError(
                f"{file} is GGUF version {version}, and pathsum reads versions 2 and 3 "
                "(little-endian); convert it again with a current llama.cpp"
            )

    def read_metadata(self) -> dict[str, Any]:
        """All keys and values, in order."""
        metadata: dict[str, Any] = {}
        for _ in range(self._n_values):
            key = self._string()
            if key in metadata:
                raise damaged(f"the metadata of {self.file}", f"has {key} twice")
            metadata[key] = self._value(self._number(4))
        return metadata

    def read_tensors(self) -> dict[str, tuple[tuple[int, ...], int, int]]:
        """Shape (slowest axis first), layout and offset of each tensor."""
        tensors: dict[str, tuple[tuple[int, ...], int, int]] = {}
        for _ in range(self._n_tensors):
            name = self._string()
            if name in tensors:
                raise damaged(self.file, f"has {name} twice")
            sizes = [self._number(10) for _ in range(self._number(4))]
            tensors[name] = (tuple(reversed(sizes)), self._number(4), self._number(10))
        return tensors

    def _number(self, kind: int) -> Any:
        form = "<" + _NUMBERS[kind]
        (value,) = struct.unpack_from(form, self._map, self.at)
        self.at += struct.calcsize(form)
        return value

    def _string(self) -> str:
        length = self._number(10)
        if self.at + length > len(self._map):
            raise IndexError(f"a string of {length} bytes at byte {self.at}")
        text = self._map[self.at : self.at + length]
        self.at += length
        return text.decode("utf-8", errors="surrogateescape")

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            if kind not in _NUMBERS:
                raise IndexError(f"a value of type {kind} at byte {self.at}")
            return self._number(kind)
        item_kind, length = self._number(4), self._number(10)
        self._entries += length
        if self._entries > _MAX_ENTRIES:
            raise IndexError(f"lists of more than {_MAX_ENTRIES:,} entries at byte {self.at}")
        if item_kind not in _NUMBERS:
            return [self._value(item_kind) for _ in range(length)]
        form = f"<{length}{_NUMBERS[item_kind]}"
        values = struct.unpack_from(form, self._map, self.at)
        self.at += struct.calcsize(form)
        return list(values)


# ---- the tokenizer: byte-level BPE, or SentencePiece's

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}|"
    r" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _splits(*first: pre_tokenizers.PreTokenizer, by_words: bool) -> pre_tokenizers.PreTokenizer:
    """Steps before byte-level symbols; with `by_words`, text is then split into GPT-2's words."""
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=by_words)
    return pre_tokenizers.Sequence([*first, last]) if first else last


def _by_regex(digits: str) -> pre_tokenizers.PreTokenizer:
    words = Regex(_WORDS.format(digits=digits))
    return _splits(pre_tokenizers.Split(words, "isolated"), by_words=False)


# The rules that split text into words before merges, by their names in GGUF.
_WORD_RULES: dict[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    **dict.fromkeys(("default", "gpt-2", "gpt2", "phi-2", "olmo"), lambda: _splits(by_words=True)),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "codeshell"),
        lambda: _splits(pre_tokenizers.Digits(individual_digits=True), by_words=True),
    ),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3"), lambda: _by_regex("{1,3}")),
    **dict.fromkeys(("qwen2", "stablelm2"), lambda: _by_regex("")),
}


def read_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer | None:
    """The tokenizer in a file's metadata; None if there is none."""
    kind = metadata.get("tokenizer.ggml.model")
    if kind in (None, "none", "no_vocab"):
        return None
    tokens = _read_list(metadata, "tokens", str)
    if not tokens:
        raise ConfigError(f"the metadata has a {kind!r} tokenizer without tokens")
    if kind not in ("gpt2", "llama"):
        raise ConfigError(
            f"its tokenizer is a {kind!r} tokenizer, and pathsum reads 'gpt2' (byte-level BPE) and "
            "'llama' (SentencePiece BPE)"
        )
    make = _byte_level_bpe if kind == "gpt2" else _sentencepiece_bpe
    try:
        backend = make(metadata, tokens)
        _mark_special(backend, metadata, tokens)
    except PathsumError:
        raise
    except Exception as error:  # tokenizers raises only bare Exception
        raise ConfigError(f"its tokenizer cannot be built ({error})") from error
    return Tokenizer.from_json(backend.to_str(), "its tokenizer")


def _read_list(metadata: Mapping[str, Any], name: str, kind: type) -> list[Any]:
    """A list of the metadata; empty if it is absent."""
    values = metadata.get(f"tokenizer.ggml.{name}", [])
    if not isinstance(values, list) or not all(isinstance(entry, kind) for entry in values):
        raise ConfigError(f"tokenizer.ggml.{name} is not a list of {kind.__name__}")
    return values


def start_token(metadata: Mapping[str, Any]) -> int | None:
    """The start token, or None."""
    kind, rule = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    default = kind == "llama" or rule in ("llama-bpe", "llama3", "llama-v3")
    adds = metadata.get("tokenizer.ggml.add_bos_token", default)
    return metadata.get("tokenizer.ggml.bos_token_id") if adds else None


def _byte_level_bpe(metadata: Mapping[str, Any], tokens: Sequence[str]) -> Backend:
    rule = metadata.get("tokenizer.ggml.pre", "default")
    if not isinstance(rule, str) or rule not in _WORD_RULES:
        raise ConfigError(
            f"its tokenizer splits words by the rule {rule!r}, which pathsum does not know"
            f"{near_misses(str(rule), _WORD_RULES)}"
        )
    pairs = [tuple(merge.split(" ", 1)) for merge in _read_list(metadata, "merges", str)]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    backend = Backend(models.BPE(vocabulary, [(a, b) for a, b in pairs]))
    if rule == "qwen2":
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = _WORD_RULES[rule]()
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece_bpe(metadata: Mapping[str, Any], tokens: Sequence[str]) -> Backend:
    scores = _read_list(metadata, "scores", float)
    if len(scores) != len(tokens):
        raise ConfigError("its SentencePiece tokenizer has no score per token")
    lengths = [len(token) for token in tokens]
    if max(lengths) > _MAX_TOKEN_LENGTH or sum(lengths) > _MAX_CHARACTERS:
        raise ConfigError(
            f"its SentencePiece tokenizer has a token of {max(lengths):,} characters and "
            f"{sum(lengths):,} in all, and pathsum reads {_MAX_TOKEN_LENGTH} and "
            f"{_MAX_CHARACTERS:,}"
        )
    ids = {token: index for index, token in enumerate(tokens)}
    # SentencePiece merges the neighbors with the best-scored result: merges in order of scores.
    joins = [
        (-scores[index], ids[token[:cut]], ids[token[cut:]], token[:cut], token[cut:])
        for token, index in ids.items()
        for cut in range(1, len(token))
        if token[:cut] in ids and token[cut:] in ids
    ]
    merges = [(left, right) for *_, left, right in sorted(joins)]
    index = metadata.get("tokenizer.ggml.unknown_token_id", 0)
    if not isinstance(index, int) or not 0 <= index < len(tokens):
        raise ConfigError(f"unknown_token_id is {index!r}, which is not one of its tokens")
    options = {"unk_token": tokens[index], "fuse_unk": True, "byte_fallback": True}
    backend = Backend(models.BPE(ids, merges, **options))
    has_prefix = metadata.get("tokenizer.ggml.add_space_prefix", True)
    steps = [normalizers.Prepend("▁")] if has_prefix else []
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    undo = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence(
        [*undo, *([decoders.Strip(" ", 1, 0)] if has_prefix else [])]
    )
    return backend


def _mark_special(backend: Backend, metadata: Mapping[str, Any], tokens: Sequence[str]) -> None:
    kinds = _read_list(metadata, "token_type", int)
    special_tokens = [
        AddedToken(token, special=kind != _USER_DEFINED, normalized=False)
        for token, kind in zip(tokens, kinds, strict=False)
        if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED)
    ]
    if special_tokens:
        backend.add_tokens(special_tokens)
