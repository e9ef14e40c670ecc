"""Token sequences for commands that measure a loss: windows of a text, or random repeats."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from pathsum.model import Model


def measured_sequences(
    model: "Model", text: Path | None, count: int, length: int | None, repeats: int, seed: int
) -> "Tensor":
    """Windows of the text file if one is given, else random tokens, repeated."""
    if text is not None:
        return text_sequences(model, text, count)
    return repeated_sequences(model, length, repeats, count, seed)


def text_sequences(model: "Model", file: Path, count: int) -> "Tensor":
    """The first windows of a text file."""
    from pathsum.errors import FileError
    from pathsum.model.sequences import text_windows

    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise FileError(f"no file {file}; give a text file that exists") from None
    except UnicodeDecodeError:
        raise FileError(f"{file} is not UTF-8 text") from None
    return text_windows(model, text)[:count]


def repeated_sequences(
    model: "Model", length: int | None, repeats: int, count: int, seed: int
) -> "Tensor":
    """Blocks of random tokens that are frequent in training, repeated after the start token."""
    from pathsum.heads.probe import LENGTH
    from pathsum.text.probes import random_repeats

    config, ids = model.config, model.token_pool().ids()
    room = config.n_ctx - (config.start_token is not None)
    length = max(1, min(LENGTH, room // repeats, len(ids))) if length is None else length
    return random_repeats(ids, length, repeats, count, seed, config.start_token).tokens
