"""A GGUF file's tokenizer as one of the tokenizers library: byte-level BPE, or SentencePiece's."""

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from pathsum.base.errors import ConfigError, PathsumError, near_misses
from pathsum.text import Tokenizer

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}|"
    r" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _by_regex(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _byte_level() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _single_digits() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _byte_level()])


# How text is split into words before merges, by the name that GGUF gives the rule.
_WORD_RULES = {
    **dict.fromkeys(("default", "gpt-2", "gpt2", "phi-2", "olmo"), _byte_level),
    **dict.fromkeys(("smollm", "starcoder", "refact", "codeshell"), _single_digits),
    **dict.fromkeys(
        ("llama-bpe", "llama3", "llama-v3"), lambda: _by_regex(_WORDS.format(digits="{1,3}"))
    ),
    **dict.fromkeys(("qwen2", "stablelm2"), lambda: _by_regex(_WORDS.format(digits=""))),
}


def read_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer | None:
    """The tokenizer in a file's metadata; None if there is none."""
    kind = metadata.get("tokenizer.ggml.model")
    if kind is None or kind == "none" or kind == "no_vocab":
        return None
    tokens: Sequence[str] = _listed(metadata, "tokens", str)
    if not tokens:
        raise ConfigError(f"the metadata names a {kind!r} tokenizer and lists no tokens")
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
    except Exception as error:  # tokenizers raises bare Exception, nothing finer
        raise ConfigError(f"its tokenizer cannot be built ({error})") from error
    return Tokenizer.from_json(backend.to_str(), "its tokenizer")


def _listed(metadata: Mapping[str, Any], name: str, kind: type) -> list[Any]:
    """A list of the metadata; empty where there is none."""
    found = metadata.get(f"tokenizer.ggml.{name}", [])
    if not isinstance(found, list) or not all(isinstance(entry, kind) for entry in found):
        raise ConfigError(f"tokenizer.ggml.{name} is not a list of {kind.__name__}")
    return found


def start_token(metadata: Mapping[str, Any]) -> int | None:
    """The token that belongs before every text, or None."""
    kind, rule = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    usual = kind == "llama" or rule in ("llama-bpe", "llama3", "llama-v3")
    adds = metadata.get("tokenizer.ggml.add_bos_token", usual)
    return metadata.get("tokenizer.ggml.bos_token_id") if adds else None


def _byte_level_bpe(metadata: Mapping[str, Any], tokens: Sequence[str]) -> Backend:
    rule = metadata.get("tokenizer.ggml.pre", "default")
    if not isinstance(rule, str) or rule not in _WORD_RULES:
        raise ConfigError(
            f"its tokenizer splits words by the rule {rule!r}, which pathsum does not know"
            f"{near_misses(str(rule), _WORD_RULES)}"
        )
    pairs = [tuple(merge.split(" ", 1)) for merge in _listed(metadata, "merges", str)]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    backend = Backend(models.BPE(vocabulary, [(a, b) for a, b in pairs]))
    if rule == "qwen2":
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = _WORD_RULES[rule]()
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece_bpe(metadata: Mapping[str, Any], tokens: Sequence[str]) -> Backend:
    scores = _listed(metadata, "scores", float)
    if len(scores) != len(tokens):
        raise ConfigError("its SentencePiece tokenizer has no score per token")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    # SentencePiece joins whichever neighbors make the best-scored token; as merges, in that order.
    joins: list[tuple[float, int, int, str, str]] = []
    for token, index in vocabulary.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocabulary and right in vocabulary:
                joins.append((-scores[index], vocabulary[left], vocabulary[right], left, right))
    merges = [(left, right) for *_, left, right in sorted(joins)]
    place = metadata.get("tokenizer.ggml.unknown_token_id", 0)
    if not isinstance(place, int) or not 0 <= place < len(tokens):
        raise ConfigError(f"unknown_token_id is {place!r}, which is not one of its tokens")
    unknown = tokens[place]
    backend = Backend(
        models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    prefixed = metadata.get("tokenizer.ggml.add_space_prefix", True)
    steps = [normalizers.Prepend("▁")] if prefixed else []
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    undo = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*undo, *([decoders.Strip(" ", 1, 0)] if prefixed else [])])
    return backend


def _mark_special(backend: Backend, metadata: Mapping[str, Any], tokens: Sequence[str]) -> None:
    kinds = _listed(metadata, "token_type", int)
    marked = [
        AddedToken(token, special=kind != _USER_DEFINED, normalized=False)
        for token, kind in zip(tokens, kinds, strict=False)
        if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED)
    ]
    if marked:
        backend.add_tokens(marked)
