import base64
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

import pathsum as ps
from pathsum.base.errors import FileError, TokenError
from pathsum.text import Tokenizer, visible
from pathsum.text.tokenizer import train_bpe


def bytes_tokenizer() -> Tokenizer:
    letters = {piece: i for i, piece in enumerate(["R", "a", "l", "p", "h", "Ġ", "al", "Ċ"])}
    backend = Backend(models.BPE(vocab=letters, merges=[("a", "l")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(backend)


def test_words() -> None:
    tokenizer = Tokenizer.of_words(["the", "cat"])
    assert tokenizer.encode("cat the cat") == [1, 0, 1]
    assert tokenizer.decode([1, 0]) == "cat the"
    assert tokenizer.size == 2
    assert tokenizer.id("cat") == 1
    assert tokenizer.encode("") == []


def test_an_unknown_word_is_not_dropped_in_silence() -> None:
    tokenizer = Tokenizer.of_words(["the", "cat"])
    with pytest.raises(TokenError, match="'cats' is not a word .*did you mean 'cat'"):
        tokenizer.encode("the cats")
    with pytest.raises(TokenError, match="'dogs' is not a word .* knows 'the', 'cat'"):
        tokenizer.encode("dogs")


def test_white_space_is_made_visible() -> None:
    assert visible(" a\tb\n") == "·a⇥b⏎"
    assert visible("\x1b[31m") == "\\x1b[31m"  # a token must not paint the terminal
    tokenizer = bytes_tokenizer()
    assert tokenizer.text(5) == " "
    assert tokenizer.show(7) == "⏎"


def test_a_text_of_several_tokens_shows_its_pieces() -> None:
    tokenizer = bytes_tokenizer()
    assert tokenizer.id("al") == 6
    with pytest.raises(TokenError, match=r"'Ral' is 2 tokens .*'R' \+ 'al'"):
        tokenizer.id("Ral")
    with pytest.raises(TokenError, match="an empty text is not a token"):
        tokenizer.id("")


def test_ids_beyond_the_vocabulary_still_print() -> None:
    assert bytes_tokenizer().text(99) == "<99>"


def test_bytes_of_tokens_are_those_of_the_text() -> None:
    tokenizer = ps.load("two-layer").tokenizer
    assert tokenizer is not None
    text = "naïve 日本 🙂\n\t\x00 def __init__"
    found = [tokenizer.token_bytes(token) for token in tokenizer.encode(text)]
    assert b"".join(part or b"?" for part in found) == text.encode()
    # SentencePiece writes single bytes by their number.
    assert Tokenizer.of_words(["<0xE6>", "日"]).token_bytes(0) == b"\xe6"
    assert Tokenizer.of_words(["<0xE6>", "日"]).token_bytes(1) is None


def test_files(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text(bytes_tokenizer().to_json())
    assert Tokenizer.from_file(file).encode("al") == [6]
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(FileError, match="is not UTF-8 text"):
        Tokenizer.from_file(file)
    file.write_text("{}")
    with pytest.raises(FileError, match="is not a tokenizer"):
        Tokenizer.from_file(file)


def _changed(**settings: Any) -> str:
    plain = json.loads(train_bpe(["the cat and the hat, the cat"] * 9, 262).to_json())
    model = plain["model"] | settings.pop("model", {})
    return json.dumps(plain | settings | {"model": model})


_PADDING = {"strategy": {"Fixed": 41}, "direction": "Right", "pad_to_multiple_of": None}
_PADDING |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "x"}


@pytest.mark.parametrize(
    "settings",
    [
        {"padding": _PADDING},
        {
            "truncation": {
                "direction": "Right",
                "max_length": 3,
                "strategy": "LongestFirst",
                "stride": 0,
            }
        },
        {"model": {"dropout": 0.9}},
    ],
)
def test_a_text_is_the_same_tokens_whatever_the_file_asks_for(settings: dict[str, Any]) -> None:
    plain, changed = Tokenizer.from_json(_changed()), Tokenizer.from_json(_changed(**settings))
    text = "the cat and the hat"
    assert all(changed.encode(text) == plain.encode(text) for _ in range(5))
    assert changed.encode_batch([text, "a"]) == [plain.encode(text), plain.encode("a")]


def test_a_tokenizer_of_another_library_is_not_changed() -> None:
    theirs = Backend.from_str(_changed(padding=_PADDING))
    assert len(Tokenizer(theirs).encode("the cat")) < 41
    assert theirs.padding is not None


@pytest.mark.parametrize(
    "settings",
    [
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
        {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
        {"model": {"continuing_subword_prefix": "#" * 50}},
    ],
)
def test_a_panic_is_one_sentence(
    settings: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(FileError, match="is not a tokenizer that can be used .the library panics"):
        Tokenizer.from_json(_changed(**settings))
    assert capfd.readouterr().err == ""


def test_a_panic_on_some_texts(capfd: pytest.CaptureFixture[str]) -> None:
    slow = {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": "b"}
    tokenizer = Tokenizer.from_json(_changed(normalizer=slow))
    with pytest.raises(TokenError, match="the tokenizer fails on this text"):
        tokenizer.encode("a" * 40 + "b")
    with pytest.raises(TokenError, match="the tokenizer fails on this text"):
        tokenizer.offsets("a" * 40 + "b")


def test_half_of_a_surrogate_pair_is_not_text() -> None:
    tokenizer = Tokenizer.from_json(_changed())
    with pytest.raises(TokenError, match=r"character 2 of the text is half .*\\udc80"):
        tokenizer.encode("a \udc80")
    with pytest.raises(TokenError, match="character 2 of the text"):
        tokenizer.offsets("a \udc80")


DOUBLE = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}


class TestHostileRules:
    """Rules that multiply the length of a text are refused before they are applied."""

    def described(self, **parts: Any) -> str:
        return json.dumps({**json.loads(bytes_tokenizer().to_json()), **parts})

    def refuse(self, **parts: Any) -> None:
        with pytest.raises(FileError, match="would exhaust memory; use another tokenizer.json"):
            Tokenizer.from_json(self.described(**parts))

    def test_that_double_forty_times(self) -> None:
        self.refuse(normalizer={"type": "Sequence", "normalizers": [DOUBLE] * 40})
        self.refuse(decoder={"type": "Sequence", "decoders": [DOUBLE] * 40})
        nested = {"type": "Sequence", "normalizers": [DOUBLE] * 20}
        self.refuse(normalizer={"type": "Sequence", "normalizers": [nested, nested]})

    def test_of_other_kinds(self) -> None:
        bytewise = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
        self.refuse(pre_tokenizer={"type": "Sequence", "pretokenizers": [bytewise] * 40})
        regex = {"type": "Replace", "pattern": {"Regex": ""}, "content": "x"}
        self.refuse(normalizer={"type": "Sequence", "normalizers": [regex] * 40})
        one = {"type": "Prepend", "prepend": "x" * 1000}
        self.refuse(normalizer={"type": "Sequence", "normalizers": [one] * 10})
        # trie of 0 bytes, one replacement of 3,000
        table = base64.b64encode(bytes(4) + b"y" * 3000 + b"\0").decode()
        mapped = {"type": "Precompiled", "precompiled_charsmap": table}
        self.refuse(normalizer={"type": "Sequence", "normalizers": [mapped] * 4})

    def test_that_a_second_value_hides(self) -> None:
        bomb = json.dumps({"type": "Sequence", "normalizers": [DOUBLE] * 40})
        text = self.described().replace('"normalizer":', f'"normalizer": {bomb}, "normalizer":', 1)
        with pytest.raises(FileError, match="lists 'normalizer' twice"):
            Tokenizer.from_json(text)

    def test_of_moderate_growth_bound_the_text(self) -> None:
        rules = {"type": "Sequence", "normalizers": [DOUBLE] * 20}
        tokenizer = Tokenizer.from_json(self.described(normalizer=rules))
        with pytest.raises(TokenError, match="too long for this tokenizer, whose rules may"):
            tokenizer.encode("R" * 300)
        undo = {"type": "Sequence", "decoders": [DOUBLE] * 20}
        tokenizer = Tokenizer.from_json(self.described(decoder=undo))
        assert len(tokenizer.text(1)) == 2**20
        with pytest.raises(TokenError, match="too long for this tokenizer"):
            tokenizer.decode([0] * 300)


def test_reading_in_threads_leaves_stderr_alone() -> None:
    text, before = bytes_tokenizer().to_json(), os.fstat(2)

    def read() -> None:
        for _ in range(200):
            Tokenizer.from_json(text)

    with ThreadPoolExecutor(4) as pool:
        for each in [pool.submit(read) for _ in range(4)]:
            each.result()
    assert os.path.samestat(os.fstat(2), before)
