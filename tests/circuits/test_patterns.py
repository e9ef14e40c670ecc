"""The paper's patterns, from the texts of tokens."""

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models

from pathsum.text import Tokenizer
from pathsum.text.trigrams import Pattern, are_variants, pattern_of


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("keep", " keep"),
        ("Keep", "keep"),
        (" KEEP", "keep"),
        ("list", " lists"),
        ("box", "boxes"),
        ("entry", "entries"),
        ("\nfoo", "foo"),
    ],
)
def test_variants_differ_in_space_case_or_plural(one: str, other: str):
    assert are_variants(one, other)
    assert are_variants(other, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("keep", "kept"),
        ("a", "as"),
        ("i", "is"),
        ("10", "10s"),
        ("", " "),
        ("\n", "\n\n"),
        ("\ufffd", "\ufffd"),
        ("day", "das"),
    ],
)
def test_similar_words_that_are_not_variants(one: str, other: str):
    assert not are_variants(one, other)


@pytest.mark.parametrize(
    ("source", "destination", "out", "pattern"),
    [
        (" perfect", " are", " perfect", Pattern.COPY),
        (" perfect", " are", " Perfect", Pattern.COPY_VARIANT),
        ("two", " plus", " two", Pattern.COPY_VARIANT),
        (" Ralph", "R", "alph", Pattern.PIECES),
        (" Ralph", " R", "alph", Pattern.PIECES),
        (" Pike", " P", "ikes", Pattern.PIECES_VARIANT),
        (" Lloyd", " L", "LOYD", Pattern.PIECES_VARIANT),
        (" Ralph", "R", " alph", Pattern.OTHER),
        (" Ralph", "Ralph", "alph", Pattern.WORD_ENDING),
        (" Ralph", "", "Ralphs", Pattern.COPY_VARIANT),
        (" keep", " in", " mind", Pattern.OTHER),
        (" keep", " ", "keep!", Pattern.OTHER),
    ],
)
def test_patterns(
    source: str, destination: str, out: str, pattern: Pattern, monkeypatch: pytest.MonkeyPatch
):
    texts = {0: source, 1: destination, 2: out}
    tokenizer = Tokenizer(Backend(models.BPE()))
    monkeypatch.setattr(tokenizer, "text", texts.__getitem__)
    ids = (0, 1, 0) if source == out else (0, 1, 2)
    assert pattern_of(tokenizer, *ids) is pattern


def test_without_a_tokenizer_only_a_copy_is_known():
    assert pattern_of(None, 3, 4, 3) is Pattern.COPY
    assert pattern_of(None, 3, 4, 5) is Pattern.OTHER
    assert str(Pattern.PIECES_VARIANT) == "[ab]…[a]→[b']"
