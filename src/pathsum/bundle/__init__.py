"""The built front end, as data. Its sources are in `web/` of the repository; `make web` builds it.

Nobody needs Node to run pathsum: these files come with it, and nothing is loaded from elsewhere.
"""

from importlib.resources import files

from pathsum.errors import FileError

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
    found = files(__name__) / name
    if name not in names() or not found.is_file():
        raise FileError(
            f"the built front end has no {name}; in a checkout, `make web` builds it, and an "
            "installed pathsum that lacks it is broken"
        )
    return found.read_bytes()


def names() -> tuple[str, ...]:
    """The files of the bundle that a page may load."""
    return tuple(
        sorted(
            entry.name
            for entry in files(__name__).iterdir()
            if entry.is_file() and any(entry.name.endswith(end) for end in CONTENT_TYPES)
        )
    )


def content_type(name: str) -> str:
    """What a browser is told that a file is."""
    return next(kind for end, kind in CONTENT_TYPES.items() if name.endswith(end))
