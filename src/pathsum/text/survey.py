"""A first reading of documents: what is there, what is double, and what is held out."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from pathsum.errors import InputError
from pathsum.result import Progress, silent
from pathsum.text.documents import Document, Documents


@dataclass(frozen=True)
class Survey:
    """What one reading of a collection found.

    A document is held out by its own hash, not by its place: adding documents moves none of the
    others from one side to the other, and no two copies of a text end up on different sides.
    """

    documents: int
    duplicates: int
    characters: int
    fingerprint: str
    held_out: frozenset[bytes]

    def read(self, collection: Documents) -> Iterator[tuple[Document, bool]]:
        """The documents again, copies and empty ones left out, each with whether it is held out."""
        seen: set[bytes] = set()
        for document in collection:
            digest = document.digest
            if digest not in seen and document.text.strip():
                seen.add(digest)
                yield document, digest in self.held_out


def survey(collection: Documents, share: float, progress: Progress = silent) -> Survey:
    """Read a collection once. `share` of its documents, at least one, are held out."""
    if not 0 < share < 1:
        raise InputError(f"the share to hold out is {share}; a number between 0 and 1 is right")
    digests: dict[bytes, None] = {}
    duplicates = characters = 0
    for document in collection:
        if not document.text.strip():
            continue
        digest = document.digest
        if digest in digests:
            duplicates += 1
            continue
        digests[digest] = None
        characters += len(document.text)
        if len(digests) % 100 == 0:
            progress(len(digests), 0, f"reading {collection.name}")
    _refuse_too_few(collection, len(digests), duplicates)
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


def _refuse_too_few(collection: Documents, documents: int, duplicates: int) -> None:
    if documents == 0:
        raise InputError(
            f"the corpus {collection.name!r} is empty: {collection.about} hold no text; "
            "name something with text in it"
        )
    if documents == 1:
        copies = f" ({duplicates} copies of it were dropped)" if duplicates else ""
        raise InputError(
            f"the corpus {collection.name!r} is a single document{copies}, and one must be held "
            "out to measure the loss on; give at least two files, or a .jsonl with a document a "
            "line"
        )
