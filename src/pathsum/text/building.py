"""Documents to tokens on disk: a tokenizer learned from what is trained on, then shards.

A build happens aside and is renamed when it is whole. What an interrupted one has finished (the
tokenizer, whole shards) the next one finds and goes on from.
"""

import json
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from pathsum.errors import FailedError
from pathsum.result import Progress
from pathsum.text.bpe import start_of, train_bpe
from pathsum.text.documents import Document, Documents
from pathsum.text.shards import TokenShards, smallest_dtype
from pathsum.text.survey import Survey
from pathsum.text.tokenizer import Tokenizer

FORMAT, VERSION = "pathsum-corpus", 1
HEAD, TOKENIZER, JOURNAL = "corpus.json", "tokenizer.json", "journal.json"
TRAIN, HELD_OUT = "train", "held-out"
SHARD_TOKENS = 4 << 20
_TOGETHER = 64
# Merges settle long before this much text; reading more of a huge corpus only costs time.
_BPE_CHARACTERS = 200_000_000


def build(
    folder: Path,
    collection: Documents,
    found: Survey,
    vocabulary: int,
    tokenizer: Tokenizer | None,
    head: dict[str, Any],
    progress: Progress,
) -> None:
    """Build a corpus folder, or finish one that an earlier process began."""
    aside = folder.with_name(folder.name + ".building")
    try:
        aside.mkdir(parents=True, exist_ok=True)
        used = _tokenizer(aside, collection, found, vocabulary, tokenizer, progress)
        _tokenize(aside, collection, found, used, progress)
        head = head | _tallies(aside, used, found)
        _write(aside / HEAD, json.dumps(head, indent=2, ensure_ascii=False) + "\n")
        aside.rename(folder)
    except OSError as error:
        raise FailedError(
            f"building the corpus in {aside} failed ({error}); what is finished stays there, and "
            "the next build goes on from it; PATHSUM_CACHE names another place"
        ) from error


def shards(folder: Path, side: str) -> TokenShards:
    """One side of a built corpus."""
    return TokenShards(sorted(folder.glob(f"{side}-*.npy")))


def _tokenizer(
    aside: Path,
    collection: Documents,
    found: Survey,
    vocabulary: int,
    given: Tokenizer | None,
    progress: Progress,
) -> Tokenizer:
    file = aside / TOKENIZER
    if file.exists():
        return Tokenizer.from_file(file)
    progress(0, 0, f"learning {vocabulary} tokens")
    used = given or train_bpe(_training_text(collection, found), vocabulary)
    _write(file, used.to_json())
    return used


def _training_text(collection: Documents, found: Survey) -> Iterator[str]:
    characters = 0
    for document, held_out in found.read(collection):
        if not held_out:
            characters += len(document.text)
            yield document.text
        if characters > _BPE_CHARACTERS:
            return


def _tokenize(
    aside: Path, collection: Documents, found: Survey, tokenizer: Tokenizer, progress: Progress
) -> None:
    journal = aside / JOURNAL
    state = json.loads(journal.read_text()) if journal.exists() else {"documents": 0, "shards": 0}
    done, number = int(state["documents"]), int(state["shards"])
    waiting = {TRAIN: _Buffer(), HELD_OUT: _Buffer()}
    documents = islice(found.read(collection), done, None)
    while batch := list(islice(documents, _TOGETHER)):
        for ids, held_out in _encoded(tokenizer, batch):
            waiting[HELD_OUT if held_out else TRAIN].add(ids)
        done += len(batch)
        progress(done, found.documents, "tokenizing")
        if waiting[TRAIN].size >= SHARD_TOKENS:
            number = _flush(aside, waiting, number, done, tokenizer.size)
    _flush(aside, waiting, number, done, tokenizer.size)


def _encoded(
    tokenizer: Tokenizer, batch: list[tuple[Document, bool]]
) -> Iterator[tuple[list[int], bool]]:
    start = start_of(tokenizer)
    texts = [document.text for document, _ in batch]
    encodings = tokenizer.backend.encode_batch_fast(texts, add_special_tokens=False)
    for encoding, (_, held_out) in zip(encodings, batch, strict=True):
        yield [start, *encoding.ids], held_out


class _Buffer:
    """Ids that wait to be written."""

    def __init__(self) -> None:
        self.parts: list[list[int]] = []
        self.size = 0

    def add(self, ids: list[int]) -> None:
        self.parts.append(ids)
        self.size += len(ids)


def _flush(
    aside: Path, waiting: dict[str, _Buffer], number: int, documents: int, vocabulary: int
) -> int:
    dtype = smallest_dtype(vocabulary)
    for side, buffer in waiting.items():
        if buffer.parts:
            ids = np.concatenate([np.asarray(part, dtype=dtype) for part in buffer.parts])
            file = aside / f"{side}-{number:05d}.npy"
            part = file.with_suffix(".part")
            with part.open("wb") as opened:
                np.save(opened, ids)
            part.replace(file)
        waiting[side] = _Buffer()
    # The journal comes last: a shard that it does not count is written again.
    _write(aside / JOURNAL, json.dumps({"documents": documents, "shards": number + 1}))
    return number + 1


def _tallies(aside: Path, tokenizer: Tokenizer, found: Survey) -> dict[str, Any]:
    train, held_out = shards(aside, TRAIN), shards(aside, HELD_OUT)
    return {
        "documents": found.documents,
        "held_out_documents": len(found.held_out),
        "duplicates": found.duplicates,
        "characters": found.characters,
        "vocabulary": tokenizer.size,
        "tokens": train.n_tokens,
        "held_out_tokens": held_out.n_tokens,
    }


def _write(file: Path, text: str) -> None:
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(file)
