"""Sequences for commands that measure a loss: a text in windows, or random tokens repeated."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

if TYPE_CHECKING:
    from torch import Tensor

    from pathsum.model import Model

TextFile: TypeAlias = Annotated[
    Path | None,
    typer.Option("--text", help="Measure on this text file; otherwise on random tokens, repeated."),
]
Draws: TypeAlias = Annotated[
    int, typer.Option(help="How many sequences: of random tokens, or at most of the text.")
]
Block: TypeAlias = Annotated[
    int | None, typer.Option(help="How many random tokens before they repeat (default 25).")
]
Copies: TypeAlias = Annotated[int, typer.Option(help="How often random tokens stand there.")]
Seed: TypeAlias = Annotated[int, typer.Option(help="Which random draw.")]


def sequences(
    model: "Model", text: Path | None, block: int | None, copies: int, draws: int, seed: int
) -> "Tensor":
    """What was asked for: windows of a text, or random tokens repeated."""
    if text is not None:
        return text_sequences(model, text, draws)
    return repeated_sequences(model, block, copies, draws, seed)


def text_sequences(model: "Model", file: Path, count: int) -> "Tensor":
    """A text cut into windows of the model's context, the start token before each."""
    import torch

    from pathsum.errors import FileError, TokenError

    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise FileError(f"there is no file {file}; name a text file that exists") from None
    except UnicodeDecodeError:
        raise FileError(f"{file} is not UTF-8 text") from None
    if model.tokenizer is None:
        raise TokenError(
            f"the model {model.name!r} has no tokenizer, so it cannot read {file}; "
            "leave --text out to measure on random tokens"
        )
    start = [] if model.config.start_token is None else [model.config.start_token]
    ids = model.tokenizer.encode(text)
    width = min(model.config.n_ctx - len(start), len(ids))
    rows = [start + ids[at : at + width] for at in range(0, len(ids) - width + 1, max(width, 1))]
    return torch.tensor(rows[:count], dtype=torch.long)


def repeated_sequences(
    model: "Model", block: int | None, copies: int, draws: int, seed: int
) -> "Tensor":
    """Random tokens that training saw often, repeated after the start token."""
    from pathsum.text.probes import random_repeats

    config, ids = model.config, model.token_pool().ids()
    room = config.n_ctx - (config.start_token is not None)
    length = block if block is not None else max(1, min(25, room // max(copies, 1), len(ids)))
    return random_repeats(ids, length, copies, draws, seed, config.start_token).tokens
