"""Commands from functions: options come from the signature, their help from the docstring.

    @command(needs={"offset": "token"})
    def head_command(session: CommandSession, head: str, *, token: str | None = None) -> None:
        '''Show what a head does.

        Options:
            HEAD: A head (L1H4), or a virtual head (L0H7,L1H4).
            --token: Show its circuits at this token.
        '''

Positional parameters are arguments, keyword-only ones are options: `top_tokens` is `--top-tokens`,
`with_` is `--with`; `head_command` is the command `head`. A `CommandSession` adds MODEL and the
options about loading and printing. `exclusive` and `needs` reject options that would be ignored.
Options shared by several commands are described here:

Options:
    MODEL: A name from `pathsum models`, a model's folder or file, or a hub id.
    OTHERS: More models to compare with.
    TEXT: The input text.
    --tokens IDS: Token ids instead of a text, for example 3,5,7; repeat for several sequences.
    --targets IDS: Correct output at each position of --tokens (-1: none), for example -1,-1,4;
        default: the next token.
    --metric: Score predictions by loss in nats, or by error rate.
    --position: Position of the prediction; negative from the end.
    --token: The predicted token, as text; default: the model's prediction.
    --versus: Baseline of the logit: 'mean' (of the vocabulary), 'none', or the text of another
        token.
    --corpus: Compare with this text: a corpus name, a file or a folder.
    --text: Measure on this text file; default: the model's held-out text.
    --sequences: Sequences to measure on.
    --length: Random tokens per copy (default 25).
    --repeats: Copies of the random tokens per sequence.
    --draws: Random rotations of each head that make up its null distribution.
    --seed: Seed of the random draws.
    --offset: Rotary models: QK at this offset instead of the mean over offsets.
    --revision: For a hub id, the branch, tag or commit to load.
    --device: Compute on this device: cpu, cuda, cuda:1 or mps.
    --dtype: Compute in this precision; default: the file's, at least float32.
    --json: Print JSON instead of tables, with numbers in full precision.
    --figure FILE: Also draw the result to this file: .svg, .png or .pdf.

Imports nothing heavy, because `--help` must be fast.
"""

import inspect
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from pathsum.base.errors import InputError
from pathsum.cli.view import progress, show

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pathsum.base import Progress, Record
    from pathsum.model import Model

# The largest number that torch reads.
LARGEST = 2**63 - 1
# Far more than any estimate needs; with more, a command would not finish.
MOST_SEQUENCES, MOST_DRAWS = 1_000_000, 100_000
BOUNDS = {
    "sequences": (1, MOST_SEQUENCES),
    "probe_sequences": (2, MOST_SEQUENCES),
    "repeats": (1, MOST_SEQUENCES),
    "length": (1, MOST_SEQUENCES),
    "draws": (1, MOST_DRAWS),
    "budget": (1, None),
    "seeds": (1, None),
    "seed": (0, None),
}
"""The least and the largest value of options that are integers; all are 64-bit integers."""
_SHORT = {"k": "-k", "out": "-o"}
_COMMANDS: dict[str, dict[str, str]] = {}
"""The label of each parameter of each command: TEXT, --top-tokens."""


@dataclass(frozen=True)
class CommandSession:
    """The context of every analysis command: model, device, dtype and output format."""

    model: str
    revision: str | None = None
    device: str | None = None
    dtype: Literal["float32", "float64"] | None = None
    json: bool = False
    figure: Path | None = None

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

    def show(
        self,
        record: "Record",
        drawn: "Record | None" = None,
        printed: "RenderableType | None" = None,
    ) -> None:
        """Print a result, or `printed`, and draw it, or `drawn`, with --figure.

        Only the first process does.
        """
        if is_first():
            show(record, self.json, printed)
            write_figure(record if drawn is None else drawn, self.figure)


def is_first() -> bool:
    """Whether this is the first of torchrun's processes, or the only one."""
    return os.environ.get("RANK", "0") == "0"


@dataclass(frozen=True)
class Described:
    """An option as a docstring describes it."""

    help: str
    metavar: str | None = None


def described_options(docstring: str) -> tuple[str, dict[str, Described]]:
    """The text of a docstring before its options, and its options by name.

    >>> text, options = described_options('''Do it.
    ...
    ... Options:
    ...     HEAD: The head.
    ...     --cell D,S: One cell; default:
    ...         all of them.
    ... ''')
    >>> text, options["cell"]
    ('Do it.', Described(help='One cell; default: all of them.', metavar='D,S'))
    """
    text, _, block = inspect.cleandoc(docstring).partition("\nOptions:\n")
    found: dict[str, Described] = {}
    for entry in re.split(r"\n(?= {4}\S)", "\n" + block.partition("\n\n")[0])[1:]:
        label, _, help_text = " ".join(entry.split()).partition(": ")
        name, _, metavar = label.partition(" ")
        shown = metavar or (None if name.startswith("--") else name)
        found[name.removeprefix("--").replace("-", "_")] = Described(help_text, shown)
    return text.strip(), found


