"""What answers are made with: the models, their recent runs, and results worth keeping."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from pathsum.errors import InputError, TokenError
from pathsum.explorer.examples import Example, examples
from pathsum.explorer.memo import Memo
from pathsum.explorer.open_models import OpenModel, find_served, serve
from pathsum.explorer.parameters import AboutModel, AboutText
from pathsum.model import Model, Trace
from pathsum.sources.named import bundled_names

# Runs kept at a time, in bytes; the last one is kept however large it is.
RUN_BYTES = 512 * 2**20
# Results that other answers are made of (atlas, composition): small, a few for each model and step.
RESULTS = 512
# A run's patterns take heads × tokens² numbers; a context may be larger than anyone can look at.
MOST_TOKENS = 2048

Result = TypeVar("Result")


@dataclass(frozen=True, eq=False)
class Run:
    """A run of a text: its trace, and how many tokens were given before any were cut."""

    trace: Trace
    given: int

    @property
    def ids(self) -> tuple[int, ...]:
        """The tokens that were run."""
        return tuple(self.trace.tokens[0].tolist())

    @property
    def truncated(self) -> bool:
        """Whether the text was longer than what was run."""
        return self.given > self.trace.tokens.shape[1]


class Workbench:
    """The models that are looked at, and what has been computed of them.

    `beside` names bundled models that pages offer without having been opened with them; each is
    loaded when it is first asked about.

    Safe to use from many threads: what two of them need at once is computed once.
    """

    def __init__(
        self, served: Sequence[OpenModel], beside: Sequence[str] = (), run_bytes: int = RUN_BYTES
    ) -> None:
        if not served:
            raise InputError("no model is open; open at least one")
        self.served = tuple(served)
        self.beside = tuple(beside)
        self._runs = Memo[tuple[str, int | None, tuple[int, ...]], Run](run_bytes, _run_bytes)
        self._results = Memo[tuple[Any, ...], Any](RESULTS, lambda _: 1)

    def one(self, asked: AboutModel) -> OpenModel:
        """Which of the models a question is about: one that is open, or one of the bundled ones.

        Claims about models of zero and one layer are shown on those that come with pathsum.
        """
        name = asked.model
        if name in bundled_names() and name not in {one.name for one in self.served}:
            return self.kept(("served", name), lambda: serve(str(name)))
        return find_served(self.served, name)

    @property
    def names(self) -> tuple[str, ...]:
        """The models to choose from: those that are open, and those that stand beside them."""
        return tuple(dict.fromkeys((*(one.name for one in self.served), *self.beside)))

    def model(self, asked: AboutModel) -> Model:
        """The model that a question is about, at its step."""
        return self.one(asked).at(asked.step)

    def examples(self, asked: AboutModel) -> tuple[Example, ...]:
        """The example texts of a model; the same at every step of it."""
        one = self.one(asked)
        return self.kept(("examples", one.name), lambda: examples(one.model))

    def result(self, asked: AboutModel, what: str, compute: Callable[[Model], Result]) -> Result:
        """Something computed of the model that a question is about, once for each step."""
        one, model = self.one(asked), self.model(asked)
        return self.kept((what, one.name, asked.step), lambda: compute(model))

    def kept(self, key: tuple[Any, ...], compute: Callable[[], Result]) -> Result:
        """Something computed once, by a key of its own."""
        return self._results.get(key, compute)

    def run(self, asked: AboutText) -> Run:
        """The run of the text that a question is about."""
        ids = self.ids(asked)
        model = self.model(asked)
        most = min(model.config.n_ctx, MOST_TOKENS)
        cut = tuple(ids[:most])
        key = (self.one(asked).name, asked.step, cut)
        found = self._runs.get(key, lambda: Run(model.trace(list(cut)), len(ids)))
        return Run(found.trace, len(ids))

    def ids(self, asked: AboutText) -> list[int]:
        """The tokens of the text that a question is about, before any are cut."""
        ways = [asked.text is not None, asked.ids is not None, asked.example is not None]
        if sum(ways) != 1:
            raise InputError(
                "a question about a run says its text in exactly one way: as text, as ids, or as "
                f"the number of an example; this one says {sum(ways)}"
            )
        model = self.model(asked)
        if asked.text is not None:
            ids = model.encode(asked.text)
        elif asked.ids is not None:
            ids = [model.token_id(number) for number in _numbers(asked.ids)]
        else:
            ids = list(self._example(asked).ids)
        if not ids:
            raise TokenError(
                "the text is empty, and this model has no start token to begin with; "
                "type at least one token"
            )
        return ids

    def _example(self, asked: AboutText) -> Example:
        known = self.examples(asked)
        assert asked.example is not None
        if not 0 <= asked.example < len(known):
            raise InputError(
                f"there is no example {asked.example}: the model has {len(known)}, counted from 0"
            )
        return known[asked.example]


def _numbers(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    # Twelve digits: more than any vocabulary has, and not a number that takes time to read.
    if not all(part.isascii() and part.isdigit() and len(part) <= 12 for part in parts):
        wrong = next(p for p in parts if not (p.isascii() and p.isdigit() and len(p) <= 12))
        raise InputError(
            f"{wrong[:60]!r} is no token id; ids are numbers with commas between, as in 1,5,7"
        )
    return [int(part) for part in parts]


def _run_bytes(run: Run) -> int:
    trace = run.trace
    kept: list[torch.Tensor] = [
        trace.logits,
        *trace.patterns,
        *trace.streams,
        *trace.mlp_outputs,
    ]
    return sum(tensor.numel() * tensor.element_size() for tensor in kept)
