"""Documents, and a collection of them that every machine has: the interpreter's own library."""

import hashlib
import sysconfig
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

LEAST_CHARACTERS = 500
_NOT_LIBRARY = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test"})


@dataclass(frozen=True)
class Document:
    """A text that is kept whole: it is trained on, or held out, never in part."""

    name: str
    text: str

    @property
    def digest(self) -> bytes:
        """What stands for the text when it is compared with others."""
        return hashlib.sha256(self.text.encode("utf-8", "surrogatepass")).digest()[:16]


@runtime_checkable
class Documents(Protocol):
    """A collection that can be read again and again, each time in the same order."""

    @property
    def name(self) -> str:
        """What it is called, in messages and as part of a folder's name."""
        ...

    @property
    def about(self) -> str:
        """What it is, in a few words."""
        ...

    def __iter__(self) -> Iterator[Document]: ...


@dataclass(frozen=True)
class PythonLibrary:
    """The interpreter's own standard library: Python files without tests, over 500 characters."""

    name: str = "python"
    about: str = "the interpreter's own standard library, without tests"

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
        with tokenize.open(file) as opened:  # heeds a file's own coding line
            return opened.read()
    except (SyntaxError, UnicodeDecodeError):
        return None  # a file that is not Python text is there for a test of its own
