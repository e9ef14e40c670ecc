"""Arguments and options that several commands share: one name and one meaning for each.

Imports nothing heavy, because `--help` must be fast.
"""

import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from pathsum.cli.view import progress, show

if TYPE_CHECKING:
    from pathsum.base import Progress, Record
    from pathsum.model import Model

# The largest number that torch reads.
LARGEST = 2**63 - 1
# Far more than any estimate needs; with more, a command would not finish.
MOST_SEQUENCES, MOST_DRAWS = 1_000_000, 100_000

ModelName: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A name from `pathsum models`, a model's folder or file, or a hub id.",
    ),
]
OtherModels: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(metavar="OTHER", help="More models to compare with.", show_default=False),
]
InputText: TypeAlias = Annotated[
    str | None,
    typer.Argument(metavar="TEXT", help="The text that the model reads.", show_default=False),
]
TokenIds: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--tokens",
        metavar="IDS",
        help="Token ids instead of a text, for example 3,5,7; repeat for several sequences.",
    ),
]
Targets: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--targets",
        metavar="IDS",
        help="What each position of --tokens should predict (-1: nothing), for example -1,-1,4; "
        "default: the next token.",
    ),
]

MetricOption: TypeAlias = Annotated[
    Literal["loss", "error"],
    typer.Option("--metric", help="Score predictions by loss in nats, or by error rate."),
]
AsJson: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print JSON instead of tables, with every number in full.")
]

# Which number is explained.
Position: TypeAlias = Annotated[
    int,
    typer.Option(
        "--position",
        min=-LARGEST,
        max=LARGEST,
        help="Position of the prediction; negative from the end.",
    ),
]
TargetToken: TypeAlias = Annotated[
    str | None,
    typer.Option("--token", help="The predicted token, as text; default: the model's prediction."),
]
Versus: TypeAlias = Annotated[
    str,
    typer.Option(
        "--versus",
        help="What the logit is compared with: 'mean' (of the vocabulary), 'none', or the text of "
        "another token.",
    ),
]

# What is measured on.
Corpus: TypeAlias = Annotated[
    str | None,
    typer.Option("--corpus", help="Compare with this text: a corpus name, a file or a folder."),
]
TextFile: TypeAlias = Annotated[
    Path | None,
    typer.Option("--text", help="Measure on this text file; default: repeated random tokens."),
]
MeasuredText: TypeAlias = Annotated[
    Path | None,
    typer.Option("--text", help="Measure on this text file; default: the model's held-out text."),
]
Sequences: TypeAlias = Annotated[
    int,
    typer.Option("--sequences", min=1, max=MOST_SEQUENCES, help="Sequences to measure on."),
]
ProbeSequences: TypeAlias = Annotated[
    int,
    typer.Option(
        "--sequences",
        min=2,
        max=MOST_SEQUENCES,
        help="Probe sequences (repeated random tokens).",
    ),
]
Length: TypeAlias = Annotated[
    int | None,
    typer.Option("--length", min=1, max=LARGEST, help="Random tokens per copy (default 25)."),
]
Repeats: TypeAlias = Annotated[
    int,
    typer.Option(
        "--repeats", min=1, max=MOST_SEQUENCES, help="Copies of the random tokens per sequence."
    ),
]
Draws: TypeAlias = Annotated[
    int,
    typer.Option(
        "--draws",
        min=1,
        max=MOST_DRAWS,
        help="Random rotations of each head that make up its null distribution.",
    ),
]
Seed: TypeAlias = Annotated[
    int, typer.Option("--seed", min=0, max=LARGEST, help="Seed of the random draws.")
]

# What is shown.
Offset: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--offset", help="Rotary models: QK at this offset instead of the mean over offsets."
    ),
]
Page: TypeAlias = Annotated[
    Path | None, typer.Option("--html", help="Also write the result to this HTML page.")
]

# Where and in what it is computed.
Device: TypeAlias = Annotated[
    str | None, typer.Option("--device", help="Compute on this device: cpu, cuda, cuda:1 or mps.")
]
Dtype: TypeAlias = Annotated[
    Literal["float32", "float64"] | None,
    typer.Option(
        "--dtype", help="Compute in this precision; default: the file's, at least float32."
    ),
]
Revision: TypeAlias = Annotated[
    str | None,
    typer.Option("--revision", help="Of a hub id: the branch, tag or commit to load."),
]


@dataclass(frozen=True)
class Session:
    """The context of every analysis command: model, device, dtype and output format."""

    model: ModelName
    revision: Revision = None
    device: Device = None
    dtype: Dtype = None
    as_json: AsJson = False

    def open(self) -> "Model":
        """The model, loaded."""
        return open_model(self.model, self.device, self.dtype, self.as_json, self.revision)

    def progress(self, quiet: bool = False) -> "AbstractContextManager[Progress]":
        """The progress bar of a computation."""
        return progress(self.as_json or quiet)

    def show(self, record: "Record") -> None:
        """Print a result."""
        show(record, self.as_json)


def analysis(function: Callable[..., None]) -> Callable[..., None]:
    """Make a command of a function that takes a `Session` and its own options.

    On the command line MODEL comes first; --revision, --device, --dtype and --json come last.
    """
    model, *shared = inspect.signature(Session).parameters.values()
    _, *own = inspect.signature(function).parameters.values()

    @wraps(function)
    def command(**given: Any) -> None:
        session = Session(*(given.pop(each.name) for each in (model, *shared)))
        function(session, **given)

    keyword = inspect.Parameter.KEYWORD_ONLY
    in_order = [each.replace(kind=keyword) for each in (model, *own, *shared)]
    vars(command)["__signature__"] = inspect.Signature(in_order)
    return command


def open_model(
    name: str,
    device: str | None,
    dtype: str | None,
    as_json: bool,
    revision: str | None = None,
) -> "Model":
    """The model of a command line, on its device; progress is shown while it is fetched.

    Under torchrun `cuda` is the GPU of this process.
    """
    import torch

    from pathsum.model.processes import local_device
    from pathsum.sources import load

    with progress(as_json, at_once=False) as advance:
        model = load(name, revision=revision, progress=advance)
    if device is None and dtype is None:
        return model
    place = None if device is None else local_device(device)
    return model.to(None if dtype is None else getattr(torch, dtype), place)


def fetch_models(names: Sequence[str], as_json: bool = False) -> None:
    """Fetch the models among these that are downloaded on first use, with progress."""
    from pathsum.sources.named import FETCHED, fetch

    for name in names:
        if name in FETCHED:
            with progress(as_json) as advance:
                fetch(FETCHED[name], advance)


def parse_versus(versus: str) -> str | None:
    """The library's `versus` for the option's text: 'none' is None."""
    return None if versus == "none" else versus
