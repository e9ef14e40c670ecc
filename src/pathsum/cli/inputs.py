"""Inputs of commands: models, texts and token ids, and the option groups that describe them."""

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pathsum.base import is_number
from pathsum.base.errors import InputError
from pathsum.cli.options import OptionGroup
from pathsum.cli.view import progress, show

if TYPE_CHECKING:
    from rich.console import RenderableType
    from torch import Tensor

    from pathsum.base import Progress, Record
    from pathsum.model import Model

# Models below this many parameters run on one thread.
SMALL_MODEL = 20_000_000


@dataclass(frozen=True)
class CommandSession(OptionGroup):
    """The context of every analysis command: model, device, dtype and output format.

    Options:
        --revision: For a hub id, the branch, tag or commit to load.
        --device: Compute on this device: cpu, cuda, cuda:1 or mps.
        --dtype: Compute in this precision; default: the file's, at least float32.
    """

    model: str
    _: KW_ONLY
    revision: str | None = None
    device: str | None = None
    dtype: Literal["float32", "float64"] | None = None
    json: bool = False

    def open(self) -> "Model":
        """The model, loaded."""
        return load_model(self.model, self.device, self.dtype, self.json, self.revision)

    def progress(self) -> "AbstractContextManager[Progress]":
        """The progress bar of a computation; only the first of several processes shows it."""
        return progress(self.json or not is_first())

    def compute(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call a function with a progress bar, shared with the other processes of torchrun."""
        from pathsum.model.processes import join_world

        with join_world(), self.progress() as advance:
            return function(*arguments, **options, progress=advance)

    def show(self, record: "Record", printed: "RenderableType | None" = None) -> None:
        """Print a result, or `printed`, in the first process."""
        if is_first():
            show(record, self.json, printed)


@dataclass(frozen=True, kw_only=True)
class FigureSession(CommandSession):
    """The context of an analysis command whose result has a figure."""

    figure: Path | None = None

    def show(
        self,
        record: "Record",
        printed: "RenderableType | None" = None,
        drawn: "Record | None" = None,
    ) -> None:
        """Print a result, or `printed`, and draw it, or `drawn`, in the first process."""
        super().show(record, printed)
        if is_first():
            write_figure(record if drawn is None else drawn, self.figure)


def write_figure(record: "Record", file: Path | None) -> None:
    """Draw a result to the file of --figure."""
    if file is not None:
        record.figure().save(file)


def is_first() -> bool:
    """Whether this is the first of torchrun's processes, or the only one."""
    return os.environ.get("RANK", "0") == "0"


@dataclass(frozen=True)
class TextArgument(OptionGroup):
    """The text that a command analyzes, or its token ids."""

    text: str | None = None
    _: KW_ONLY
    tokens: list[str] | None = None

    exclusive = ("text tokens",)

    def read(self) -> "str | list[int]":
        """The text, or the ids of --tokens."""
        if self.text is not None:
            return self.text
        if not self.tokens:
            raise InputError("there is no input; give a text, or token ids as in --tokens 3,5,7")
        rows = parse_ids(self.tokens)
        if len(rows) != 1:
            raise InputError(
                f"{len(rows)} sequences of --tokens were given; this command takes one"
            )
        return rows[0]


@dataclass(frozen=True, kw_only=True)
class Prediction(OptionGroup):
    """The prediction to explain.

    Options:
        --versus: Baseline of the logit: 'mean' (of the vocabulary), 'none', or the text of another
            token.
    """

    position: int = -1
    token: str | None = None
    versus: str = "mean"

    def options(self) -> dict[str, Any]:
        """The keyword arguments of the library's functions."""
        versus = None if self.versus == "none" else self.versus
        return {"position": self.position, "token": self.token, "versus": versus}


@dataclass(frozen=True, kw_only=True)
class SampleOptions(OptionGroup):
    """The sequences that a command measures on."""

    text: Path | None = None
    tokens: list[str] | None = None

    exclusive = ("text tokens",)

    def read(self, model: "Model", count: int | None = None) -> "Tensor | list[list[int]] | None":
        """The ids of --tokens, or the first windows of --text; None if neither is given."""
        if self.tokens:
            return parse_ids(self.tokens)
        return None if self.text is None else text_sequences(model, self.text, count)


@dataclass(frozen=True, kw_only=True)
class PredictionSample(SampleOptions):
    """The sequences whose predictions a command scores.

    Options:
        --targets IDS: Correct output at each position of --tokens (-1: none), for example -1,-1,4;
            default: the next token.
        --metric: Score predictions by loss in nats, or by error rate.
        --length: Random tokens per copy (default 25).
        --repeats: Copies of the random tokens per sequence.
    """

    targets: list[str] | None = None
    metric: Literal["loss", "error"] = "loss"
    sequences: int = 10
    length: int | None = None
    repeats: int = 4
    seed: int = 0

    needs = {"targets": "tokens"}  # noqa: RUF012 (the type of the base class)

    def read_targets(self) -> "Tensor | None":
        """The target of each position of --tokens, −1 for none."""
        import torch

        if not self.targets or not self.tokens:
            return None
        targets = parse_ids(self.targets, "--targets", -1)
        entries, lengths = (list(map(len, rows)) for rows in (targets, parse_ids(self.tokens)))
        if entries != lengths:
            raise InputError(
                f"--targets have {str(entries)[1:-1]} entries and --tokens {str(lengths)[1:-1]}; "
                "give one target per token, -1 where a position need not predict anything"
            )
        if len(set(lengths)) > 1:
            raise InputError(
                f"the sequences of --tokens have {str(lengths)[1:-1]} tokens; with --targets, give "
                "sequences of one length"
            )
        return torch.tensor(targets)

    def repeated(self, model: "Model") -> "Tensor":
        """Repeated random tokens."""
        return repeated_sequences(model, self.length, self.repeats, self.sequences, self.seed)


def parse_ids(texts: list[str], option: str = "--tokens", least: int = 0) -> list[list[int]]:
    """Sequences of ids from `3,5,7`, one per use of the option."""
    rows: list[list[int]] = []
    for text in texts:
        parts = text.replace(",", " ").split()
        digits = [part.removeprefix("-") for part in parts]
        if not parts or not all(map(is_number, digits)) or min(map(int, parts)) < least:
            example = "3,5,7" if least == 0 else f"{least},{least},7"
            raise InputError(f"{option} {text!r} is not a list of token ids; write {example}")
        rows.append([int(part) for part in parts])
    return rows


def text_sequences(model: "Model", file: Path, count: int | None = None) -> "Tensor":
    """The first windows of a text file, or all."""
    from pathsum.base.files import read_text
    from pathsum.model.sequences import text_windows

    return text_windows(model, read_text(file))[:count]


def repeated_sequences(
    model: "Model", length: int | None, repeats: int, count: int, seed: int
) -> "Tensor":
    """Blocks of random tokens that are frequent in training, repeated after the start token."""
    from pathsum.heads.probe import LENGTH
    from pathsum.text.token_pool import random_repeats

    config, ids = model.config, model.token_pool().ids()
    room = config.n_ctx - (config.start_token is not None)
    length = max(1, min(LENGTH, room // repeats, len(ids))) if length is None else length
    return random_repeats(ids, length, repeats, count, seed, config.start_token).tokens


def load_model(
    name: str,
    device: str | None,
    dtype: str | None,
    as_json: bool,
    revision: str | None = None,
) -> "Model":
    """The model of a command line, on its device; progress is shown while it is downloaded.

    Under torchrun, `cuda` is the GPU of this process.
    """
    import torch

    from pathsum.model.processes import local_device
    from pathsum.sources import load

    with progress(as_json, at_once=False) as advance:
        model = load(name, revision=revision, progress=advance)
    if device is None and dtype is None:
        return model
    return model.to(
        None if dtype is None else getattr(torch, dtype),
        None if device is None else local_device(device),
    )


def fetch_models(names: Sequence[str], as_json: bool = False) -> None:
    """Download those of these models that are downloaded on first use, with progress."""
    from pathsum.sources.named import FETCHED, fetch_model

    for name in names:
        if name in FETCHED:
            with progress(as_json) as advance:
                fetch_model(FETCHED[name], advance)


def use_one_thread_if_small(model: "Model") -> None:
    """Run torch on one thread for a small model.

    Questions about a small model are thousands of tiny products. Threads that synchronize at each
    of them make a page several times slower on a busy machine.
    """
    import torch

    if model.weights.n_parameters < SMALL_MODEL:
        torch.set_num_threads(1)
