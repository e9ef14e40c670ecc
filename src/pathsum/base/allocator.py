"""Settings of glibc's memory allocator: when freed memory is kept and when it is returned.

They affect the whole process, so only commands change them, never the library. Other allocators are
left alone.
"""

import ctypes
import sys
import threading
import time

# Parameters of mallopt (malloc.h).
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -2, -3, -8
# Trimming walks all free memory, which takes milliseconds.
TRIM_SECONDS = 2.0


def keep_freed_memory() -> None:
    """Keep freed memory for the next allocation, however large.

    A training step allocates and frees the same tens of megabytes; by default glibc returns them to
    the system, which zeroes them again page by page: a tenth of a step or more.
    """
    _set({_MMAP_THRESHOLD: 1 << 30, _TRIM_THRESHOLD: (1 << 31) - 1, _TOP_PAD: 1 << 26})


def return_freed_memory() -> None:
    """Return freed memory to the system.

    Threads share two arenas, because each arena keeps free memory of its own. Blocks from 512 kB on
    are mapped separately and returned when freed; by default glibc soon takes them from the arenas
    too, where one small block that is still in use keeps the pages around it.
    """
    _set({_ARENA_MAX: 2, _MMAP_THRESHOLD: 1 << 19})


class Trimmer:
    """Returns freed memory to the system, at most every `TRIM_SECONDS`.

    glibc keeps memory that threads have freed for their next allocation: after thousands of answers
    that is several times what is in use. Other allocators return it by themselves.
    """

    def __init__(self) -> None:
        self._last = 0.0
        self._lock = threading.Lock()
        try:
            self._trim = ctypes.CDLL(None).malloc_trim if sys.platform == "linux" else None
        except AttributeError:  # musl has no malloc_trim
            self._trim = None

    def due(self) -> bool:
        """Whether trimming is due; a caller that gets True must trim."""
        with self._lock:
            now = time.monotonic()
            if now - self._last < TRIM_SECONDS:
                return False
            self._last = now
            return True

    def trim(self) -> None:
        """Return freed memory."""
        if self._trim is not None:
            self._trim(0)


def _set(parameters: dict[int, int]) -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        for number, value in parameters.items():
            mallopt(number, value)
