"""Explorer: the registry of questions, and their answers for servers, reports and notebooks.

The signature of the function that answers a question defines its parameters and its answer.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, get_type_hints

import torch

from pathsum.base import Progress, Record, silent
from pathsum.base.errors import InputError, near_misses
from pathsum.claims.examples import Example
from pathsum.explorer.answers import (
    composition,
    head,
    interventions,
    model,
    prediction,
    text,
    weights,
    whole_model,
)
from pathsum.explorer.cache import CanceledError
from pathsum.explorer.params import (
    ModelParams,
    answer_key,
    encode,
    non_default_params,
    parse_params,
)
from pathsum.explorer.session import Session, open_models
from pathsum.explorer.story import story
from pathsum.model import Model
from pathsum.sources.named import bundled_names


@dataclass(frozen=True)
class Question:
    """The name of a question and the function that computes its answer.

    Quick questions take a fraction of a second and have their own threads.
    """

    name: str
    compute: Callable[[Session, Any], Record]
    quick: bool = False

    @cached_property
    def params(self) -> type[ModelParams]:
        """The type of the parameters, the second argument of `compute`."""
        return get_type_hints(self.compute)["params"]

    @cached_property
    def answer(self) -> type[Record]:
        """The type of the answer, which `compute` returns."""
        return get_type_hints(self.compute)["return"]


QUESTIONS = (
    Question("model", model.model_info, quick=True),
    Question("gallery", model.gallery, quick=True),
    Question("vocabulary", model.vocabulary, quick=True),
    Question("weights", weights.page_weights, quick=True),
    Question("run", text.answer_run, quick=True),
    Question("attention", text.answer_attention, quick=True),
    Question("scores", text.scores, quick=True),
    Question("why", prediction.why),
    Question("paths", prediction.paths, quick=True),
    Question("sources", prediction.sources, quick=True),
    Question("story", story, quick=True),
    Question("without", interventions.without_parts, quick=True),
    Question("neurons", prediction.neurons),
    Question("neuron", prediction.neuron),
    Question("lens", prediction.answer_lens),
    Question("lens_parts", prediction.lens_parts, quick=True),
    Question("first_scores", whole_model.first_scores, quick=True),
    Question("atlas", whole_model.atlas),
    Question("head", head.head, quick=True),
    Question("copying", head.copied_shares),
    Question("token", head.token, quick=True),
    Question("trigrams", head.trigrams),
    Question("ablation", head.ablation),
    Question("contexts", head.contexts),
    Question("composition", composition.answer_composition),
    Question("embed_and_logit_edges", composition.embed_and_logit_edges),
    Question("edge", composition.edge),
    Question("terms", whole_model.terms),
    Question("program", whole_model.program),
    Question("rules", whole_model.rules),
    Question("training", whole_model.training),
    Question("paper", whole_model.tour, quick=True),
    Question("claim", whole_model.claim),
    Question("compare", whole_model.compare),
    Question("texts", interventions.texts),
)


class UnknownQuestionError(InputError):
    """There is no question of this name."""


def find_question(name: str) -> Question:
    """A question by name."""
    questions = {question.name: question for question in QUESTIONS}
    if name in questions:
        return questions[name]
    raise UnknownQuestionError(
        f"there is no question {name[:60]!r}{near_misses(name, questions)}; "
        f"choose one of {', '.join(questions)}"
    )


# Threads for quick questions (a run, a pattern) and for slow ones (an atlas), so that a page stays
# responsive while an atlas is computed; and the largest number of questions in each queue.
QUICK_THREADS, SLOW_THREADS, MAX_WAITING = 4, 4, 64


class BusyError(Exception):
    """The queue of questions is full."""


class Explorer:
    """Answers questions about one or several models.

    >>> explorer = Explorer(["hand-built-induction"])
    >>> run = explorer.answer("run", {"text": "a b c a"})
    >>> run.pieces
    ('<s>', 'a', 'b', 'c', 'a')

    An answer depends only on the models and the parameters. Thread-safe: threads that ask the same
    question at once share one computation.

    Args:
        bundled: Names of bundled models that the page offers in addition; by default all of them.
        texts: Texts, or lists of token ids, that replace the first model's example texts.
        digits: Significant digits of the numbers in answers, except in arrays.
    """

    def __init__(
        self,
        models: Sequence[str | Path | Model],
        *,
        bundled: Sequence[str] | None = None,
        texts: Sequence[str | Sequence[int]] = (),
        digits: int | None = None,
    ) -> None:
        # The deepest first: they have the most to show.
        names = tuple(reversed(bundled_names())) if bundled is None else bundled
        self.session = Session(open_models(models), bundled=names, texts=texts)
        self._digits = digits
        self._stopped = threading.Event()
        self._quick = _WorkerPool(QUICK_THREADS)
        self._slow = _WorkerPool(SLOW_THREADS)

    @property
    def name(self) -> str:
        """The name of the first model, which the page opens with."""
        return self.session.models[0].name

    @property
    def model(self) -> Model:
        """The first model."""
        return self.session.models[0].model

    @property
    def examples(self) -> tuple[Example, ...]:
        """The example texts of the first model."""
        return self.session.examples(ModelParams())

    @property
    def busy(self) -> bool:
        """Whether an answer is being computed."""
        return self._quick.busy or self._slow.busy

    @torch.no_grad()
    def answer(
        self,
        name: str,
        params: Mapping[str, object] | None = None,
        progress: Progress = silent,
    ) -> Record:
        """The answer to a question as a record."""
        question = find_question(name)
        session = self.session.reporting(self._cancelable(progress))
        return question.compute(session, parse_params(question.params, params or {}))

    def ask(
        self,
        name: str,
        params: Mapping[str, object] | None = None,
        progress: Progress = silent,
    ) -> bytes:
        """The answer to a question as bytes (see `pathsum.explorer.params`), cached.

        If `progress` raises CanceledError, the computation ends, unless other threads wait for the
        same answer.
        """
        _, key = self._parse(name, params)
        return self.session.cache.get(
            key,
            lambda report: encode(self.answer(name, params, report), self._digits),
            size=lambda wire: len(wire) + 4 * len(key),
            progress=self._cancelable(progress),
        )

    def submit(
        self, name: str, params: Mapping[str, object] | None, progress: Progress
    ) -> "Future[bytes]":
        """`ask` in a thread of the worker pool; raises BusyError if the queue is full."""
        question, key = self._parse(name, params)
        cached = self.session.cache.peek(key)
        if cached is not None:
            future: Future[bytes] = Future()
            future.set_result(cached)
            return future

        def work() -> bytes:
            progress(0, 0, "")
            return self.ask(name, params, progress)

        return (self._quick if question.quick else self._slow).submit(work)

    def stop(self, seconds: float) -> bool:
        """Cancel all pending answers; returns whether all ended within `seconds`.

        A running computation ends at its next progress report.
        """
        self._stopped.set()
        self._stopped = threading.Event()
        pending = {*self._quick.cancel(), *self._slow.cancel()}
        return not wait(pending, seconds).not_done

    def _parse(self, name: str, params: Mapping[str, object] | None) -> tuple[Question, str]:
        question = find_question(name)
        parsed = parse_params(question.params, params or {})
        return question, answer_key(name, non_default_params(parsed))

    def _cancelable(self, progress: Progress) -> Progress:
        stopped = self._stopped

        def report(done: int, total: int, what: str) -> None:
            if stopped.is_set():
                raise CanceledError
            progress(done, total, what)

        return report


class _WorkerPool:
    """A pool of threads with a bounded queue."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="pathsum answers")
        self._submitted: set[Future[bytes]] = set()
        self._lock = threading.Lock()

    @property
    def busy(self) -> bool:
        with self._lock:
            return any(future.running() for future in self._submitted)

    def submit(self, compute: Callable[[], bytes]) -> "Future[bytes]":
        with self._lock:
            self._submitted = {each for each in self._submitted if not each.done()}
            if sum(not each.running() for each in self._submitted) >= MAX_WAITING:
                raise BusyError(
                    f"{MAX_WAITING} questions are waiting for an answer already; try again later"
                )
            future = self._pool.submit(compute)
            self._submitted.add(future)
        return future

    def cancel(self) -> "set[Future[bytes]]":
        """Cancel the queued questions; returns those that are running."""
        with self._lock:
            return {
                future for future in self._submitted if not future.cancel() and not future.done()
            }
