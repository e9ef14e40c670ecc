"""Token ids in memory-mapped files: `TokenShards` reads them, `build` writes them from documents.

A survey reads the documents once, drops duplicates and chooses held-out documents. A build trains a
tokenizer on the rest and writes tokens in another folder that is renamed when complete. The next
build continues from the finished parts of an interrupted one (the tokenizer, whole shards).
"""

import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from pathsum.base import Progress, silent
from pathsum.base.errors import FailedError, FileError, InputError
from pathsum.base.files import read_object, write_text
from pathsum.base.options import parse_probability
from pathsum.text.documents import Document, Documents
from pathsum.text.tokenizer import Tokenizer, start_token_of, train_bpe

FORMAT, VERSION = "pathsum-corpus", 1
HEAD, TOKENIZER, JOURNAL = "corpus.json", "tokenizer.json", "journal.json"
TRAIN, HELD_OUT = "train", "held-out"
SHARD_TOKENS = 4 << 20
_DOCUMENTS_AT_ONCE = 64
# Merges settle long before this much text; reading more of a huge corpus only takes time.
_BPE_CHARACTERS = 200_000_000


def spaced(total: int, most: int) -> list[int]:
    """Indices of at most `most` of `total` sequences, evenly spaced.

    >>> spaced(10, 3)
    [0, 3, 6]
    """
    count = min(most, total)
    return [index * total // count for index in range(count)]


class TokenShards:
    """Token ids in `.npy` files, as windows of equal length.

    A window never crosses from one file into the next. A file is read only where a window needs it.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = tuple(files)

    @cached_property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """The memory-mapped files."""
        return tuple(np.load(file, mmap_mode="r") for file in self.files)

    @property
    def n_tokens(self) -> int:
        """The number of tokens."""
        return sum(len(array) for array in self.arrays)

    def count_windows(self, length: int, offset: int = 0) -> int:
        """The number of windows if each file is cut from `offset` on."""
        return sum(max(0, len(array) - offset) // length for array in self.arrays)

    def windows(
        self, numbers: Sequence[int], length: int, offset: int = 0
    ) -> Int[Tensor, "window pos"]:
        """Some windows, by number, [window, pos]."""
        counts = [max(0, len(array) - offset) // length for array in self.arrays]
        begins = np.cumsum([0, *counts])
        rows = np.empty((len(numbers), length), dtype=np.int64)
        for row, number in enumerate(numbers):
            shard = int(np.searchsorted(begins, number, side="right")) - 1
            start = offset + (number - int(begins[shard])) * length
            rows[row] = self.arrays[shard][start : start + length]
        return torch.from_numpy(rows)

    def counts(self, vocabulary: int) -> Int[Tensor, " vocab"]:
        """The number of occurrences of each token."""
        total = np.zeros(vocabulary, dtype=np.int64)
        for array in self.arrays:
            total += np.bincount(array, minlength=vocabulary)
        return torch.from_numpy(total)


class ChangedError(FailedError):
    """Documents differ when they are read a second time."""


@dataclass(frozen=True)
class Survey:
    """The result of reading a collection once.

    A document is held out by its own hash, not by its position: adding documents does not move
    others from one side to the other, and copies of a text end up on the same side.
    """

    documents: int
    duplicates: int
    characters: int
    fingerprint: str
    held_out: frozenset[bytes]

    def read(self, collection: Documents) -> Iterator[tuple[Document, bool]]:
        """The distinct documents that are not empty, each with whether it is held out.

        Raises FailedError at the end if they differ from the surveyed documents.
        """
        digests: dict[bytes, None] = {}
        for document in collection:
            digest = document.digest
            if digest not in digests and document.text.strip():
                digests[digest] = None
                yield document, digest in self.held_out
        if hashlib.sha256(b"".join(digests)).hexdigest() != self.fingerprint:
            raise ChangedError(
                f"the corpus {collection.name!r} changed while it was being read; run the command "
                "again once its files have stopped changing"
            )


def survey(collection: Documents, share: float, progress: Progress = silent) -> Survey:
    """Read a collection once; `share` of its documents, at least one, are held out."""
    parse_probability(share, "held_out")
    digests: dict[bytes, None] = {}
    count = characters = 0
    for document in collection:
        if document.text.strip():
            digest, count = document.digest, count + 1
            characters += 0 if digest in digests else len(document.text)
            digests[digest] = None
            if count % 100 == 0:
                progress(len(digests), 0, f"reading {collection.name}")
    duplicates = count - len(digests)
    if len(digests) < 2:
        raise _too_few(collection, len(digests), duplicates)
    threshold = int(share * (1 << 64))
    held_out = {digest for digest in digests if _number(digest) < threshold}
    if not held_out:
        held_out = {min(digests, key=_number)}
    elif len(held_out) == len(digests):
        held_out.discard(max(digests, key=_number))
    fingerprint = hashlib.sha256(b"".join(digests)).hexdigest()
    return Survey(len(digests), duplicates, characters, fingerprint, frozenset(held_out))


def _number(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "big")


def _too_few(collection: Documents, documents: int, duplicates: int) -> InputError:
    if documents == 0:
        return InputError(
            f"the corpus {collection.name!r} is empty: there is no text in {collection.about}; "
            "give documents with text"
        )
    copies = f" ({duplicates} copies of it were dropped)" if duplicates else ""
    return InputError(
        f"the corpus {collection.name!r} is a single document{copies}, and one must be held out "
        "to measure the loss on; give at least two files, or a .jsonl with one document per line"
    )


def build(
    folder: Path,
    collection: Documents,
    surveyed: Survey,
    vocabulary: int,
    tokenizer: Tokenizer | None,
    progress: Progress,
    shard_tokens: int = SHARD_TOKENS,
) -> None:
    """Build a corpus folder, or finish one that an earlier process began.

    A file is written every `shard_tokens` training tokens: an interrupted build loses no more.
    """
    partial = folder.with_name(folder.name + ".building")
    try:
        partial.mkdir(parents=True, exist_ok=True)
        tokenizer = _tokenizer(partial, collection, surveyed, vocabulary, tokenizer, progress)
        _tokenize(partial, collection, surveyed, tokenizer, shard_tokens, progress)
        head = {
            "format": FORMAT,
            "version": VERSION,
            **_totals(partial, collection, tokenizer, surveyed),
        }
        write_text(partial / HEAD, json.dumps(head, indent=2, ensure_ascii=False) + "\n")
        partial.rename(folder)
    except ChangedError:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    except OSError as error:
        raise FailedError(
            f"building the corpus in {partial} failed ({error}); finished files stay there, and "
            "the next build continues from them; set PATHSUM_CACHE to use another folder"
        ) from error


def shards(folder: Path, side: str) -> TokenShards:
    """The tokens of one side of a built corpus."""
    return TokenShards(sorted(folder.glob(f"{side}-*.npy")))


def _tokenizer(
    partial: Path,
    collection: Documents,
    surveyed: Survey,
    vocabulary: int,
    tokenizer: Tokenizer | None,
    progress: Progress,
) -> Tokenizer:
    file = partial / TOKENIZER
    with suppress(FileError):  # if it is damaged, it is trained again
        return Tokenizer.from_file(file)
    progress(0, 0, f"training a tokenizer of {vocabulary} tokens")
    result = tokenizer or train_bpe(_training_text(collection, surveyed), vocabulary)
    write_text(file, result.to_json())
    return result


def _training_text(collection: Documents, surveyed: Survey) -> Iterator[str]:
    characters = 0
    for document, held_out in surveyed.read(collection):
        if not held_out:
            characters += len(document.text)
            yield document.text
        if characters > _BPE_CHARACTERS:
            return


def _tokenize(
    partial: Path,
    collection: Documents,
    surveyed: Survey,
    tokenizer: Tokenizer,
    shard_tokens: int,
    progress: Progress,
) -> None:
    done, number = _read_journal(partial / JOURNAL)
    buffers: dict[str, list[list[int]]] = {TRAIN: [], HELD_OUT: []}
    size = 0
    documents = islice(surveyed.read(collection), done, None)
    while batch := list(islice(documents, _DOCUMENTS_AT_ONCE)):
        for ids, held_out in _encoded(tokenizer, batch):
            buffers[HELD_OUT if held_out else TRAIN].append(ids)
            size += 0 if held_out else len(ids)
            done += 1
            if size >= shard_tokens:
                _flush(partial, buffers, number, done, tokenizer.size)
                size, number = 0, number + 1
            progress(done, surveyed.documents, "tokenizing")
    _flush(partial, buffers, number, done, tokenizer.size)


def _read_journal(journal: Path) -> tuple[int, int]:
    """The numbers of finished documents and shards; zero without an intact journal."""
    with suppress(FileError):
        state = read_object(journal, "")
        done, number = state.get("documents"), state.get("shards")
        if isinstance(done, int) and isinstance(number, int) and min(done, number) >= 0:
            return done, number
    return 0, 0


def _encoded(
    tokenizer: Tokenizer, batch: list[tuple[Document, bool]]
) -> Iterator[tuple[list[int], bool]]:
    start = start_token_of(tokenizer)
    texts = [document.text for document, _ in batch]
    for ids, (_, held_out) in zip(tokenizer.encode_batch(texts), batch, strict=True):
        yield [start, *ids], held_out


def _flush(
    partial: Path,
    buffers: dict[str, list[list[int]]],
    number: int,
    documents: int,
    vocabulary: int,
) -> None:
    """Write the buffered ids as shards of this number, and empty the buffers."""
    dtype = np.uint16 if vocabulary <= 1 << 16 else np.uint32
    for side, buffer in buffers.items():
        if buffer:
            file = partial / f"{side}-{number:05d}.npy"
            part = file.with_suffix(".part")
            with part.open("wb") as opened:
                np.save(opened, np.concatenate([np.asarray(ids, dtype=dtype) for ids in buffer]))
            part.replace(file)
            buffer.clear()
    # The journal is written last: a shard that it does not count is written again.
    state = {"documents": documents, "shards": number + 1}
    write_text(partial / JOURNAL, json.dumps(state))


def _totals(
    partial: Path, collection: Documents, tokenizer: Tokenizer, surveyed: Survey
) -> dict[str, Any]:
    train, held_out = shards(partial, TRAIN), shards(partial, HELD_OUT)
    return {
        "name": collection.name,
        "about": collection.about,
        "fingerprint": surveyed.fingerprint,
        "documents": surveyed.documents,
        "held_out_documents": len(surveyed.held_out),
        "duplicates": surveyed.duplicates,
        "characters": surveyed.characters,
        "vocabulary": tokenizer.size,
        "tokens": train.n_tokens,
        "held_out_tokens": held_out.n_tokens,
    }
