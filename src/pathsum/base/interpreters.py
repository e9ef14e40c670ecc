"""Helper processes: other Python interpreters that compute for this one.

Importing torch takes seconds. A command that will share its work starts its helpers before it
imports anything itself (`started_early`), so that all import at the same time.
"""

import gc
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

# This interpreter and those that it starts, at most.
MAX_PROCESSES = min(4, os.cpu_count() or 1)
# Answers parts of a report; written out here because a command starts it before importing it.
REPORT_HELPER = "from pathsum.explorer.report_answers import serve; serve()"

# Runs before anything is imported: Ctrl-C reaches all processes of a terminal, and the parent ends
# its helpers.
_FIRST = "import gc, signal; gc.disable(); signal.signal(signal.SIGINT, signal.SIG_IGN); "

_waiting: dict[str, list[subprocess.Popen[bytes]]] = {}


def start_interpreter(code: str) -> subprocess.Popen[bytes]:
    """An interpreter that runs some code, with pipes; one that was started early, if there is one.

    It has the same module path, and does not import the caller's script.
    """
    early = _waiting.get(code)
    return early.pop() if early else _start(code)


@contextmanager
def started_early(code: str, count: int) -> Generator[None]:
    """Start interpreters for `start_interpreter` to hand out; unused ones are ended."""
    _waiting[code] = [_start(code) for _ in range(count)]
    try:
        yield
    finally:
        for process in _waiting.pop(code):
            end_interpreter(process)


@contextmanager
def importing() -> Generator[None]:
    """Import large libraries without looking for garbage, which takes a sixth of the time."""
    gc.disable()
    try:
        yield
    finally:
        end_imports()


def end_imports() -> None:
    """Collect garbage from here on; what was imported stays and is not looked through again."""
    gc.freeze()
    gc.enable()


def end_interpreter(process: subprocess.Popen[bytes]) -> None:
    """Kill an interpreter."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        with suppress(BrokenPipeError):  # what was not sent
            pipe.close()


def _start(code: str) -> subprocess.Popen[bytes]:
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    return subprocess.Popen(
        [sys.executable, "-c", _FIRST + code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    )
