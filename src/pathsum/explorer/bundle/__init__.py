"""The built front end, as data files; `make web` builds it from `web/` in the repository.

The files are part of the package, so running pathsum needs neither Node nor a network.
"""

from importlib.resources import files
from pathlib import Path

from pathsum.base.errors import FileError

PAGE, SCRIPT, STYLE = "index.html", "app.js", "app.css"

CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}


def read(name: str) -> bytes:
    """One file of the bundle."""
    if name not in names():
        raise FileError(
            f"the built front end has no {name}; run `make web` in a checkout, or reinstall pathsum"
        )
    return (files(__name__) / name).read_bytes()


def names() -> tuple[str, ...]:
    """The names of the files that a page may load."""
    entries = [entry.name for entry in files(__name__).iterdir() if entry.is_file()]
    return tuple(sorted(name for name in entries if Path(name).suffix in CONTENT_TYPES))


def content_type(name: str) -> str:
    """The content type of a file."""
    return CONTENT_TYPES[Path(name).suffix]
