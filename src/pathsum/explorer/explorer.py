"""Explorer: answers the questions of the server, of reports and of notebooks."""

import ctypes
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from pathsum.allocator import Trimmer
from pathsum.explorer.kept import MIN_SECONDS, KeptAnswers
from pathsum.explorer.memo import Memo
from pathsum.explorer.open_models import open_models
from pathsum.explorer.params import TextParams, answer_key, non_default_params, parse_params
from pathsum.explorer.questions import find_question
from pathsum.explorer.wire import encode
from pathsum.explorer.workbench import Workbench
from pathsum.model import Model
from pathsum.result import Record
from pathsum.sources.named import bundled_names

# Encoded answers that are cached, in bytes.
ANSWER_BYTES = 96 * 2**20


class Explorer:
    """Answers questions about one or several models.

    >>> explorer = Explorer(["hand-built-induction"])
    >>> run = explorer.answer("run", {"text": "a b c a"})
    >>> run.pieces
    ('<s>', 'a', 'b', 'c', 'a')

    An answer depends on the models and the parameters only; what is cached is cached for speed.
    Safe to use from many threads. `bundled` names the bundled models that the page also offers,
    by default all of them. With `keep`, slow answers are kept on disk, for the next start.
    """

    def __init__(
        self,
        models: Sequence[str | Path | Model],
        *,
        bundled: Sequence[str] | None = None,
        keep: bool = False,
    ) -> None:
        # The deepest first: they have the most to show.
        names = tuple(reversed(bundled_names())) if bundled is None else bundled
        self.workbench = Workbench(open_models(models), bundled=names)
        self._answers = Memo[str, bytes](ANSWER_BYTES, len)
        self._kept = KeptAnswers(self.workbench.models) if keep else None
        self._in_flight = InFlight()
        self._trimmer = Trimmer()

    @property
    def name(self) -> str:
        """The name of the model that the page opens with."""
        return self.workbench.models[0].name

    @property
    def busy(self) -> bool:
        """Whether an answer is being computed."""
        return self._in_flight.busy

    def stop(self, seconds: float) -> bool:
        """Abort the answers that are being computed; returns whether all ended within `seconds`."""
        return self._in_flight.stop(seconds)

    @torch.no_grad()
    def answer(self, name: str, params: Mapping[str, object] | None = None) -> Record:
        """The answer to a question as a record."""
        question = find_question(name)
        return question.compute(self.workbench, parse_params(question.params, params or {}))

    def ask(self, name: str, params: Mapping[str, object] | None = None) -> bytes:
        """The answer to a question as bytes (see `pathsum.explorer.wire`), cached."""
        question = find_question(name)
        parsed = parse_params(question.params, params or {})

        key = answer_key(name, non_default_params(parsed))

        @torch.no_grad()
        def compute() -> bytes:
            with self._in_flight.computing():
                # What was typed is not written to disk.
                kept = None if isinstance(parsed, TextParams) else self._kept
                known = kept.get(key) if kept else None
                if known is not None:
                    return known
                began = time.monotonic()
                wire = encode(question.compute(self.workbench, parsed))
                if kept and time.monotonic() - began > MIN_SECONDS:
                    kept.put(key, wire)
                return wire

        wire = self._answers.get(key, compute)
        if self._trimmer.due():
            self.workbench.remeasure()
            self._trimmer.trim()
        return wire

    def cached(self, name: str, params: Mapping[str, object] | None = None) -> bytes | None:
        """The answer as bytes if it is cached, else None; raises for a wrong question."""
        parsed = parse_params(find_question(name).params, params or {})
        return self._answers.peek(answer_key(name, non_default_params(parsed)))


class StoppedError(BaseException):
    """Raised in a thread whose answer was aborted; not an Exception, so no handler catches it."""


class InFlight:
    """The threads that are computing answers, and how to abort them.

    A thread that computes while the interpreter shuts down takes the process down with it. Threads
    cannot be killed from outside, but they can be made to raise at their next Python instruction,
    which is at most one tensor operation away.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._threads: list[int] = []

    @contextmanager
    def computing(self) -> Generator[None]:
        """Marks this thread as computing an answer."""
        thread = threading.get_ident()
        with self._changed:
            self._threads.append(thread)
        try:
            yield
        finally:
            with self._changed:
                self._threads.remove(thread)
                self._changed.notify_all()

    @property
    def busy(self) -> bool:
        """Whether any thread is computing an answer."""
        return bool(self._threads)

    def stop(self, seconds: float) -> bool:
        """Abort all answers and wait; returns whether all ended within `seconds`."""
        with self._changed:
            for thread in set(self._threads) - {threading.get_ident()}:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(thread), ctypes.py_object(StoppedError)
                )
            return self._changed.wait_for(lambda: not self._threads, seconds)
