"""Documents: the standard library of the interpreter, and files of text, JSON lines or Parquet."""

import hashlib
import sysconfig
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from pathsum.errors import FileError, InputError
from pathsum.files import parse_json

LEAST_CHARACTERS = 500
# Longer texts are split at blank lines, so that part of a book in one file can be held out.
CHAPTER = 50_000
_NOT_LIBRARY = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test"})
_TEXT = frozenset(
    (
        *(".c", ".cc", ".cpp", ".go", ".h", ".hpp", ".java", ".js", ".py", ".rs", ".ts"),
        *(".html", ".md", ".rst", ".tex", ".text", ".txt"),
    )
)
_TABLES = frozenset({".jsonl", ".ndjson", ".parquet"})
_BINARY_SAMPLE = 8192


@dataclass(frozen=True)
class Document:
    """A text that is either trained on or held out as a whole."""

    name: str
    text: str

    @property
    def digest(self) -> bytes:
        """A hash of the text, to find duplicates and to choose what is held out."""
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
                text = _python_text(file)
                if text is not None and len(text) > LEAST_CHARACTERS:
                    yield Document("/".join(parts), text)


def _python_text(file: Path) -> str | None:
    try:
        with tokenize.open(file) as opened:  # honors the file's coding line
            return opened.read()
    except (SyntaxError, UnicodeDecodeError):
        return None  # such a file is a fixture of some test


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


def chapters(name: str, text: str, length: int = CHAPTER) -> Iterator[Document]:
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
        value = parse_json(line, f"{file}, line {number},", "correct the line")
        yield Document(f"{name}:{number}", text_of(value, field, f"{file}, line {number},"))


def text_of(value: Any, field: str, where: str) -> str:
    """The text of a table's row: the row itself if it is a string, else its field."""
    if isinstance(value, str):
        return value
    found = value.get(field) if isinstance(value, dict) else None
    if isinstance(found, str):
        return found
    found = ", ".join(map(repr, value)) if isinstance(value, dict) else type(value).__name__
    raise FileError(
        f"{where} has no text under {field!r} (there is {found}); set `field` to the name that "
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
        there = ", ".join(map(repr, opened.schema_arrow.names))
        raise FileError(
            f"{file} has no column {field!r} (there is {there}); set `field` to the column of "
            "the text"
        )
    number = 0
    for batch in opened.iter_batches(columns=[field]):
        for text in batch.column(0).to_pylist():
            if text is not None:
                yield Document(f"{name}:{number}", str(text))
            number += 1
