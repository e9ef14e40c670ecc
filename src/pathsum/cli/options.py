"""Commands from functions: options come from the signature, their help from the docstring.

    @command(needs={"offset": "token"})
    def head_command(session: CommandSession, head: str, *, token: str | None = None) -> None:
        '''Describe a head.

        Options:
            HEAD: A head (L1H4), or a virtual head (L0H7,L1H4).
            --token: Show its circuits at this token.
        '''

Positional parameters are arguments, keyword-only ones are options: `top_tokens` is `--top-tokens`,
`with_` is `--with`; `head_command` is the command `head`. A parameter whose type is an
`OptionGroup`, such as `CommandSession`, stands for all fields of the group. `exclusive` and `needs`
reject options that would be ignored. Options shared by commands without a group are described here:

Options:
    MODEL: A name from `pathsum models`, a model's folder or file, or a hub id.
    OTHERS: More models to compare with.
    TEXT: The input text.
    --tokens IDS: Token ids instead of a text, for example 3,5,7; repeat for several sequences.
    --position: Position of the prediction; negative from the end.
    --token: The predicted token, as text; default: the model's prediction.
    --corpus: Compare with this text: a corpus name, a file or a folder.
    --text: Measure on this text file; default: the model's held-out text.
    --sequences: Sequences to measure on.
    --draws: Random rotations of each head that make up its null distribution.
    --seed: Seed of the random draws.
    --offset: Rotary models: QK at this offset instead of the mean over offsets.
    --json: Print JSON instead of tables, with numbers in full precision.
    --figure FILE: Also draw the result to this file: .svg, .png or .pdf.

Imports nothing heavy, because `--help` must be fast.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from itertools import chain
from typing import Annotated, Any, ClassVar, get_args

import typer

from pathsum.base.errors import InputError

# The largest number that torch reads.
LARGEST = 2**63 - 1
# Far more than any estimate needs; with more, a command would not finish.
MAX_SEQUENCES, MAX_DRAWS = 1_000_000, 100_000
BOUNDS = {
    "sequences": (1, MAX_SEQUENCES),
    "probe_sequences": (2, MAX_SEQUENCES),
    "repeats": (1, MAX_SEQUENCES),
    "length": (1, MAX_SEQUENCES),
    "draws": (1, MAX_DRAWS),
    "budget": (1, None),
    "seeds": (1, None),
    "seed": (0, None),
}
"""The least and the largest value of options that are integers; all are 64-bit integers."""
_SHORT = {"k": "-k", "out": "-o"}
_COMMANDS: dict[str, dict[str, str]] = {}
"""The label of each parameter of each command: TEXT, --top-tokens."""


class OptionGroup:
    """A base for dataclasses whose fields are options that belong together.

    The docstring of a group describes its options like that of a command.
    """

    exclusive: ClassVar[tuple[str, ...]] = ()
    needs: ClassVar[Mapping[str, str]] = {}


@dataclass(frozen=True)
class Description:
    """The help of an option and, if it differs from its type, the placeholder of its value."""

    help: str
    metavar: str | None = None


def read_descriptions(docstring: str) -> tuple[str, dict[str, Description]]:
    """The text of a docstring before its options, and the options' descriptions by name.

    >>> text, options = read_descriptions('''Do it.
    ...
    ... Options:
    ...     HEAD: The head.
    ...     --cell D,S: One cell; default:
    ...         all of them.
    ... ''')
    >>> text, options["cell"]
    ('Do it.', Description(help='One cell; default: all of them.', metavar='D,S'))
    """
    text, _, block = inspect.cleandoc(docstring).partition("\nOptions:\n")
    descriptions: dict[str, Description] = {}
    for entry in re.split(r"\n(?= {4}\S)", "\n" + block.partition("\n\n")[0])[1:]:
        label, _, help_text = " ".join(entry.split()).partition(": ")
        name, _, metavar = label.partition(" ")
        key = name.removeprefix("--").replace("-", "_")
        is_option = name.startswith("--")
        descriptions[key] = Description(help_text, metavar or (None if is_option else name))
    return text.strip(), descriptions


_SHARED = read_descriptions(__doc__ or "")[1]


def command(
    exclusive: Sequence[str] = (), needs: Mapping[str, str] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command of a function; see the docstring of this module.

    Each string of `exclusive` names parameters of which at most one may be given; `needs` maps a
    parameter to the one without which it would be ignored.
    """

    def make_command(function: Callable[..., None]) -> Callable[..., None]:
        groups, parameters = _expand_groups(inspect.signature(function).parameters.values())
        text, descriptions = read_descriptions(function.__doc__ or "")
        inherited, rules, pairs = dict(_SHARED), [*exclusive], dict(needs or {})
        for group in groups.values():
            for base in reversed(group.__mro__):
                inherited |= read_descriptions(base.__doc__ or "")[1]
            rules += group.exclusive
            pairs |= group.needs
        descriptions = inherited | descriptions
        labels = {each.name: _label(each, descriptions) for each in parameters}

        @wraps(function)
        def run(**values: Any) -> None:
            _check(values, parameters, labels, rules, pairs)
            if values.get("figure") is not None:
                from pathsum.figures import check_figure

                check_figure(values["figure"])  # before the computation, not after it
            for name, group in groups.items():
                fields = inspect.signature(group).parameters
                values[name] = group(**{field: values.pop(field) for field in fields})
            function(**values)

        run.__doc__ = text
        run.__name__ = function.__name__.removesuffix("_command")
        _COMMANDS[run.__name__] = labels
        annotated = [_annotate(each, labels[each.name], descriptions) for each in parameters]
        vars(run)["__signature__"] = inspect.Signature(annotated)
        return run

    return make_command


