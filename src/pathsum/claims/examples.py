"""Example texts of a model, and the sequences for measurements.

Examples are prose and code that small models can read, and repeated random tokens. Losses are
measured on the model's held-out text, or on pieces of the example texts if it has none; costs of
interventions also on the second copy of repeated random tokens.
"""

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from pathsum.base.errors import InputError, TokenError
from pathsum.base.shapes import Tokens
from pathsum.heads.probe import repeats_probe, second_copy, two_copies
from pathsum.model import Model
from pathsum.text.shards import spaced
from pathsum.text.token_pool import prepend_start, random_repeats


@dataclass(frozen=True)
class Example:
    """A text to choose from; `text` is None for token ids without a text, such as random tokens."""

    title: str
    text: str | None
    ids: tuple[int, ...]
    about: str
    kind: Literal["text", "repeat", "probe"]


@dataclass(frozen=True, eq=False)
class Sequences:
    """Sequences under a name; only predictions from position `first` on are measured."""

    name: str
    tokens: Tokens
    first: int


# Tokens per copy in the random examples, at most.
COPY_LENGTH = 25
# Tokens per piece of an example text: short, so that there are enough pieces for an interval.
PIECE_LENGTH = 32
RANDOM_SEQUENCES = 8
# Sequences of held-out text, and their length for interventions (a page has a dozen of these).
TEXT_SEQUENCES, INTERVENTION_LENGTH = 16, 64
# One token of a tokenizer of whole words.
WORD = re.compile(r"\w+|[^\w\s]")
# Characters of a user's text that become its title.
TITLE_LENGTH = 32


def examples(model: Model) -> tuple[Example, ...]:
    """The examples that fit a model: texts that its tokenizer can encode, and random repeats."""
    if model.config.d_vocab < 1:
        raise InputError("the vocabulary is empty, so there is nothing to run")
    only = Example("One token", None, (0,), "The only text that fits.", "text")
    return (*_texts(model), *_random_repeats(model)) or (only,)


def user_examples(
    model: Model, name: str, texts: Sequence[str | Sequence[int]], longest: int
) -> tuple[Example, ...]:
    """A user's texts or token ids for a model, as examples."""
    result: list[Example] = []
    for number, text in enumerate(texts, start=1):
        is_text = isinstance(text, str)
        try:
            ids = model.encode(text) if is_text else [model.token_id(token) for token in text]
        except TokenError as error:
            raise InputError(f"text {number} cannot be read by {name}: {error}") from error
        if not ids:
            raise InputError(f"text {number} is empty; give at least one token")
        if len(ids) > longest:
            raise InputError(
                f"text {number} has {len(ids):,} tokens, and {name} reads {longest:,}; shorten it"
            )
        about = f"Text {number} of {len(texts)} that this page was made for."
        printed = text if is_text else None
        result.append(Example(_title(number, printed), printed, tuple(ids), about, "text"))
    return tuple(result)


def _title(number: int, text: str | None) -> str:
    """The first words of a text; for token ids their number in the list."""
    words = " ".join((text or "").split())
    if not words:
        return f"Tokens {number}"
    return words if len(words) <= TITLE_LENGTH else f"{words[: TITLE_LENGTH - 1]}…"


def intervention_sequences(model: Model, texts: tuple[Example, ...]) -> tuple[Sequences, ...]:
    """The second copy of repeated random tokens, if repeats fit the model; and text."""
    pieces = text_pieces(model, texts, INTERVENTION_LENGTH)
    try:
        probe = repeats_probe(model)
    except InputError:
        return (pieces,)
    name = "random tokens, second copy"
    return Sequences(name, two_copies(probe), second_copy(probe)), pieces


def text_pieces(model: Model, texts: tuple[Example, ...], longest: int | None = None) -> Sequences:
    """Held-out text of the model, or pieces of the example texts if it has none."""
    if model.held_out is None or not model.config.predicts_tokens:
        return _example_pieces(model, texts)
    tokens = model.held_out[spaced(len(model.held_out), TEXT_SEQUENCES)][:, :longest]
    first = "the first " if tokens.shape[1] < model.held_out.shape[1] else ""
    name = f"held-out text ({len(tokens)} sequences, {first}{tokens.shape[1]} tokens)"
    return Sequences(name, tokens, 0)


def _example_pieces(model: Model, texts: tuple[Example, ...]) -> Sequences:
    """Pieces of the example texts; random tokens for a model that cannot read them."""
    config = model.config
    start = [] if config.start_token is None else [config.start_token]
    n = min(PIECE_LENGTH, config.n_ctx) - len(start)
    rows: list[list[int]] = []
    for example in texts:
        if example.kind != "text" or example.text is None:
            continue
        ids = list(example.ids[len(start) :])
        rows += [start + ids[at : at + n] for at in range(0, len(ids) - n + 1, n)]
    if n >= 2 and rows:
        return Sequences("example texts", torch.tensor(rows), 0)
    length, generator = max(n, 2 - len(start)), torch.Generator().manual_seed(0)
    tokens = model.token_pool().draw(RANDOM_SEQUENCES, length, generator)
    return Sequences("random tokens", prepend_start(tokens, config.start_token), 0)


def _texts(model: Model) -> list[Example]:
    file = (Path(__file__).parent / "examples.toml").read_text(encoding="utf-8")
    texts: list[Example] = []
    for fields in tomllib.loads(file)["texts"]:
        whole_words = fields.pop("whole_words", False)
        try:
            ids = model.encode(fields["text"])
        except TokenError:
            continue  # a word tokenizer that lacks some of these words, or no tokenizer
        if whole_words and len(ids) > 1 + len(WORD.findall(fields["text"])):
            continue
        texts.append(Example(ids=tuple(ids[: model.config.n_ctx]), **fields))
    return texts


def _random_repeats(model: Model) -> list[Example]:
    """Random tokens twice, from two seeds: the test for induction."""
    start = model.config.start_token
    room = model.config.n_ctx - (start is not None)
    ids = model.token_pool().ids()
    length = min(COPY_LENGTH, room // 2, len(ids))
    if length < 2:
        return []
    about = (
        f"{length} random tokens, then the same again. Word statistics do not help here; only "
        "copying from the first half does."
    )
    probes: list[Example] = []
    for seed, draw in enumerate(("first", "second")):
        tokens = tuple(random_repeats(ids, length, 2, 1, seed, start).tokens[0].tolist())
        probes.append(Example(f"Random tokens twice ({draw} draw)", None, tokens, about, "probe"))
    return probes
