"""Explorer: asked a question, gives an answer. The server, reports and notebooks all ask it."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from pathsum.explorer.answer_key import key
from pathsum.explorer.in_flight import InFlight
from pathsum.explorer.memo import Memo
from pathsum.explorer.open_models import serve_all
from pathsum.explorer.parameters import parse, said
from pathsum.explorer.questions import find_question
from pathsum.explorer.wire import encode
from pathsum.explorer.workbench import Workbench
from pathsum.model import Model
from pathsum.result import Record
from pathsum.sources.named import bundled_names

# Answers kept as bytes, so that going back costs nothing.
ANSWER_BYTES = 256 * 2**20


class Explorer:
    """Answers questions about one or several models.

    >>> explorer = Explorer(["hand-built-induction"])
    >>> run = explorer.answer("run", {"text": "a b c a"})
    >>> run.pieces
    ('<s>', 'a', 'b', 'c', 'a')

    Questions are pure functions of the models and their parameters; what is kept between them is
    kept for speed only. Safe to use from many threads. `beside` names bundled models that pages
    offer beside the open ones; all of them, if it is left out.
    """

    def __init__(
        self, models: Sequence[str | Path | Model], *, beside: Sequence[str] | None = None
    ) -> None:
        # The deepest first: there is most to see in them.
        names = tuple(reversed(bundled_names())) if beside is None else beside
        self.workbench = Workbench(serve_all(models), beside=names)
        self._answers = Memo[str, bytes](ANSWER_BYTES, len)
        self._under_way = InFlight()

    @property
    def name(self) -> str:
        """The name of the model that the pages open with."""
        return self.workbench.served[0].name

    @property
    def busy(self) -> bool:
        """Whether an answer is being computed just now."""
        return self._under_way.busy

    def stop(self, seconds: float) -> bool:
        """Give up what is being computed; whether that was done in time."""
        return self._under_way.stop(seconds)

    @torch.no_grad()
    def answer(self, name: str, parameters: Mapping[str, object] | None = None) -> Record:
        """The answer as a record."""
        question = find_question(name)
        return question.compute(self.workbench, parse(question.asked, parameters or {}))

    def ask(self, name: str, parameters: Mapping[str, object] | None = None) -> bytes:
        """The answer as it travels, kept for the next time."""
        question = find_question(name)
        asked = parse(question.asked, parameters or {})

        @torch.no_grad()
        def compute() -> bytes:
            with self._under_way.answering():
                return encode(question.compute(self.workbench, asked))

        return self._answers.get(key(name, said(asked)), compute)
