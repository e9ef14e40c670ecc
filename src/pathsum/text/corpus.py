"""Corpus: documents as tokens on disk, part of them held out, with a tokenizer of the rest."""

import json
import shutil
import warnings
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

from jaxtyping import Int
from torch import Tensor

from pathsum.base import Progress, Record, Table, prose_column, silent, text_column
from pathsum.base.errors import FileError, InputError, near_misses
from pathsum.base.files import cache_folder, digest, exists, locked, read_object, user_path
from pathsum.base.json_schema import read_record
from pathsum.base.options import checked_methods
from pathsum.text.documents import Documents, Files, HubDataset
from pathsum.text.packages import NAMED, fetch_all, packages_of
from pathsum.text.shards import (
    FORMAT,
    HEAD,
    HELD_OUT,
    SHARD_TOKENS,
    TOKENIZER,
    TRAIN,
    VERSION,
    TokenShards,
    build,
    shards,
    spaced,
    survey,
)
from pathsum.text.token_pool import TokenPool, prepend_start
from pathsum.text.tokenizer import Tokenizer, start_token_of


@dataclass(frozen=True)
class CorpusInfo(Record, kind="corpus-info"):
    """The contents of a corpus. `fingerprint` is a hash of its documents, in order."""

    name: str
    about: str
    documents: int
    held_out_documents: int
    duplicates: int
    characters: int
    vocabulary: int
    tokens: int
    held_out_tokens: int
    fingerprint: str
    folder: str

    def to_table(self) -> Table:
        """One row per property."""
        tokens = self.tokens + self.held_out_tokens
        length = f"{self.characters / tokens:.2f} characters per token"
        rows = (
            ("source", self.about),
            ("documents", f"{self.documents:,} ({self.duplicates:,} duplicates removed)"),
            ("held out", f"{self.held_out_documents:,} documents, {self.held_out_tokens:,} tokens"),
            ("to train on", f"{self.tokens:,} tokens"),
            ("vocabulary", f"{self.vocabulary:,}, {length}"),
            ("fingerprint", self.fingerprint[:16]),
            ("folder", self.folder),
        )
        columns = (text_column("corpus"), prose_column(self.name))
        return Table(columns, rows, note="the tokenizer is trained without the held-out documents")


