"""Shared state of all answers: the open models, their recent runs, and cached results."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pathsum.base import Progress, is_number, silent
from pathsum.base.errors import InputError, TokenError
from pathsum.claims.examples import (
    Example,
    Sequences,
    examples,
    given_examples,
    measured_sequences,
    text_pieces,
)
from pathsum.explorer.memo import Memo, bytes_held
from pathsum.explorer.open_models import (
    OpenModel,
    bundled_config,
    find_model,
    open_model,
    snapshot_files,
)
from pathsum.explorer.params import ModelParams, TextParams
from pathsum.model import Model, Trace
from pathsum.model.recording import Recording
from pathsum.model.sequences import padded
from pathsum.model.trace import trace_run
from pathsum.model.weights import Weights
from pathsum.sources.named import BUNDLED, bundled_names

# Runs that are cached, in bytes, and results that several answers use (atlas, composition, bundled
# models); the latest is kept however large it is.
RUN_BYTES, RESULT_BYTES = 128 * 2**20, 128 * 2**20
# A run's patterns take heads × tokens² numbers, and a context may be longer than a page can show.
MAX_TOKENS = 2048

Result = TypeVar("Result")


@dataclass(frozen=True, eq=False)
class Run:
    """A traced text, and how many tokens it had before truncation."""

    trace: Trace
    given: int

    @property
    def ids(self) -> tuple[int, ...]:
        """The tokens that were run."""
        return tuple(self.trace.tokens[0].tolist())

    @property
    def truncated(self) -> bool:
        """Whether the text was truncated before the run."""
        return self.given > self.trace.tokens.shape[1]


class Workbench:
    """The open models and everything cached about them.

    `bundled` names bundled models that the page offers in addition; each is loaded on first use.
    Safe to use from many threads: what several of them need at once is computed once. `progress`
    is the callback of the current question: `reporting` makes a workbench with another one.
    `texts` (or token ids) take the place of the first model's example texts on the page; what is
    measured on example texts is measured on the built-in ones all the same.
    """

    progress: Progress = staticmethod(silent)

    def __init__(
        self,
        models: Sequence[OpenModel],
        bundled: Sequence[str] = (),
        run_bytes: int = RUN_BYTES,
        texts: Sequence[str | Sequence[int]] = (),
    ) -> None:
        if not models:
            raise InputError("no model is open; open at least one")
        self.models = tuple(models)
        self.bundled = tuple(bundled)
        self.texts = tuple(texts)
        # Listed once: questions ask several times, and listing reads the disk.
        self._always_there = frozenset(bundled_names()) - {one.name for one in models}
        self._runs = Memo[tuple[str, int | None, tuple[int, ...]], Run](run_bytes, _run_bytes)
        self._results = Memo[tuple[Any, ...], Any](RESULT_BYTES, _result_bytes)

    def reporting(self, progress: Progress) -> "Workbench":
        """The same workbench, with everything that it has cached, for one question."""
        own = copy.copy(self)
        own.progress = progress
        return own

    @property
    def waiting(self) -> int:
        """The number of threads that wait for a result of another thread."""
        return self._runs.waiting + self._results.waiting

    def open_model(self, params: ModelParams) -> OpenModel:
        """The model that a question is about: an open one, or a bundled one.

        Bundled models are always available, because the paper's claims about models of zero and
        one layer are measured on them.
        """
        name = params.model
        if name in self._always_there:
            return self.cached(("open", name), lambda: open_model(str(name)))
        return find_model(self.models, name)

    @property
    def model_names(self) -> tuple[str, ...]:
        """The models that the page offers: the open ones first, then the bundled ones."""
        return tuple(dict.fromkeys((*(one.name for one in self.models), *self.bundled)))

    def d_vocab(self, name: str) -> int:
        """The vocabulary size of a model that the page offers; a bundled one is not loaded."""
        for one in self.models:
            if one.name == name:
                return one.model.config.d_vocab
        return bundled_config(name)["d_vocab"]

    def has_snapshots(self, name: str) -> bool:
        """Whether a model that the page offers has snapshots; a bundled one is not loaded."""
        for one in self.models:
            if one.name == name:
                return one.run is not None
        return bool(snapshot_files(BUNDLED / name))

    def model(self, params: ModelParams) -> Model:
        """The model that a question is about, at its step."""
        return self.open_model(params).at(params.step)

    def examples(self, params: ModelParams) -> tuple[Example, ...]:
        """The texts that the page offers of a model; the same at every step."""
        one = self.open_model(params)
        if not self.texts or one.name != self.models[0].name:
            return self.built_in_examples(params)
        longest = min(one.model.config.n_ctx, MAX_TOKENS)
        return self.cached(
            ("texts", one.name), lambda: given_examples(one.model, one.name, self.texts, longest)
        )

    def built_in_examples(self, params: ModelParams) -> tuple[Example, ...]:
        """The example texts that fit a model."""
        one = self.open_model(params)
        return self.cached(("examples", one.name), lambda: examples(one.model))

    def sequences(self, params: ModelParams) -> tuple[Sequences, ...]:
        """The sequences that the cost of an intervention is measured on."""
        found = self.built_in_examples(params)
        return self.result(params, "sequences", lambda model: measured_sequences(model, found))

    def sequence_run(self, params: ModelParams, on: Sequences) -> Trace:
        """The unedited run of some sequences, which interventions start from."""
        return self.result(params, f"run of {on.name}", lambda model: model.trace(on.tokens))

    def text_pieces(self, params: ModelParams) -> Sequences:
        """Text that losses are measured on: held-out, or pieces of the example texts."""
        return text_pieces(self.model(params), self.built_in_examples(params))

    def result(self, params: ModelParams, what: str, compute: Callable[[Model], Result]) -> Result:
        """A result about the model of a question, computed once per step."""
        one, model = self.open_model(params), self.model(params)
        return self.cached((what, one.name, params.step), lambda: compute(model))

    def slow_result(
        self, params: ModelParams, what: str, compute: Callable[[Model, Progress], Result]
    ) -> Result:
        """`cached` for a computation that reports its progress."""
        one, model = self.open_model(params), self.model(params)
        return self.slow_cached(
            (what, one.name, params.step), lambda report: compute(model, report)
        )

    def cached(self, key: tuple[Any, ...], compute: Callable[[], Result]) -> Result:
        """A result under a key of its own, computed once."""
        return self.slow_cached(key, lambda _: compute())

    def slow_cached(self, key: tuple[Any, ...], compute: Callable[[Progress], Result]) -> Result:
        """`cached` for a computation that reports its progress."""
        return self._results.shared(key, compute, self.progress)

    def remeasure(self) -> None:
        """Measure what was used since again, and drop what is too much."""
        self._runs.remeasure()
        self._results.remeasure()

    def run(self, params: TextParams) -> Run:
        """The run of the text that a question is about."""
        ids = self.ids(params)
        model = self.model(params)
        kept = tuple(ids[: min(model.config.n_ctx, MAX_TOKENS)])
        key = (self.open_model(params).name, params.step, kept)
        found = self._runs.get(key, lambda: Run(_traced(model, kept), len(ids)))
        return Run(found.trace, len(ids))

    def ids(self, params: TextParams) -> list[int]:
        """The tokens of the text that a question is about, before truncation."""
        given = [name for name in ("text", "ids", "example") if getattr(params, name) is not None]
        if len(given) != 1:
            raise InputError(
                "give the text in exactly one way, as text, ids or example; "
                f"this question has {len(given)} of them"
            )
        model = self.model(params)
        if params.text is not None:
            ids = model.encode(params.text)
        elif params.ids is not None:
            ids = [model.token_id(number) for number in _parse_ids(params.ids)]
        else:
            ids = list(self._example(params).ids)
        if not ids:
            raise TokenError(
                "the text is empty, and this model has no start token; type at least one token"
            )
        return ids

    def _example(self, params: TextParams) -> Example:
        known = self.examples(params)
        assert params.example is not None
        if not 0 <= params.example < len(known):
            raise InputError(
                f"there is no example {params.example}: this model has examples 0 to "
                f"{len(known) - 1}"
            )
        return known[params.example]


def _traced(model: Model, ids: tuple[int, ...]) -> Trace:
    """A run without its logits, which answers compute at the positions that they are about."""
    tokens, lengths = padded(model, list(ids))
    return trace_run(model, tokens, lengths=lengths, record=Recording.RESIDUAL)


def _parse_ids(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    for part in parts:
        if not is_number(part):
            raise InputError(
                f"{part[:60]!r} is not a token id; write ids with commas between, as in 1,5,7"
            )
    return [int(part) for part in parts]


def _run_bytes(run: Run) -> int:
    return bytes_held(run, shared=(Model, Weights))


def _result_bytes(result: object) -> int:
    """A bundled model belongs to its cache entry; other results refer to models of others."""
    return bytes_held(result, shared=() if isinstance(result, OpenModel) else (Model, Weights))
