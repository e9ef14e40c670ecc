"""The cache folder, and locks that keep two processes from writing the same folder."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from pathsum.base.errors import FailedError
from pathsum.base.files import lock


def cache_folder() -> Path:
    """`$PATHSUM_CACHE`, else `pathsum` in `$XDG_CACHE_HOME`, else `~/.cache/pathsum`."""
    own = os.environ.get("PATHSUM_CACHE")
    if own:
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(shared) if shared else Path.home() / ".cache") / "pathsum"
    except RuntimeError as error:  # a user whom the system does not know, without $HOME
        raise FailedError(
            "there is no home folder to keep files in; set PATHSUM_CACHE to a folder for them"
        ) from error


@contextmanager
def locked(file: Path, *, wait: bool, taken: str) -> Generator[None]:
    """Hold a lock file; with `wait=False` raise an error with the text `taken` if it is held.

    The operating system owns the lock, so a killed process no longer holds it.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        opened = file.open("a+")
    except OSError as error:
        raise FailedError(f"cannot write the lock {file} ({error})") from error
    with opened:
        try:
            lock(opened.fileno(), wait=wait)
        except OSError as error:
            raise FailedError(taken) from error
        yield
