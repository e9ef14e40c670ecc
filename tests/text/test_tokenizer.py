from pathlib import Path

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

import pathsum as ps
from pathsum.errors import FileError, TokenError
from pathsum.text import Tokenizer, visible


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
