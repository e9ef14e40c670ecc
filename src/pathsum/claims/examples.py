"""Example texts of a model, and the sequences that answers are measured on.

Examples are prose and code that small models can read, and random tokens repeated. Losses are
measured on the held-out text that a model comes with, or on pieces of the example texts if it comes
with none; costs of interventions also on the second copy of repeated random tokens.
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
    """A text to choose from; `text` is None where it has token ids only, as random tokens do."""

    title: str
    text: str | None
    ids: tuple[int, ...]
    about: str
    kind: Literal["text", "repeat", "probe"]


@dataclass(frozen=True, eq=False)
class Sequences:
    """Sequences under a name; predictions count from position `first` on."""

    name: str
    tokens: Tokens
    first: int


# Tokens per copy in the random examples, at most.
COPY_LENGTH = 25
# Tokens per piece of an example text: short, so that there are enough pieces for an interval.
PIECE_LENGTH = 32
RANDOM_SEQUENCES = 8
# Sequences of held-out text that are measured on, and how much of each for interventions, of which
# a page has a dozen.
TEXT_SEQUENCES, INTERVENTION_LENGTH = 16, 64
# What a tokenizer of whole words reads as one token.
WORD = re.compile(r"\w+|[^\w\s]")
# Characters of a given text that are its title.
TITLE_LENGTH = 32


def examples(model: Model) -> tuple[Example, ...]:
    """The examples that fit a model: texts that its tokenizer can encode, and random repeats."""
    if model.config.d_vocab < 1:
        raise InputError("the vocabulary is empty, so there is nothing to run")
    only = Example("One token", None, (0,), "The only text that fits.", "text")
    return (*_texts(model), *_random_repeats(model)) or (only,)


def given_examples(
    model: Model, name: str, texts: Sequence[str | Sequence[int]], longest: int
) -> tuple[Example, ...]:
    """Texts, or token ids, that a user chose for a model, as examples."""
    found: list[Example] = []
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
        shown = text if is_text else None
        found.append(Example(_title(number, shown), shown, tuple(ids), about, "text"))
    return tuple(found)


def _title(number: int, text: str | None) -> str:
    """The first words of a text; for token ids their number in the list."""
    words = " ".join((text or "").split())
    if not words:
        return f"Tokens {number}"
    return words if len(words) <= TITLE_LENGTH else f"{words[: TITLE_LENGTH - 1]}…"


def intervention_sequences(model: Model, known: tuple[Example, ...]) -> tuple[Sequences, ...]:
    """The second copy of repeated random tokens, if repeats fit the model; and text."""
    pieces = text_pieces(model, known, INTERVENTION_LENGTH)
    try:
        probe = repeats_probe(model)
    except InputError:
        return (pieces,)
    name = "random tokens, second copy"
    return Sequences(name, two_copies(probe), second_copy(probe)), pieces


def text_pieces(model: Model, known: tuple[Example, ...], longest: int | None = None) -> Sequences:
    """Held-out text of the model, or pieces of the example texts if it comes with none."""
    if model.held_out is None or not model.config.predicts_tokens:
        return _example_pieces(model, known)
    tokens = model.held_out[spaced(len(model.held_out), TEXT_SEQUENCES)][:, :longest]
    first = "the first " if tokens.shape[1] < model.held_out.shape[1] else ""
    name = f"held-out text ({len(tokens)} sequences, {first}{tokens.shape[1]} tokens)"
    return Sequences(name, tokens, 0)


def _example_pieces(model: Model, known: tuple[Example, ...]) -> Sequences:
    """Pieces of the example texts; random tokens for a model that cannot read them."""
    config = model.config
    start = [] if config.start_token is None else [config.start_token]
    room = min(PIECE_LENGTH, config.n_ctx) - len(start)
    rows: list[list[int]] = []
    for example in known:
        if example.kind != "text" or example.text is None:
            continue
        ids = list(example.ids[len(start) :])
        rows += [start + ids[at : at + room] for at in range(0, len(ids) - room + 1, room)]
    if room >= 2 and rows:
        return Sequences("example texts", torch.tensor(rows), 0)
    length, generator = max(room, 2 - len(start)), torch.Generator().manual_seed(0)
    drawn = model.token_pool().draw(RANDOM_SEQUENCES, length, generator)
    return Sequences("random tokens", prepend_start(drawn, config.start_token), 0)


def _texts(model: Model) -> list[Example]:
    listed = (Path(__file__).parent / "examples.toml").read_text(encoding="utf-8")
    found: list[Example] = []
    for fields in tomllib.loads(listed)["texts"]:
        whole_words = fields.pop("whole_words", False)
        try:
            ids = model.encode(fields["text"])
        except TokenError:
            continue  # a word tokenizer that lacks some of these words, or no tokenizer
        if whole_words and len(ids) > 1 + len(WORD.findall(fields["text"])):
            continue
        found.append(Example(ids=tuple(ids[: model.config.n_ctx]), **fields))
    return found


def _random_repeats(model: Model) -> list[Example]:
    """Random tokens twice, from two seeds: the experiment that shows induction."""
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
    found: list[Example] = []
    for seed, draw in enumerate(("first", "second")):
        drawn = tuple(random_repeats(ids, length, 2, 1, seed, start).tokens[0].tolist())
        found.append(Example(f"Random tokens twice ({draw} draw)", None, drawn, about, "probe"))
    return found