@checked_methods
@dataclass(frozen=True, eq=False)
class Corpus:
    """Documents as tokens: `Corpus.open("python", vocabulary=1024)` builds or reuses a corpus.

    Duplicates are dropped. Whole documents are held out, chosen by their hash; the tokenizer is
    trained on the others. Tokens are memory-mapped files in the cache folder, under a name made
    from the content, so a changed text is a different corpus.
    """

    folder: Path
    info: CorpusInfo
    tokenizer: Tokenizer

    @classmethod
    def open(
        cls,
        name: str | Path,
        *,
        vocabulary: int = 1024,
        tokenizer: Tokenizer | None = None,
        held_out: float = 0.05,
        field: str = "text",
        shard_tokens: int = SHARD_TOKENS,
        progress: Progress = silent,
    ) -> "Corpus":
        """A corpus by name, by file or folder, or by the name of a dataset on the hub.

        A `tokenizer` is used instead of training one, and `vocabulary` must be its size. `field` is
        the name under which `.jsonl`, Parquet and datasets hold their text. `held_out` is the share
        of documents that is held out. A file is written every `shard_tokens` training tokens; a
        build that is interrupted continues from the last one.
        """
        collection = find_documents(name, field, progress)
        if tokenizer is not None and tokenizer.size != vocabulary:
            raise InputError(
                f"the tokenizer has {tokenizer.size} tokens, but vocabulary is {vocabulary}; set "
                f"vocabulary to {tokenizer.size}"
            )
        fetch_all(packages_of(collection), progress)
        surveyed = survey(collection, held_out, progress)
        tokenizer_text = "" if tokenizer is None else tokenizer.to_json()
        identity = [VERSION, surveyed.fingerprint, vocabulary, held_out, tokenizer_text]
        key = digest(json.dumps(identity))[:16]
        folder = cache_folder() / "corpora" / f"{collection.name}-{key}"
        with suppress(FileError):
            return cls.at(folder)
        lock = folder.with_name(folder.name + ".lock")
        with locked(lock, wait=True, taken=f"another process builds {folder}"):
            try:
                return cls.at(folder)
            except FileError as error:
                if (folder / HEAD).exists():
                    warnings.warn(
                        f"a corpus in the cache is damaged and is rebuilt: {error}", stacklevel=3
                    )
            shutil.rmtree(folder, ignore_errors=True)
            build(folder, collection, surveyed, vocabulary, tokenizer, progress, shard_tokens)
        return cls.at(folder)

    @classmethod
    def at(cls, folder: Path) -> "Corpus":
        """The corpus that was built in a folder."""
        file = folder / HEAD
        try:
            head = read_object(file, "rebuild it")
        except FileError as error:
            raise FileError(f"{folder} is not a corpus that pathsum built ({error})") from error
        if head.pop("format", None) != FORMAT or head.pop("version", None) != VERSION:
            raise FileError(
                f"{file} is not a corpus that this version of pathsum reads; rebuild it"
            )
        try:
            values = head | {"folder": str(folder)}
            info: CorpusInfo = read_record(CorpusInfo, values, "a corpus")
        except InputError as error:
            raise FileError(f"{file} does not describe a corpus ({error}); rebuild it") from error
        corpus = cls(folder, info, Tokenizer.from_file(folder / TOKENIZER))
        corpus.check_complete()
        return corpus

    def check_complete(self) -> None:
        """Raise FileError if tokens are missing or are not ids of the tokenizer."""
        info, size = self.info, self.tokenizer.size
        try:
            arrays = [*self.train.arrays, *self.held_out.arrays]
            largest = max((int(array.max()) for array in arrays if len(array)), default=0)
            counts = (self.train.n_tokens, self.held_out.n_tokens)
            are_ids = {array.dtype.kind for array in arrays} == {"u"} and largest < size
        except Exception as error:  # numpy parses headers as Python and lets any error through
            raise FileError(f"the tokens in {self.folder} cannot be read ({error})") from error
        if not are_ids or (*counts, size) != (info.tokens, info.held_out_tokens, info.vocabulary):
            raise FileError(
                f"{self.folder} holds {counts[0]:,} tokens to train on and {counts[1]:,} held out, "
                f"with ids up to {largest} and a tokenizer of {size}, but {HEAD} lists "
                f"{info.tokens:,}, {info.held_out_tokens:,} and a vocabulary of {info.vocabulary}; "
                "rebuild it"
            )

    @cached_property
    def train(self) -> TokenShards:
        """Training tokens: documents one after another, each preceded by a start token."""
        return shards(self.folder, TRAIN)

    @cached_property
    def held_out(self) -> TokenShards:
        """Held-out tokens."""
        return shards(self.folder, HELD_OUT)

    @cached_property
    def token_counts(self) -> Int[Tensor, " vocab"]:
        """The number of occurrences of each token in the training part."""
        return self.train.counts(self.info.vocabulary)

    @cached_property
    def token_pool(self) -> TokenPool:
        """The tokens that may be drawn for probes."""
        excluded = {self.start_token, *self.tokenizer.special_tokens}
        return TokenPool(self.info.vocabulary, self.token_counts, tuple(sorted(excluded)))

    @cached_property
    def start_token(self) -> int:
        """The id of the token before every document and every sequence."""
        return start_token_of(self.tokenizer)

    def held_out_batch(self, sequences: int, length: int) -> Int[Tensor, "batch pos"]:
        """Held-out sequences, evenly spaced, each a start token and `length − 1` tokens of text."""
        batch = self.sequences(self.held_out, sequences, length)
        if len(batch) == 0:
            raise InputError(
                f"the corpus {self.info.name!r} holds out {self.info.held_out_tokens} tokens, too "
                f"few for a sequence of {length}; give more text, or use shorter sequences"
            )
        return batch

    def sequences(self, side: TokenShards, most: int, length: int) -> Int[Tensor, "batch pos"]:
        """At most `most` sequences of one side, evenly spaced, each after a start token.

        Empty if there are too few tokens for one.
        """
        count = side.count_windows(length - 1) if length > 1 else 0
        return prepend_start(side.windows(spaced(count, most), length - 1), self.start_token)


def find_documents(name: str | Path, field: str, progress: Progress) -> Documents:
    """The documents that a name refers to."""
    text = str(name)
    if isinstance(name, str) and text in NAMED:
        return NAMED[text]
    path = user_path(text)
    if exists(path):
        return Files(path, field)
    dataset = HubDataset.parse(text, field=field, progress=progress)
    if dataset is not None and isinstance(name, str) and not exists(path.parent):
        return dataset
    raise InputError(
        f"there is no corpus {text!r}: it is not a name ({', '.join(NAMED)}), a file, a folder or "
        f"a dataset (owner/name){near_misses(text, NAMED)}"
    )


def named_corpora() -> "CorpusList":
    """The corpora that can be opened by name."""
    return CorpusList(tuple(NamedCorpus(corpus.name, corpus.about) for corpus in NAMED.values()))


@dataclass(frozen=True)
class NamedCorpus(Record, kind="named-corpus"):
    """A corpus that `Corpus.open` opens by name."""

    name: Annotated[str, text_column("name")]
    about: Annotated[str, prose_column("description")]


@dataclass(frozen=True)
class CorpusList(Record, kind="corpus-list"):
    """All named corpora."""

    corpora: tuple[NamedCorpus, ...]

    @property
    def table_note(self) -> str:
        """The other ways to name a corpus."""
        return "or name a file, a folder, or a dataset on the hub (owner/name)"
