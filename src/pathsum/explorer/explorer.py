"""Explorer: answers the questions of the server, of reports and of notebooks."""

import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from pathsum.base import Progress, Record, silent
from pathsum.base.allocator import Trimmer
from pathsum.base.errors import PathsumError
from pathsum.explorer.in_flight import CanceledError, Counter, InFlight, StoppedError
from pathsum.explorer.kept import MIN_SECONDS, KeptAnswers
from pathsum.explorer.memo import Memo
from pathsum.explorer.open_models import open_models
from pathsum.explorer.params import TextParams, answer_key, non_default_params, parse_params
from pathsum.explorer.questions import find_question
from pathsum.explorer.wire import encode
from pathsum.explorer.workbench import Workbench
from pathsum.model import Model
from pathsum.sources.named import bundled_names

# Encoded answers that are cached, in bytes.
ANSWER_BYTES = 48 * 2**20

# How long nothing must have been asked before a computation in the background begins, and how often
# it looks whether something is being asked.
IDLE_SECONDS, LOOK_SECONDS = 2.0, 0.05


class Explorer:
    """Answers questions about one or several models.

    >>> explorer = Explorer(["hand-built-induction"])
    >>> run = explorer.answer("run", {"text": "a b c a"})
    >>> run.pieces
    ('<s>', 'a', 'b', 'c', 'a')

    An answer depends on the models and the parameters only; what is cached is cached for speed.
    Safe to use from many threads: those that ask the same question at once share one computation.
    `bundled` names the bundled models that the page also offers, by default all of them. With
    `keep`, slow answers are kept on disk, for the next start. `texts` (or token ids) are what the
    page offers of the first model in place of the example texts. With `trim`, freed memory is
    returned to the system every few seconds, as a process that stays should do. With `digits`, the
    numbers of answers are rounded, except in arrays.
    """

    def __init__(
        self,
        models: Sequence[str | Path | Model],
        *,
        bundled: Sequence[str] | None = None,
        keep: bool = False,
        texts: Sequence[str | Sequence[int]] = (),
        trim: bool = True,
        digits: int | None = None,
    ) -> None:
        # The deepest first: they have the most to show.
        names = tuple(reversed(bundled_names())) if bundled is None else bundled
        self.workbench = Workbench(open_models(models), bundled=names, texts=texts)
        self._answers = Memo[str, bytes](ANSWER_BYTES, len, key_size=sys.getsizeof)
        self._kept = KeptAnswers(self.workbench.models) if keep else None
        self._in_flight = InFlight()
        self._trimmer, self._trims, self._digits = Trimmer(), trim, digits
        self._asking = Counter()
        self._background = Background(self)

    @property
    def name(self) -> str:
        """The name of the model that the page opens with."""
        return self.workbench.models[0].name

    @property
    def busy(self) -> bool:
        """Whether an answer is being computed."""
        return self._in_flight.busy

    @property
    def asked(self) -> int:
        """The number of threads inside `ask`."""
        return self._asking.count

    @property
    def waiting(self) -> int:
        """The number of threads that wait for a result of another thread."""
        return self._answers.waiting + self.workbench.waiting

    def prepare(self) -> None:
        """Compute the slow answers of the open models while nothing else is asked."""
        self._background.start()

    def stop(self, seconds: float) -> bool:
        """Abort the answers that are being computed; returns whether all ended within `seconds`."""
        self._background.stop()
        return self._in_flight.stop(seconds)

    @torch.no_grad()
    def answer(
        self,
        name: str,
        params: Mapping[str, object] | None = None,
        progress: Progress = silent,
    ) -> Record:
        """The answer to a question as a record."""
        question = find_question(name)
        bench = self.workbench.reporting(progress)
        return question.compute(bench, parse_params(question.params, params or {}))

    def ask(
        self,
        name: str,
        params: Mapping[str, object] | None = None,
        progress: Progress = silent,
    ) -> bytes:
        """The answer to a question as bytes (see `pathsum.explorer.wire`), cached.

        A `progress` that raises CanceledError withdraws the question: its computation ends at that
        report unless others wait for the same.
        """
        with self._asking.one_more():
            return self.ask_in_background(name, params, progress)

    def ask_in_background(
        self, name: str, params: Mapping[str, object] | None, progress: Progress
    ) -> bytes:
        """`ask`, without counting as a question in progress."""
        question = find_question(name)
        parsed = parse_params(question.params, params or {})

        key = answer_key(name, non_default_params(parsed))

        @torch.no_grad()
        def compute(report: Progress) -> bytes:
            with self._in_flight.computing():
                # What was typed is not written to disk.
                kept = None if isinstance(parsed, TextParams) else self._kept
                known = kept.get(key) if kept else None
                if known is not None:
                    return known
                began = time.monotonic()
                record = question.compute(self.workbench.reporting(report), parsed)
                wire = encode(record, self._digits)
                if kept and time.monotonic() - began > MIN_SECONDS:
                    kept.put(key, wire)
                return wire

        wire = self._answers.shared(key, compute, progress)
        if self._trimmer.due():
            self.workbench.remeasure()
            if self._trims:
                self._trimmer.trim()
        return wire

    def cached(self, name: str, params: Mapping[str, object] | None = None) -> bytes | None:
        """The answer as bytes if it is cached, else None; raises for a wrong question."""
        parsed = parse_params(find_question(name).params, params or {})
        return self._answers.peek(answer_key(name, non_default_params(parsed)))


class Background:
    """One thread that asks the slow questions of the open models, one after another.

    It waits at every progress report while other questions are being computed, unless those wait
    for what it computes.
    """

    def __init__(self, explorer: Explorer) -> None:
        self._explorer = explorer
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin, once."""
        if self._thread is None:
            self._stopped.clear()
            self._thread = threading.Thread(
                target=self._run, name="pathsum background", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """End at the next progress report; `Explorer.stop` aborts what reports none."""
        self._stopped.set()
        self._thread = None

    def _run(self) -> None:
        try:
            for name, params in self._questions():
                self._wait_until_idle()
                try:
                    self._explorer.ask_in_background(name, params, self._report)
                except PathsumError:
                    continue  # raised again for the one who asks it
        except StoppedError:
            return

    def _questions(self) -> Iterator[tuple[str, dict[str, object]]]:
        models = self._explorer.workbench.models
        for place, one in enumerate(models):
            params: dict[str, object] = {} if place == 0 else {"model": one.name}
            if one.model.config.n_layers:
                yield "composition", params
                yield "atlas", params
            if one.run is not None:
                yield "training", params

    def _wait_until_idle(self) -> None:
        since = time.monotonic()
        while time.monotonic() - since < IDLE_SECONDS:
            if self._explorer.asked:
                since = time.monotonic()
            self._look()

    def _report(self, done: int, total: int, what: str) -> None:  # noqa: ARG002
        while self._explorer.asked and not self._explorer.waiting:
            self._look()
        self._look(0.0)

    def _look(self, seconds: float = LOOK_SECONDS) -> None:
        if self._stopped.wait(seconds):
            raise CanceledError
