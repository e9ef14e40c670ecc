"""Documents in files and folders: plain text, JSON lines, Parquet."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pathsum.errors import FileError, InputError
from pathsum.text.documents import Document

# Longer plain texts are cut at blank lines, or a book in one file could not be held out in part.
CHAPTER = 50_000
_TEXT = frozenset(
    (
        *(".c", ".cc", ".cpp", ".go", ".h", ".hpp", ".java", ".js", ".py", ".rs", ".ts"),
        *(".html", ".md", ".rst", ".tex", ".text", ".txt"),
    )
)
_TABLES = frozenset({".jsonl", ".ndjson", ".parquet"})
_BINARY_SAMPLE = 8192


@dataclass(frozen=True)
class Files:
    """The texts of one file, or of all files of a folder whose suffix is one of text.

    A plain file is one document, cut at blank lines into chapters of about 50,000 characters if it
    is longer; a line of `.jsonl` and a row of `.parquet` are a document each, taken from `field`.
    """

    path: Path
    field: str = "text"

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.name or str(self.path)

    @property
    def about(self) -> str:
        """Where the texts are."""
        return f"files of {self.path}" if self.path.is_dir() else f"the file {self.path}"

    def __iter__(self) -> Iterator[Document]:
        if self.path.is_file():
            yield from _documents(self.path, self.path.name, self.field)
            return
        files = [
            file
            for file in sorted(self.path.rglob("*"))
            if file.suffix.lower() in _TEXT | _TABLES and file.is_file()
        ]
        if not files:
            raise InputError(
                f"{self.path} holds no text: a corpus is read from "
                f"{', '.join(sorted(_TEXT | _TABLES))} files"
            )
        for file in files:
            yield from _documents(file, file.relative_to(self.path).as_posix(), self.field)


def decode(content: bytes, name: str) -> str:
    """The text of a file's bytes, or an error that says why there is none."""
    if b"\0" in content[:_BINARY_SAMPLE]:
        raise FileError(
            f"{name} is a binary file (it holds zero bytes), and a corpus is text; "
            "name text files, or a folder without it"
        )
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError(
            f"{name} is not UTF-8: byte {error.start} is 0x{content[error.start]:02x}; "
            "convert it first, for instance with `iconv -t UTF-8`"
        ) from error
    return text.replace("\r\n", "\n")


def chapters(name: str, text: str, length: int = CHAPTER) -> Iterator[Document]:
    """A text as documents: whole, or cut at blank lines if it is longer than `length`.

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
    try:
        text = decode(file.read_bytes(), str(file))
    except OSError as error:
        raise FileError(f"{file} cannot be read ({error.strerror})") from error
    if suffix in (".jsonl", ".ndjson"):
        yield from _json_lines(text, file, name, field)
    else:
        yield from chapters(name, text)


def _json_lines(text: str, file: Path, name: str, field: str) -> Iterator[Document]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError as error:
            raise FileError(f"{file}, line {number}, is not JSON ({error})") from error
        yield Document(f"{name}:{number}", text_of(value, field, f"{file}, line {number},"))


def text_of(value: Any, field: str, where: str) -> str:
    """The text in a row of a table: the row itself if it is a string, else its field."""
    if isinstance(value, str):
        return value
    found = value.get(field) if isinstance(value, dict) else None
    if isinstance(found, str):
        return found
    there = ", ".join(map(repr, value)) if isinstance(value, dict) else type(value).__name__
    raise FileError(
        f"{where} has no text under {field!r} (there is {there}); name the field that holds it"
    )


def _parquet(file: Path, name: str, field: str) -> Iterator[Document]:
    try:
        from pyarrow import parquet  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise InputError(
            f"{file} is a Parquet file, which pyarrow reads, and that is not installed; "
            "install pathsum[data]"
        ) from error
    opened: Any = parquet.ParquetFile(file)
    if field not in opened.schema_arrow.names:
        there = ", ".join(map(repr, opened.schema_arrow.names))
        raise FileError(
            f"{file} has no column {field!r} (there is {there}); name the column of the text"
        )
    number = 0
    for batch in opened.iter_batches(columns=[field]):
        for text in batch.column(0).to_pylist():
            if text is not None:
                yield Document(f"{name}:{number}", str(text))
            number += 1