_SHARED = described_options(__doc__ or "")[1]


def command(
    exclusive: Sequence[str] = (), needs: Mapping[str, str] | None = None, *, figure: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command of a function; see the docstring of this module.

    Each string of `exclusive` names parameters of which at most one may be given; `needs` maps a
    parameter to the one without which it would be ignored. With `figure`, the command has the
    option --figure.
    """

    def made(function: Callable[..., None]) -> Callable[..., None]:
        text, own = described_options(function.__doc__ or "")
        known = _SHARED | own
        parameters = list(inspect.signature(function).parameters.values())
        shared: list[inspect.Parameter] = []
        if parameters[0].annotation is CommandSession:
            fields = inspect.signature(CommandSession).parameters.values()
            model, *others = (each for each in fields if figure or each.name != "figure")
            shared = [model, *(each.replace(kind=each.KEYWORD_ONLY) for each in others)]
            parameters = [model, *parameters[1:], *shared[1:]]
        labels = {each.name: _label(each, known) for each in parameters}

        @wraps(function)
        def run(**given: Any) -> None:
            _check(given, parameters, labels, exclusive, needs or {})
            if given.get("figure") is not None:
                from pathsum.figures import check_figure

                check_figure(given["figure"])  # before the computation, not after it
            session = {each.name: given.pop(each.name) for each in shared}
            function(*([CommandSession(**session)] if shared else []), **given)

        run.__doc__ = text
        run.__name__ = function.__name__.removesuffix("_command")
        _COMMANDS[run.__name__] = labels
        described = [_described(each, labels[each.name], known) for each in parameters]
        vars(run)["__signature__"] = inspect.Signature(described)
        return run

    return made


def _label(parameter: inspect.Parameter, known: Mapping[str, Described]) -> str:
    name = parameter.name.rstrip("_")
    if parameter.kind is parameter.KEYWORD_ONLY:
        return "--" + name.replace("_", "-")
    return known[name.upper()].metavar or name.upper()


def _described(
    parameter: inspect.Parameter, label: str, known: Mapping[str, Described]
) -> inspect.Parameter:
    """A parameter annotated with what typer needs to know about it."""
    name, hint = parameter.name.rstrip("_"), parameter.annotation
    is_option = parameter.kind is parameter.KEYWORD_ONLY
    option = known.get(name if is_option else name.upper(), Described(""))
    given: dict[str, Any] = {"help": option.help, "metavar": option.metavar}
    if int in (hint, *get_args(hint)):
        given["min"], given["max"] = BOUNDS.get(name, (None, None))
    if is_option:
        flag = label + (f"/--no-{name}" if parameter.default is True else "")
        shown = typer.Option(flag, *filter(None, [_SHORT.get(name)]), **given)
    else:
        shown = typer.Argument(**given)
    return parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=Annotated[hint, shown])


def _check(
    given: Mapping[str, Any],
    parameters: Sequence[inspect.Parameter],
    labels: Mapping[str, str],
    exclusive: Sequence[str],
    needs: Mapping[str, str],
) -> None:
    """Raise InputError for options that exclude each other or would be ignored."""
    for name, value in given.items():
        if isinstance(value, int) and abs(value) > LARGEST:
            raise InputError(f"{labels[name]} {value} is out of range; use at most 63 bits")
    absent = {each.name: (each.default, [], None) for each in parameters}
    present = {labels[name] for name, value in given.items() if value not in absent[name]}
    for names in exclusive:
        both = [labels[name] for name in names.split() if labels[name] in present]
        if len(both) > 1:
            raise InputError(f"{both[0]} and {both[1]} were both given; give one of them")
    for option, needed in ((labels[name], labels[other]) for name, other in needs.items()):
        if option in present and needed not in present:
            raise InputError(
                f"{option} belongs to {needed}; give {needed} with it, or leave {option} out"
            )


def write_figure(record: "Record", file: Path | None) -> None:
    """Draw a result to the file of --figure."""
    if file is not None:
        record.figure().save(file)


def in_terms_of_options(message: str, name: str) -> str:
    """Rephrase a library error in terms of a command's options: `k=3` becomes `--k 3`."""
    labels = _COMMANDS.get(name, {})

    def option(found: re.Match[str]) -> str:
        return f"{labels[found[1]]} " if found[1] in labels else found[0]

    message = re.sub(r"^(?:\w+: )?([a-z_]+) (?=is )", option, message)
    return re.sub(r"\b([a-z_]+)=(?=[\w'\"-])", option, message)


def load_model(
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
    from pathsum.sources.named import FETCHED, fetch_model

    for name in names:
        if name in FETCHED:
            with progress(as_json) as advance:
                fetch_model(FETCHED[name], advance)
