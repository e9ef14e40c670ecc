"""Documents: the standard library, files of text, JSON lines or Parquet, datasets on the hub.

A dataset is streamed once and cached as JSON lines.

`without_boilerplate` removes license notices and repeated paragraphs: thousands of files begin with
the same notice, and a small model learns verbatim repetition first. Without this step, its
strongest skip-trigrams come from license texts.
"""

import hashlib
import json
import re
import sysconfig
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from pathsum.base import Progress, silent
from pathsum.base.errors import FailedError, FileError, InputError, first_line
from pathsum.base.files import cache_folder, digest, locked, parse_json, read_bytes

MIN_CHARACTERS = 500
# A file of text is read whole.
MAX_DOCUMENT_BYTES = 1 << 31
# Longer texts are split at blank lines, so that part of a book in one file can be held out.
CHAPTER_CHARACTERS = 50_000
_NOT_LIBRARY = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test"})
_CODE = frozenset({".c", ".cc", ".cpp", ".go", ".h", ".hpp", ".java", ".js", ".py", ".rs", ".ts"})
_TEXT = _CODE | {".html", ".md", ".rst", ".tex", ".text", ".txt"}
_TABLES = frozenset({".jsonl", ".ndjson", ".parquet"})
_BINARY_SAMPLE = 8192
# owner/name, owner/name:subset, and either with @revision.
_ID = re.compile(r"(?P<id>[\w.-]+/[\w.-]+)(?::(?P<subset>[\w.-]+))?(?:@(?P<revision>[\w.-]+))?")

