"""Explorer: answers the questions of the server, of reports and of notebooks."""

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from pathsum.allocator import Trimmer
from pathsum.explorer.background import Background
from pathsum.explorer.in_flight import Counter, InFlight
from pathsum.explorer.kept import MIN_SECONDS, KeptAnswers
from pathsum.explorer.memo import Memo
from pathsum.explorer.open_models import open_models
from pathsum.explorer.params import TextParams, answer_key, non_default_params, parse_params
from pathsum.explorer.questions import find_question
from pathsum.explorer.wire import encode
from pathsum.explorer.workbench import Workbench
from pathsum.model import Model
from pathsum.result import Progress, Record, silent
from pathsum.sources.named import bundled_names

# Encoded answers that are cached, in bytes.
ANSWER_BYTES = 48 * 2**20


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
    page offers of the first model in place of the example texts.
    """

    def __init__(
        self,
        models: Sequence[str | Path | Model],
        *,
        bundled: Sequence[str] | None = None,
        keep: bool = False,
        texts: Sequence[str | Sequence[int]] = (),
    ) -> None:
        # The deepest first: they have the most to show.
        names = tuple(reversed(bundled_names())) if bundled is None else bundled
        self.workbench = Workbench(open_models(models), bundled=names, texts=texts)
        self._answers = Memo[str, bytes](ANSWER_BYTES, len, key_size=sys.getsizeof)
        self._kept = KeptAnswers(self.workbench.models) if keep else None
        self._in_flight = InFlight()
        self._trimmer = Trimmer()
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
                wire = encode(question.compute(self.workbench.reporting(report), parsed))
                if kept and time.monotonic() - began > MIN_SECONDS:
                    kept.put(key, wire)
                return wire

        wire = self._answers.shared(key, compute, progress)
        if self._trimmer.due():
            self.workbench.remeasure()
            self._trimmer.trim()
        return wire

    def cached(self, name: str, params: Mapping[str, object] | None = None) -> bytes | None:
        """The answer as bytes if it is cached, else None; raises for a wrong question."""
        parsed = parse_params(find_question(name).params, params or {})
        return self._answers.peek(answer_key(name, non_default_params(parsed)))
