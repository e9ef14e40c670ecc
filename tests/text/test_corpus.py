"""A corpus: split by document, learned from one side only, built once, and found again."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.training.tiny import write_text

from pathsum.base import schema
from pathsum.base.errors import FailedError, FileError, InputError
from pathsum.text import Corpus, CorpusInfo, Tokenizer, shards, train_bpe
from pathsum.text.corpus import CorpusList, find_documents
from pathsum.text.documents import Document
from pathsum.text.shards import TokenShards, survey
from pathsum.text.tokenizer import start_token_of


@dataclass(frozen=True)
class Given:
    texts: tuple[str, ...]
    name: str = "given"
    about: str = "texts of a test"

    def __iter__(self) -> Iterator[Document]:
        for number, text in enumerate(self.texts):
            yield Document(str(number), text)


class TestTheSplit:
    @given(st.lists(st.text(min_size=1).filter(str.strip), min_size=2, unique=True))
    def test_covers_every_document_once(self, texts: list[str]) -> None:
        collection = Given(tuple(texts))
        found = survey(collection, 0.2)
        sides = list(found.read(collection))
        assert [document.text for document, _ in sides] == texts
        held_out = sum(side for _, side in sides)
        assert 1 <= held_out < len(texts)
        assert held_out == len(found.held_out)

    @given(st.lists(st.text(min_size=1).filter(str.strip), min_size=4, unique=True))
    def test_of_a_text_does_not_depend_on_copies(self, texts: list[str]) -> None:
        once, twice = Given(tuple(texts)), Given((*texts, *texts, " "))
        assert list(survey(once, 0.3).read(once)) == list(survey(twice, 0.3).read(twice))
        assert survey(twice, 0.3).duplicates == len(texts)

    def test_is_about_the_share_asked_for(self) -> None:
        collection = Given(tuple(f"text {number}" for number in range(4000)))
        assert 150 < len(survey(collection, 0.05).held_out) < 250

    @pytest.mark.parametrize("share", [0.0, 1.0, -1.0])
    def test_needs_a_share(self, share: float) -> None:
        with pytest.raises(InputError, match="between 0 and 1"):
            survey(Given(("a", "b")), share)

    def test_needs_something_to_hold_out(self) -> None:
        with pytest.raises(InputError, match=r"is a single document \(1 copies of it"):
            survey(Given(("same", "same")), 0.1)

    def test_needs_text(self) -> None:
        with pytest.raises(InputError, match="is empty: there is no text in texts of a test"):
            survey(Given((" ", "\n")), 0.1)


class TestBPE:
    @given(st.text())
    @settings(max_examples=50)
    def test_writes_every_text(self, text: str) -> None:
        tokenizer = _letters()
        assert tokenizer.decode(tokenizer.encode(text)) == text

    def test_too_small_a_vocabulary(self) -> None:
        with pytest.raises(InputError, match="vocabulary of 100 is too small .* needs 257"):
            train_bpe(["text"], 100)

    def test_too_small_a_text(self) -> None:
        with pytest.raises(InputError, match=r"gives only \d+ tokens, but vocabulary is 5000"):
            train_bpe(["a short text"], 5000)

    def test_a_tokenizer_without_a_start(self) -> None:
        with pytest.raises(InputError, match="no token that marks a start"):
            start_token_of(Tokenizer.of_words(["a", "b"]))


def _letters() -> Tokenizer:
    return train_bpe(["the cat and the hat, the cat"] * 9, 262)


class TestCorpus:
    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        return write_text(tmp_path / "words.jsonl")

    def test_holds_every_document_after_a_start_token(self, file: Path) -> None:
        corpus = Corpus.open(file, vocabulary=280, held_out=0.2)
        texts: list[str] = []
        for side in (corpus.train, corpus.held_out):
            ids = np.concatenate(side.arrays)
            starts = np.flatnonzero(ids == corpus.start_token)
            assert starts[0] == 0
            parts = np.split(ids, starts[1:])
            texts += [corpus.tokenizer.decode(part[1:].tolist()) for part in parts]
        written = [json.loads(line)["text"] for line in file.read_text().splitlines()]
        assert sorted(texts) == sorted(written)

    def test_is_learned_from_what_is_not_held_out(
        self, file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[str] = []
        real = shards.train_bpe

        def spy(texts: Iterator[str], vocabulary: int) -> Tokenizer:
            seen.extend(texts)
            return real(seen, vocabulary)

        monkeypatch.setattr(shards, "train_bpe", spy)
        corpus = Corpus.open(file, vocabulary=280, held_out=0.2)
        collection = find_documents(file, "text", lambda *_: None)
        held_out = {d.text for d, out in survey(collection, 0.2).read(collection) if out}
        assert corpus.info.held_out_documents == len(held_out) > 3
        assert held_out.isdisjoint(seen)
        assert len(seen) + len(held_out) == corpus.info.documents

    def test_counts_its_tokens(self, file: Path) -> None:
        corpus = Corpus.open(file, vocabulary=280)
        assert int(corpus.token_counts.sum()) == corpus.info.tokens == corpus.train.n_tokens
        documents = corpus.info.documents - corpus.info.held_out_documents
        assert int(corpus.token_counts[0]) == documents

    def test_is_built_once(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        first = Corpus.open(file, vocabulary=280)
        monkeypatch.setattr("pathsum.text.corpus.build", None)
        assert Corpus.open(file, vocabulary=280).info == first.info

    def test_of_a_changed_text_is_another(self, file: Path) -> None:
        before = Corpus.open(file, vocabulary=280).folder
        file.write_text(file.read_text() + '"one more"\n')
        assert Corpus.open(file, vocabulary=280).folder != before

    def test_continues_an_interrupted_build(
        self, file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        whole = Corpus.open(file, vocabulary=280, shard_tokens=500)
        monkeypatch.setenv("PATHSUM_CACHE", str(tmp_path / "other"))

        def stop(done: int, total: int, what: str) -> None:
            if what == "tokenizing" and done == 40:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            Corpus.open(file, vocabulary=280, shard_tokens=500, progress=stop)
        encoded: list[int] = []
        real = shards._encoded
        monkeypatch.setattr(
            shards, "_encoded", lambda t, batch: encoded.append(len(batch)) or real(t, batch)
        )
        resumed = Corpus.open(file, vocabulary=280, shard_tokens=500)
        assert 0 < sum(encoded) < 60
        assert resumed.folder != whole.folder
        assert len(resumed.train.files) > 1
        for ours, theirs in zip(resumed.train.files, whole.train.files, strict=True):
            assert ours.read_bytes() == theirs.read_bytes()

    def test_on_a_full_disk(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(np, "save", full)
        with pytest.raises(FailedError, match="No space left on device.*PATHSUM_CACHE"):
            Corpus.open(file, vocabulary=280)

    def test_by_an_unknown_name(self) -> None:
        with pytest.raises(InputError, match="no corpus 'pyton'.*did you mean 'python' or"):
            Corpus.open("pyton")

    def test_in_a_folder_that_holds_none(self, tmp_path: Path) -> None:
        with pytest.raises(FileError, match="is not a corpus that pathsum built"):
            Corpus.at(tmp_path)

    def test_gives_held_out_sequences(self, file: Path) -> None:
        corpus = Corpus.open(file, vocabulary=280, held_out=0.2)
        batch = corpus.held_out_batch(5, 16)
        assert batch.shape == (5, 16)
        assert bool((batch[:, 0] == corpus.start_token).all())
        with pytest.raises(InputError, match="too few for a sequence of 100000"):
            corpus.held_out_batch(1, 100_000)

    def test_describes_itself(self, file: Path) -> None:
        info = Corpus.open(file, vocabulary=280).info
        assert "60 (0 duplicates removed)" in info.to_table().to_text()
        assert schema(CorpusInfo)["properties"]["tokens"] == {"type": "integer"}
        schema(CorpusList)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=4), st.integers(1, 9), st.integers(0, 8))
def test_windows_cut_each_file_from_the_offset_on(
    lengths: list[int], length: int, offset: int
) -> None:
    tokens = TokenShards(())
    arrays = tuple(np.arange(n, dtype=np.uint16) + 100 * i for i, n in enumerate(lengths))
    tokens.__dict__["arrays"] = arrays
    by_hand = [
        array[start : start + length]
        for array in arrays
        for start in range(offset, len(array) - length + 1, length)
    ]
    assert tokens.count_windows(length, offset) == len(by_hand)
    if by_hand:
        found = tokens.windows(list(range(len(by_hand))), length, offset)
        assert torch.equal(found, torch.from_numpy(np.stack(by_hand).astype(np.int64)))