# Shorter paragraphs repeat by chance: headings, one-line definitions, verses.
_MIN_REPEAT_LENGTH = 80
_NOTICE = re.compile(
    r"copyright\s+(\(c\)|©|\d{4}|by\b)|all\s+rights\s+reserved|\blicensed\s+under\b"
    r"|SPDX-License|redistribution\s+and\s+use|\bGNU\s+(lesser\s+|affero\s+|free\s+)?(general|"
    r"public|documentation)|warrant(y|ies)\s+(of|or)\b|\"AS\s+IS\"",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Document:
    """A text that is either trained on or held out as a whole."""

    name: str
    text: str

    @property
    def digest(self) -> bytes:
        """A hash of the text, to find duplicates and to choose held-out documents."""
        return hashlib.sha256(self.text.encode("utf-8", "surrogatepass")).digest()[:16]


@runtime_checkable
class Documents(Protocol):
    """A collection that can be read repeatedly, in the same order each time."""

    @property
    def name(self) -> str:
        """Its name in messages and in folder names."""
        ...

    @property
    def about(self) -> str:
        """A short description."""
        ...

    def __iter__(self) -> Iterator[Document]: ...


@dataclass(frozen=True)
class PythonLibrary:
    """The standard library of this interpreter: Python files over 500 characters, no tests."""

    name: str = "python"
    about: str = "the standard library of this interpreter, without tests"

    def __iter__(self) -> Iterator[Document]:
        root = Path(sysconfig.get_paths()["stdlib"])
        for file in sorted(root.rglob("*.py")):
            parts = file.relative_to(root).parts
            if _NOT_LIBRARY.isdisjoint(parts):
                try:
                    with tokenize.open(file) as opened:  # honors the file's coding line
                        text = opened.read()
                except (SyntaxError, UnicodeDecodeError):
                    continue  # such a file is a fixture of some test
                if len(text) > MIN_CHARACTERS:
                    yield Document("/".join(parts), text)


@dataclass(frozen=True)
class Files:
    """The texts of one file, or of all text files in a folder.

    A plain file is one document, split at blank lines into chapters of about 50,000 characters if
    it is longer. Each line of `.jsonl` and row of `.parquet` is a document, taken from `field`.
    """

    path: Path
    field: str = "text"

    @property
    def name(self) -> str:
        """The name of the file or folder."""
        return self.path.name or str(self.path)

    @property
    def about(self) -> str:
        """The location of the texts."""
        return f"files of {self.path}" if self.path.is_dir() else f"the file {self.path}"

    def __iter__(self) -> Iterator[Document]:
        if self.path.is_file():
            yield from _documents(self.path, self.path.name, self.field)
            return
        suffixes = _TEXT | _TABLES
        candidates = (
            file for file in sorted(self.path.rglob("*")) if file.suffix.lower() in suffixes
        )
        files = [file for file in candidates if file.is_file()]
        if not files:
            raise InputError(
                f"{self.path} holds no text: a corpus is read from "
                f"{', '.join(sorted(suffixes))} files"
            )
        for file in files:
            yield from _documents(file, file.relative_to(self.path).as_posix(), self.field)


def decode_text(content: bytes, name: str) -> str:
    """The text of a file's bytes, or an error if they are not UTF-8 text."""
    if b"\0" in content[:_BINARY_SAMPLE]:
        raise FileError(
            f"{name} is a binary file (it contains zero bytes), and a corpus is text; name text "
            "files, or a folder without it"
        )
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError(
            f"{name} is not UTF-8: byte {error.start} is 0x{content[error.start]:02x}; "
            "convert it first, for instance with `iconv -t UTF-8`"
        ) from error
    return text.replace("\r\n", "\n")


def chapters(name: str, text: str, length: int = CHAPTER_CHARACTERS) -> Iterator[Document]:
    """A text as documents: whole, or split at blank lines if it is longer than `length`.

    >>> [d.text for d in chapters("book", "one\\n\\ntwo\\n\\nthree", length=6)]
    ['one\\n\\ntwo\\n\\n', 'three']
    """
    if len(text) <= length:
        yield Document(name, text)
        return
    start, count = 0, 0
    while start < len(text):
        end = len(text)
        if end - start > length:
            blank = text.find("\n\n", start + length - 2)
            end = blank + 2 if blank >= 0 else start + length
        yield Document(f"{name}#{count}", text[start:end])
        start, count = end, count + 1


def _documents(file: Path, name: str, field: str) -> Iterator[Document]:
    suffix = file.suffix.lower()
    if suffix == ".parquet":
        yield from _parquet(file, name, field)
        return
    text = decode_text(read_bytes(file, MAX_DOCUMENT_BYTES), str(file))
    if suffix not in _TABLES:
        yield from chapters(name, text)
        return
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            line_name = f"{file}, line {number},"
            value = parse_json(line, line_name, "correct the line")
            yield Document(f"{name}:{number}", text_of(value, field, line_name))


def text_of(value: Any, field: str, name: str) -> str:
    """The text of a table's row: the row itself if it is a string, else its field."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and isinstance(value.get(field), str):
        return value[field]
    content = ", ".join(map(repr, value)) if isinstance(value, dict) else type(value).__name__
    raise FileError(
        f"{name} has no text under {field!r} (there is {content}); set `field` to the name that "
        "holds the text"
    )


def _parquet(file: Path, name: str, field: str) -> Iterator[Document]:
    try:
        from pyarrow import parquet  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise InputError(
            f"{file} is a Parquet file, and reading it needs pyarrow, which is not installed; "
            "install pathsum[data]"
        ) from error
    opened: Any = parquet.ParquetFile(file)
    if field not in opened.schema_arrow.names:
        columns = ", ".join(map(repr, opened.schema_arrow.names))
        raise FileError(
            f"{file} has no column {field!r} (there is {columns}); set `field` to the column of "
            "the text"
        )
    batches = opened.iter_batches(columns=[field])
    texts = chain.from_iterable(batch.column(0).to_pylist() for batch in batches)
    for number, text in enumerate(texts):
        if text is not None:
            yield Document(f"{name}:{number}", str(text))


@dataclass(frozen=True)
class HubDataset:
    """The texts of a dataset, named `owner/name`, `owner/name:subset` or `…@revision`.

    A dataset on the hub can change; a revision pins it. At most `limit` documents are streamed, and
    they are cached, so a second build needs no network.
    """

    id: str
    subset: str | None = None
    revision: str | None = None
    split: str = "train"
    field: str = "text"
    limit: int = 100_000
    progress: Progress = silent

    @classmethod
    def parse(cls, text: str, **options: Any) -> "HubDataset | None":
        """The dataset with this name; None if no dataset can have it."""
        match = _ID.fullmatch(text)
        return match and cls(match["id"], match["subset"], match["revision"], **options)

    @property
    def name(self) -> str:
        """The dataset's name, as part of a folder name."""
        return self.id.replace("/", "-")

    @property
    def about(self) -> str:
        """The number of documents, the revision and the split."""
        pinned = f" at {self.revision}" if self.revision else ""
        return f"up to {self.limit:,} documents of {self.id}{pinned}, split {self.split}"

    def __iter__(self) -> Iterator[Document]:
        with self._cached_file().open(encoding="utf-8") as opened:
            for number, line in enumerate(opened):
                name = f"line {number + 1} of {opened.name}"
                text = parse_json(line, name, "remove the file to fetch it again")
                if not isinstance(text, str):
                    raise FileError(f"{name} is not a JSON string; remove the file")
                yield Document(f"{self.id}:{number}", text)

    def _cached_file(self) -> Path:
        identity = [self.id, self.subset, self.revision, self.split, self.field, self.limit]
        key = digest(json.dumps(identity))[:16]
        file = cache_folder() / "datasets" / f"{self.name}-{key}.jsonl"
        if file.exists():
            return file
        with locked(file.with_suffix(".lock"), wait=True, taken=""):
            if not file.exists():  # another process may have fetched it in the meantime
                partial = file.with_suffix(".part")
                with partial.open("w", encoding="utf-8") as opened:
                    for number, text in enumerate(self._stream(), start=1):
                        opened.write(json.dumps(text) + "\n")
                        self.progress(number, self.limit, f"fetching {self.id}")
                partial.replace(file)
        return file

    def _stream(self) -> Iterator[str]:
        try:
            from datasets import load_dataset  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise InputError(
                f"{self.id!r} is not a file or folder, and reading it from the hub needs the "
                "library datasets, which is not installed; install pathsum[data]"
            ) from error
        try:
            rows: Any = load_dataset(
                self.id, self.subset, split=self.split, revision=self.revision, streaming=True
            )
            for number, row in enumerate(islice(rows, self.limit)):
                yield text_of(row, self.field, f"row {number} of {self.id}")
        except InputError:
            raise
        except (OSError, ValueError, RuntimeError) as error:
            raise FailedError(
                f"the dataset {self.id!r} could not be read ({first_line(error)}); check its "
                "name and the network"
            ) from error


def without_boilerplate(documents: Iterable[Document]) -> Iterator[Document]:
    """The documents without paragraphs that are notices or copies of an earlier paragraph.

    Documents that become too short are dropped.

    >>> code = "# Licensed under the Apache License\\n\\n" + "x = 1\\n" * 100
    >>> [document.text[:5] for document in without_boilerplate([Document("a", code)])]
    ['x = 1']
    """
    digests: set[bytes] = set()
    for document in documents:
        blocks = [
            block for block in document.text.split("\n\n") if not _is_boilerplate(block, digests)
        ]
        text = "\n\n".join(blocks)
        if len(text) > MIN_CHARACTERS:
            yield Document(document.name, text)


def _is_boilerplate(block: str, digests: set[bytes]) -> bool:
    """Whether a paragraph is dropped; the digest of a long one is added to `digests`."""
    if _NOTICE.search(block):
        return True
    if len(block) < _MIN_REPEAT_LENGTH:
        return False
    digest = hashlib.sha256(" ".join(block.split()).encode("utf-8", "surrogatepass")).digest()[:12]
    if digest in digests:
        return True
    digests.add(digest)
    return False
