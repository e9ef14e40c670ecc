"""The answers of a report, computed by this process and by helper processes.

A report consists of parts (`report_contents`). Each process opens the same models and takes the
next part when it is done with one; the answers are joined in the report's own order. The processes
are interpreters of their own (`interpreters`).
"""

import json
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

import torch

from pathsum.base import Progress, silent
from pathsum.base.allocator import keep_freed_memory
from pathsum.base.errors import FailedError, InputError, NotExactError, PathsumError
from pathsum.base.interpreters import (
    MAX_PROCESSES,
    REPORT_HELPER,
    end_imports,
    end_interpreter,
    start_interpreter,
)
from pathsum.explorer.answers.model import Vocabulary
from pathsum.explorer.explorer import Explorer
from pathsum.explorer.params import ModelParams, answer_key
from pathsum.explorer.report_contents import (
    PREDICTIONS,
    Contents,
    Part,
    Parts,
    Recorded,
    ReportView,
    explained_texts,
    questions_of,
    report_parts,
)
from pathsum.explorer.wire import encode
from pathsum.model import Model

# Larger models are answered by one process with all threads: each process converts its own weights.
SHARED_PARAMETERS = 100_000_000


@dataclass(frozen=True)
class Answer:
    """The answer to a question in the wire format, or the problem that there is none for."""

    name: str
    key: str
    wire: bytes | None
    problem: str = ""


@dataclass(frozen=True)
class Job:
    """What another process needs to compute parts of a report."""

    models: tuple[str, ...]
    texts: tuple[str | Sequence[int], ...]
    contents: Contents

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        texts = [text if isinstance(text, str) else list(text) for text in self.texts]
        return {"models": list(self.models), "texts": texts, "contents": asdict(self.contents)}

    @staticmethod
    def from_json(given: dict[str, Any]) -> "Job":
        """The inverse of `to_json`."""
        contents = given["contents"]
        views = tuple(map(ReportView, contents.pop("views")))
        return Job(tuple(given["models"]), tuple(given["texts"]), Contents(views, **contents))


def make_job(
    models: Sequence[str | Path | Model],
    texts: Sequence[str | Sequence[int]],
    contents: Contents,
) -> Job | None:
    """The job of other processes; None if they cannot open the models, or it is not worth it."""
    if any(isinstance(model, Model) for model in models):
        return None
    if not contents.has(ReportView.ATLAS, ReportView.PAPER):
        return None
    return Job(tuple(map(str, models)), tuple(texts), contents)


