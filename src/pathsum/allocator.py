"""Settings of glibc's memory allocator: when freed memory is kept and when it is returned.

The settings are of the whole process, so only commands make them, never the library. Other
systems' allocators are left as they are.
"""

import ctypes
import sys
import threading
import time

# Numbers of glibc's parameters (malloc.h).
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -2, -3, -8
MAX_ARENAS = 2
LARGE_BYTES = 1 << 19
# Trimming walks all free memory, which takes milliseconds.
TRIM_SECONDS = 2.0


def keep_freed_memory() -> None:
    """Keep what is freed for the next allocation, however large.

    A training step allocates and frees the same tens of megabytes; by default glibc returns them to
    the system, which hands them out again page by page, zeroed: a tenth of a step and more.
    """
    _set({_MMAP_THRESHOLD: 1 << 30, _TRIM_THRESHOLD: (1 << 31) - 1, _TOP_PAD: 1 << 26})


def return_freed_memory() -> None:
    """Return what is freed, however it was used.

    Threads share memory pools, since each of glibc's keeps free memory of its own. Large blocks are
    the system's own from the start: glibc would soon take them from the pools too, where a small
    block that stays keeps the page around it.
    """
    _set({_ARENA_MAX: MAX_ARENAS, _MMAP_THRESHOLD: LARGE_BYTES})


class Trimmer:
    """Returns freed memory to the system, at most every `TRIM_SECONDS`.

    glibc keeps what threads have freed for their next allocation: after thousands of answers that
    is several times what is in use. Other systems' allocators return it by themselves.
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
