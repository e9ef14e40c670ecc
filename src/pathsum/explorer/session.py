"""The open models, and the cached runs and results that answers share."""

import copy
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, count
from pathlib import Path
from typing import TypeVar

from pathsum.base import Progress, is_number, silent
from pathsum.base.errors import FileError, InputError, TokenError, near_misses
from pathsum.base.files import exists, read_text, shown_name, user_path
from pathsum.claims.examples import (
    Example,
    Sequences,
    examples,
    intervention_sequences,
    text_pieces,
    user_examples,
)
from pathsum.explorer.cache import Cache
from pathsum.explorer.params import ModelParams, TextParams
from pathsum.model import Model, Trace
from pathsum.model.recording import RESIDUAL
from pathsum.model.sequences import padded, require_causal
from pathsum.model.storage import CONFIG
from pathsum.model.trace import trace_run
from pathsum.sources import load
from pathsum.sources.named import BUNDLED, bundled_names, known_names
from pathsum.training import read_snapshots

# The size of the cache, and the assumed size of a result without an estimate, in bytes.
CACHE_BYTES, RESULT_BYTES = 256 * 2**20, 2**19
# The patterns of a run take heads × tokens² numbers; longer texts are truncated.
MAX_TOKENS = 2048

Result = TypeVar("Result")


@dataclass(frozen=True, eq=False)
class OpenModel:
    """A model with its name on the page, its origin, and the folder of its training run."""

    name: str
    path: str
    model: Model
    run: Path | None = None
    card: str = ""

    @cached_property
    def snapshots(self) -> dict[int, Model]:
        """The model by training step, for each snapshot."""
        if self.run is None:
            return {}
        return {snapshot.step: snapshot.model for snapshot in read_snapshots(self.run)}

    def at(self, step: int | None) -> Model:
        """The model at a training step; the final one for None."""
        if step is None:
            return self.model
        if not self.snapshots:
            raise InputError(
                f"{self.name!r} has no snapshots, so step {step} is not available; train with "
                "`pathsum train … --set watching.snapshots=20` to keep some"
            )
        if step not in self.snapshots:
            nearest = min(self.snapshots, key=lambda each: abs(each - step))
            raise InputError(
                f"{self.name!r} has no snapshot at step {step}; the nearest is {nearest}"
            )
        return self.snapshots[step]


def open_model(model: str | Path | Model) -> OpenModel:
    """Open a model by name, folder or hub id, or one that is already loaded."""
    if isinstance(model, Model):
        return OpenModel(model.name, model.name, model)
    folder = BUNDLED / str(model) if str(model) in bundled_names() else user_path(model)
    card = folder / "card.md"
    text = read_text(card) if exists(card) else ""
    if text and not card.resolve().is_relative_to(folder.resolve()):
        raise FileError(
            f"{card} is a link to a file outside its folder, whose text a report would contain; "
            "replace it by a copy"
        )
    run = folder if snapshot_files(folder) else None
    if run is None or (folder / CONFIG).exists():
        loaded = load(model)
    elif snapshots := read_snapshots(folder):
        loaded = snapshots[-1].model
    else:
        raise FileError(f"{folder} contains neither a model nor snapshots")
    # The name that the user gave, not the name in the file.
    return OpenModel(shown_name(folder.name), shown_name(str(model)), loaded, run, text)


def open_models(models: Sequence[str | Path | Model]) -> tuple[OpenModel, ...]:
    """Open several models, each under a unique name."""
    if not models:
        raise InputError("no model is given; give at least one")
    entries: dict[str, OpenModel] = {}
    for model in models:
        entry = open_model(model)
        numbered = (f"{entry.name} ({number})" for number in count(2))
        name = next(name for name in chain((entry.name,), numbered) if name not in entries)
        entries[name] = replace(entry, name=name)
    return tuple(entries.values())


def snapshot_files(folder: Path) -> list[Path]:
    """The snapshots in the folder of a run."""
    return sorted((folder / "snapshots").glob("step-*")) if exists(folder) else []


@dataclass(frozen=True, eq=False)
class Run:
    """The trace of a text, and its number of tokens before truncation."""

    trace: Trace
    n_tokens: int

    @property
    def ids(self) -> tuple[int, ...]:
        """The ids of the tokens, after truncation."""
        return tuple(self.trace.tokens[0].tolist())