def _expand_groups(
    parameters: Iterable[inspect.Parameter],
) -> tuple[dict[str, type[OptionGroup]], list[inspect.Parameter]]:
    """The groups among a function's parameters, and all parameters, with each group's fields.

    Arguments come first. Options of the first parameter, a `CommandSession`, are listed last.
    """
    groups: dict[str, type[OptionGroup]] = {}
    fields: list[list[inspect.Parameter]] = []
    for parameter in parameters:
        hint = parameter.annotation
        if isinstance(hint, type) and issubclass(hint, OptionGroup):
            groups[parameter.name] = hint
            fields.append([*inspect.signature(hint).parameters.values()])
        else:
            fields.append([parameter])
    (argument, *common), *others = fields
    ordered = [argument, *chain.from_iterable(others), *common]
    return groups, sorted(ordered, key=lambda each: each.kind is each.KEYWORD_ONLY)


def _label(parameter: inspect.Parameter, descriptions: Mapping[str, Description]) -> str:
    name = parameter.name.rstrip("_")
    if parameter.kind is parameter.KEYWORD_ONLY:
        return "--" + name.replace("_", "-")
    return descriptions[name.upper()].metavar or name.upper()


def _annotate(
    parameter: inspect.Parameter, label: str, descriptions: Mapping[str, Description]
) -> inspect.Parameter:
    """A parameter with typer's annotation."""
    name, hint = parameter.name.rstrip("_"), parameter.annotation
    is_option = parameter.kind is parameter.KEYWORD_ONLY
    description = descriptions.get(name if is_option else name.upper(), Description(""))
    settings: dict[str, Any] = {"help": description.help, "metavar": description.metavar}
    if int in (hint, *get_args(hint)):
        settings["min"], settings["max"] = BOUNDS.get(name, (None, None))
    if is_option:
        flag = label + (f"/--no-{name}" if parameter.default is True else "")
        annotation = typer.Option(flag, *filter(None, [_SHORT.get(name)]), **settings)
    else:
        annotation = typer.Argument(**settings)
    return parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=Annotated[hint, annotation])


def _check(
    values: Mapping[str, Any],
    parameters: Sequence[inspect.Parameter],
    labels: Mapping[str, str],
    exclusive: Sequence[str],
    needs: Mapping[str, str],
) -> None:
    """Raise InputError for options that exclude each other or would be ignored."""
    for name, value in values.items():
        if isinstance(value, int) and abs(value) > LARGEST:
            raise InputError(f"{labels[name]} {value} is out of range; use at most 63 bits")
    absent = {each.name: (each.default, [], None) for each in parameters}
    present = {labels[name] for name, value in values.items() if value not in absent[name]}
    for names in exclusive:
        clashing = [labels[name] for name in names.split() if labels[name] in present]
        if len(clashing) > 1:
            raise InputError(f"{clashing[0]} and {clashing[1]} were both given; give one of them")
    for option, needed in ((labels[name], labels[other]) for name, other in needs.items()):
        if option in present and needed not in present:
            raise InputError(
                f"{option} belongs to {needed}; give {needed} with it, or leave {option} out"
            )


def in_terms_of_options(message: str, name: str) -> str:
    """Rephrase a library error in terms of a command's options: `k=3` becomes `--k 3`."""
    labels = _COMMANDS.get(name, {})

    def option(match: re.Match[str]) -> str:
        return f"{labels[match[1]]} " if match[1] in labels else match[0]

    message = re.sub(r"^(?:\w+: )?([a-z_]+) (?=is )", option, message)
    return re.sub(r"\b([a-z_]+)=(?=[\w'\"-])", option, message)
