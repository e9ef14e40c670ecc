"""Documents without license notices and without paragraphs that occurred before.

Thousands of files begin with the same notice, and a small model learns verbatim repetition first.
Without this step, its strongest skip-trigrams come from license texts.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator

from pathsum.text.documents import LEAST_CHARACTERS, Document

# Shorter paragraphs repeat by chance: headings, one-line definitions, verses.
_SHORTEST_REPEAT = 80
_NOTICE = re.compile(
    r"copyright\s+(\(c\)|©|\d{4}|by\b)|all\s+rights\s+reserved|\blicensed\s+under\b"
    r"|SPDX-License|redistribution\s+and\s+use|\bGNU\s+(lesser\s+|affero\s+|free\s+)?(general|"
    r"public|documentation)|warrant(y|ies)\s+(of|or)\b|\"AS\s+IS\"",
    re.IGNORECASE,
)


def without_boilerplate(documents: Iterable[Document]) -> Iterator[Document]:
    """The documents without paragraphs that are notices or copies of an earlier paragraph.

    Documents of which little is left are dropped.

    >>> code = "# Licensed under the Apache License\\n\\n" + "x = 1\\n" * 100
    >>> [found.text[:5] for found in without_boilerplate([Document("a", code)])]
    ['x = 1']
    """
    seen: set[bytes] = set()
    for document in documents:
        kept = [block for block in document.text.split("\n\n") if not _is_boilerplate(block, seen)]
        text = "\n\n".join(kept)
        if len(text) > LEAST_CHARACTERS:
            yield Document(document.name, text)


def _is_boilerplate(block: str, seen: set[bytes]) -> bool:
    """Whether a paragraph is dropped; long ones are added to those seen."""
    if _NOTICE.search(block):
        return True
    if len(block) < _SHORTEST_REPEAT:
        return False
    digest = hashlib.sha256(" ".join(block.split()).encode("utf-8", "surrogatepass")).digest()[:12]
    if digest in seen:
        return True
    seen.add(digest)
    return False