class Session:
    """The open models, and all cached results about them.

    `progress` is the callback of the current question; `reporting` replaces it.

    Args:
        bundled: Names of bundled models that the page offers in addition; each is loaded on first
            use.
        texts: Texts, or lists of token ids, that replace the first model's example texts on the
            page. Losses are measured on the built-in examples regardless.
    """

    progress: Progress = staticmethod(silent)

    def __init__(
        self,
        models: Sequence[OpenModel],
        bundled: Sequence[str] = (),
        texts: Sequence[str | Sequence[int]] = (),
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        for each in models:
            require_causal(each.model, "the explorer")
        self.models = tuple(models)
        self.bundled = tuple(bundled)
        self.texts = tuple(texts)
        self.cache = Cache(cache_bytes)
        # Computed once, because it reads the disk.
        self._not_open = frozenset(known_names()) - {each.name for each in models}

    def reporting(self, progress: Progress) -> "Session":
        """The same session with another progress callback."""
        session = copy.copy(self)
        session.progress = progress
        return session

    def open_model(self, params: ModelParams) -> OpenModel:
        """The model of a question: an open, bundled or hand-built one.

        Bundled and hand-built models are always available, because the gallery shows them and the
        paper's claims about zero and one layer are measured on bundled models.
        """
        name, entries = params.model, {each.name: each for each in self.models}
        if name is None:
            return self.models[0]
        if name in self._not_open:
            return self.cached(
                ("open", name),
                lambda _: open_model(name),
                lambda each: 4 * each.model.weights.n_parameters,
            )
        if name not in entries:
            raise InputError(
                f"no model {name[:60]!r} is open here{near_misses(name, entries)}; open models: "
                f"{', '.join(map(repr, entries))}"
            )
        return entries[name]

    @property
    def model_names(self) -> tuple[str, ...]:
        """The models that the page offers: open models first, then bundled models."""
        return tuple(dict.fromkeys((*(each.name for each in self.models), *self.bundled)))

    def model(self, params: ModelParams) -> Model:
        """The model of a question, at its training step."""
        return self.open_model(params).at(params.step)

    def examples(self, params: ModelParams) -> tuple[Example, ...]:
        """The example texts of a model, the same at every training step."""
        entry = self.open_model(params)
        if not self.texts or entry.name != self.models[0].name:
            return self.built_in_examples(params)
        longest = min(entry.model.config.n_ctx, MAX_TOKENS)
        return self.cached(
            ("texts", entry.name),
            lambda _: user_examples(entry.model, entry.name, self.texts, longest),
        )

    def built_in_examples(self, params: ModelParams) -> tuple[Example, ...]:
        """The example texts that come with pathsum and fit a model."""
        entry = self.open_model(params)
        return self.cached(("examples", entry.name), lambda _: examples(entry.model))

    def sequences(self, params: ModelParams) -> tuple[Sequences, ...]:
        """The sequences on which the costs of interventions are measured."""
        examples = self.built_in_examples(params)
        return self.result(
            params, "sequences", lambda model, _: intervention_sequences(model, examples)
        )

    def sequence_run(self, params: ModelParams, on: Sequences) -> Trace:
        """The unedited run of some sequences."""
        return self.result(
            params, f"run of {on.name}", lambda model, _: model.trace(on.tokens), trace_bytes
        )

    def text_pieces(self, params: ModelParams) -> Sequences:
        """The text on which losses are measured: held-out text, or pieces of the example texts."""
        return text_pieces(self.model(params), self.built_in_examples(params))

    def result(
        self,
        params: ModelParams,
        what: Hashable,
        compute: Callable[[Model, Progress], Result],
        size: int | Callable[[Result], int] = RESULT_BYTES,
    ) -> Result:
        """A result about the model of a question, cached by training step."""
        entry, model = self.open_model(params), self.model(params)
        return self.cached(
            (what, entry.name, params.step), lambda report: compute(model, report), size
        )

    def cached(
        self,
        key: Hashable,
        compute: Callable[[Progress], Result],
        size: int | Callable[[Result], int] = RESULT_BYTES,
    ) -> Result:
        """A result by key; `size` estimates its bytes."""
        return self.cache.get(key, compute, size=size, progress=self.progress)

    def run(self, params: TextParams) -> Run:
        """The run of the text of a question."""
        ids = self.ids(params)
        tokens = ids[: min(self.model(params).config.n_ctx, MAX_TOKENS)]

        def trace(model: Model, _: Progress) -> Trace:
            """A run without logits, which answers compute at the positions they need."""
            rows, lengths = padded(model, tokens)
            return trace_run(model, rows, lengths=lengths, keep=RESIDUAL)

        return Run(self.result(params, ("run", *tokens), trace, trace_bytes), len(ids))

    def ids(self, params: TextParams) -> list[int]:
        """The tokens of the text of a question, before truncation."""
        inputs = [name for name in ("text", "ids", "example") if getattr(params, name) is not None]
        if len(inputs) != 1:
            raise InputError(
                "give the text in exactly one way, as text, ids or example; "
                f"this question has {len(inputs)} of them"
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
        examples = self.examples(params)
        assert params.example is not None
        if not 0 <= params.example < len(examples):
            raise InputError(
                f"there is no example {params.example}: this model has examples 0 to "
                f"{len(examples) - 1}"
            )
        return examples[params.example]


def _parse_ids(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    for part in parts:
        if not is_number(part):
            raise InputError(
                f"{part[:60]!r} is not a token id; write ids with commas between, as in 1,5,7"
            )
    return [int(part) for part in parts]


def trace_bytes(trace: Trace) -> int:
    """An estimate of the memory of a run, including values that are computed on demand."""
    config, (rows, tokens) = trace.model.config, trace.tokens.shape
    logits = 0 if trace.recorded_logits is None else config.d_vocab_out
    per_layer = config.n_heads * tokens + 2 * config.d_model + config.n_heads * config.d_head
    return 4 * rows * tokens * (config.n_layers * per_layer + logits + config.d_model)
