"""The cache folder, and locks that keep two processes from writing the same folder."""

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from pathsum.errors import FailedError


def cache_folder() -> Path:
    """`$PATHSUM_CACHE`, else `pathsum` in `$XDG_CACHE_HOME`, else `~/.cache/pathsum`."""
    own = os.environ.get("PATHSUM_CACHE")
    if own:
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "pathsum"


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
            _lock(opened.fileno(), wait)
        except OSError as error:
            raise FailedError(taken) from error
        yield


if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int, wait: bool) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    def _lock(descriptor: int, wait: bool) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