def answers(
    explorer: Explorer, contents: Contents, job: Job | None, progress: Progress = silent
) -> Iterator[Answer]:
    """Every answer of a report, in its order."""
    parts = report_parts(explorer, contents)
    n_parameters = explorer.workbench.model(ModelParams()).weights.n_parameters
    jobs: list[Job] = []
    if job is not None and n_parameters <= SHARED_PARAMETERS:
        jobs = [job] * (min(MAX_PROCESSES, len(parts)) - 1)
    found: dict[Part, list[Answer]] = {}
    waiting = deque(longest_first(explorer, parts))
    count = _Count(progress)
    with ExitStack() as stack:
        threads = max(1, torch.get_num_threads() // (1 + len(jobs)))
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(threads)
        helpers = [_Helper(one, threads, waiting, found) for one in jobs]
        for helper in helpers:
            stack.callback(helper.end)
        while (part := _next(waiting)) is not None:
            found[part] = []
            for one in answer_part(explorer, contents, part, count.within(found)):
                found[part].append(one)
                count(found, one.name)
        for helper in helpers:
            helper.join(lambda: count(found, "the rest"))
    for part in parts:
        yield from found[part]


def longest_first(explorer: Explorer, parts: Sequence[Part]) -> list[Part]:
    """The parts, those that take longest first, so that processes that share them end together."""
    kinds, explained = list(Parts), explained_texts(explorer)
    examples = explorer.workbench.examples(ModelParams())

    def rank(part: Part) -> tuple[int, int]:
        if part.kind is not Parts.TEXT:
            return kinds.index(part.kind), 0
        length = len(examples[int(part.of)].ids)
        return kinds.index(part.kind), -(length if part.of in explained else PREDICTIONS)

    return sorted(parts, key=rank)


def answer_part(
    explorer: Explorer, contents: Contents, part: Part, progress: Progress = silent
) -> Iterator[Answer]:
    """The answers of one part; a question that has none says why."""
    for question in questions_of(explorer, contents, part):
        key = answer_key(question.name, question.params)
        try:
            wire = _answered(explorer, question, contents, progress)
        except (InputError, NotExactError) as error:
            yield Answer(question.name, key, None, str(error))
        else:
            yield Answer(question.name, key, wire)


def _answered(
    explorer: Explorer, question: Recorded, contents: Contents, progress: Progress
) -> bytes:
    if not contents.slim or question.name != "vocabulary":
        return explorer.ask(question.name, question.params, progress)
    record = explorer.answer(question.name, question.params)
    assert isinstance(record, Vocabulary)
    # Nothing is drawn from it in a fragment.
    return encode(replace(record, counts=None, drawable=record.drawable[:0]), contents.digits)


def _next(waiting: "deque[Part]") -> Part | None:
    try:
        return waiting.popleft()
    except IndexError:
        return None


class _Count:
    """Reports how many answers there are; the total is known only at the end."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def __call__(self, found: dict[Part, list[Answer]], name: str) -> None:
        number = sum(map(len, list(found.values())))
        self._progress(number, number + 1, f"answering {name}")

    def within(self, found: dict[Part, list[Answer]]) -> Progress:
        """The callback of one answer, whose own steps stand behind the number of answers."""

        def step(done: int, total: int, what: str) -> None:
            self(found, f"{what}, {done} of {total}")

        return step


class _Helper:
    """A process that takes parts until none is waiting."""

    def __init__(
        self, job: Job, threads: int, waiting: "deque[Part]", found: dict[Part, list[Answer]]
    ) -> None:
        self._started = {**job.to_json(), "threads": threads}
        self._waiting, self._found = waiting, found
        self._error: FailedError | None = None
        self._process = start_interpreter(REPORT_HELPER)
        self._thread = threading.Thread(target=self._feed, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """End the process: it is idle by now, unless an error ends the report."""
        self._process.kill()
        self._thread.join()
        end_interpreter(self._process)

    def join(self, still_waiting: Callable[[], None]) -> None:
        """Wait until it has answered its parts; raises FailedError if it could not."""
        while self._thread.is_alive():
            self._thread.join(0.2)
            still_waiting()
        if self._error is not None:
            raise self._error

    def _feed(self) -> None:
        """Hand out parts and collect their answers; runs in a thread."""
        to, back = self._process.stdin, self._process.stdout
        assert to is not None
        assert back is not None
        try:
            _send(to, self._started)
            _receive_answer(back)  # it is ready
            while (part := _next(self._waiting)) is not None:
                self._found[part] = []
                _send(to, [part.kind, part.of])
                while (one := _receive_answer(back)) is not None:
                    self._found[part].append(one)
        except _EndedError as error:
            self._error = FailedError(
                f"a process that answers a part of the report ended: {error or 'see its message'}"
            )
        except BrokenPipeError:
            self._error = FailedError("a process that answers a part of the report ended early")


class _EndedError(Exception):
    """The other end of a pipe closed, or said what went wrong."""


def serve() -> None:
    """Answer parts that arrive on stdin until it closes; the main function of a helper."""
    end_imports()
    keep_freed_memory()
    # Whatever is printed goes to stderr: stdout is for answers.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    line = sys.stdin.buffer.readline()
    if not line:  # started early, and not needed
        return
    given = json.loads(line)
    torch.set_num_threads(given["threads"])
    job = Job.from_json(given)
    with suppress(BrokenPipeError):  # the rest is not waited for
        try:
            digits = job.contents.digits
            explorer = Explorer(job.models, bundled=(), texts=job.texts, trim=False, digits=digits)
            _send(out, None)
            for line in sys.stdin.buffer:
                kind, of = json.loads(line)
                for one in answer_part(explorer, job.contents, Part(Parts(kind), of)):
                    size = None if one.wire is None else len(one.wire)
                    _send(out, [one.name, one.key, size, one.problem], one.wire or b"")
                _send(out, None)
        except PathsumError as error:
            _send(out, str(error))


def _receive_answer(pipe: IO[bytes]) -> Answer | None:
    """The next answer of a part; None at its end."""
    line = pipe.readline()
    if not line.endswith(b"\n"):
        raise _EndedError
    found = json.loads(line)
    if isinstance(found, str):
        raise _EndedError(found)
    if found is None:
        return None
    name, key, size, problem = found
    if size is None:
        return Answer(name, key, None, problem)
    wire = pipe.read(size)
    if len(wire) < size:
        raise _EndedError
    return Answer(name, key, wire)


def _send(pipe: IO[bytes], value: Any, data: bytes = b"") -> None:
    """A line of JSON, and the bytes that it announces."""
    pipe.write(json.dumps(value).encode() + b"\n" + data)
    pipe.flush()
