"""Explorer: asked a question, gives an answer. The server, reports and notebooks all ask it."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from pathsum.model import Model
from pathsum.pages.asking import parse, said
from pathsum.pages.keys import key
from pathsum.pages.memo import Memo
from pathsum.pages.questions import find_question
from pathsum.pages.served import serve_all
from pathsum.pages.wire import encode
from pathsum.pages.workbench import Workbench
from pathsum.result import Record

# Answers kept as bytes, so that going back costs nothing.
ANSWER_BYTES = 256 * 2**20


class Explorer:
    """Answers questions about one or several models.

    >>> explorer = Explorer(["hand-built-induction"])
    >>> run = explorer.answer("run", {"text": "a b c a"})
    >>> run.pieces
    ('<s>', 'a', 'b', 'c', 'a')

    Questions are pure functions of the models and their parameters; what is kept between them is
    kept for speed only. Safe to use from many threads.
    """

    def __init__(self, models: Sequence[str | Path | Model]) -> None:
        self.workbench = Workbench(serve_all(models))
        self._answers = Memo[str, bytes](ANSWER_BYTES, len)

    @property
    def name(self) -> str:
        """The name of the model that the pages open with."""
        return self.workbench.served[0].name

    @property
    def busy(self) -> bool:
        """Whether an answer is being computed just now."""
        return self._answers.computing > 0

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
            return encode(question.compute(self.workbench, asked))

        return self._answers.get(key(name, said(asked)), compute)
