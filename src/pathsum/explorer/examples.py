"""Texts to look at: prose and code that small models can read, and probes with known answers."""

from dataclasses import dataclass
from typing import Literal

from pathsum.errors import InputError, TokenError
from pathsum.model import Model
from pathsum.text.probes import random_repeats


@dataclass(frozen=True)
class Example:
    """A text that can be picked: `text` is None where it is ids only, such as a random probe."""

    title: str
    text: str | None
    ids: tuple[int, ...]
    about: str
    kind: Literal["text", "repeat", "probe"]


PROSE = """\
The harbour master kept two notebooks. In the first notebook he wrote down every ship that came \
into the harbour, and in the second notebook he wrote down every ship that left. When the two \
notebooks did not agree, the harbour master went down to the water and counted the ships."""

CODE = '''\
class Counter:
    """Count how often each word occurs."""

    def __init__(self, words):
        self.words = {}
        for word in words:
            self.add(word)

    def add(self, word):
        if word not in self.words:
            self.words[word] = 0
        self.words[word] += 1
'''

NAMES = """\
Margaret Holloway met Tobias Lindqvist on the ferry. Tobias Lindqvist carried a violin, and \
Margaret Holloway carried a map. "Is that your map?" asked Tobias Lindqvist. "It is," said \
Margaret Holloway."""

LINE = "def read_lines(path, encoding):\n    with open(path, encoding=encoding) as lines:\n"

# The random probe: tokens in a block, as many as fit twice, at most.
BLOCK = 25


def examples(model: Model) -> tuple[Example, ...]:
    """What this model can be shown: texts its tokenizer can read, and random tokens twice."""
    found = [*_texts(model), *_probes(model)]
    return tuple(found) or (_anything(model),)


def _texts(model: Model) -> list[Example]:
    written: tuple[tuple[str, str, str, Literal["text", "repeat"]], ...] = (
        ("Code: a class", CODE, "Names that come back: self, words, word.", "text"),
        ("Prose: two notebooks", PROSE, "Phrases that come back with small changes.", "text"),
        ("Names that return", NAMES, "Names in several tokens, said again.", "text"),
        (
            "A text shown twice",
            LINE * 2,
            "The second time everything could be copied from the first.",
            "repeat",
        ),
    )
    found: list[Example] = []
    for title, text, about, kind in written:
        try:
            ids = model.encode(text)
        except TokenError:
            continue  # a tokenizer of few words, or none at all
        found.append(Example(title, text, tuple(ids[: model.config.n_ctx]), about, kind))
    return found


def _probes(model: Model) -> list[Example]:
    """Random tokens twice, from two seeds: the experiment that shows induction."""
    start = model.config.start_token
    room = model.config.n_ctx - (start is not None)
    ids = model.token_pool().ids()
    length = min(BLOCK, room // 2, len(ids))
    if length < 2:
        return []
    about = (
        f"{length} random tokens, then the same again. Nothing learned about words helps; only "
        "what was seen before does."
    )
    found: list[Example] = []
    for seed in (0, 1):
        drawn = random_repeats(ids, length, 2, 1, seed, start)
        title = f"Random tokens twice ({'first' if seed == 0 else 'second'} draw)"
        found.append(Example(title, None, tuple(drawn.tokens[0].tolist()), about, "probe"))
    return found


def _anything(model: Model) -> Example:
    """A model too small for any of these still has a first token."""
    if model.config.d_vocab < 1:
        raise InputError("the model has no tokens, so there is nothing to show it")
    return Example("One token", None, (0,), "The only thing that fits.", "text")
