"""The exception tree.

A message names the value, the reason and the fix. The command line prints it and
exits with `exit_code`; library users catch the class.

    PathsumError
    ├── InputError            an argument that cannot be used (exit code 2)
    │   ├── ConfigError       fields of a Config that do not fit together
    │   ├── TokenError        token ids or text that the model cannot read
    │   ├── HeadError         a head that the model does not have
    │   ├── LayerError        a layer that the model does not have (also an IndexError)
    │   ├── PathError         a path that the model does not have
    │   ├── WeightsError      tensors of the wrong shape, or not finite
    │   ├── FileError         a file or folder that cannot be read as expected
    │   └── ArgumentError     an argument of the wrong type (also a TypeError)
    ├── NotExactError         a decomposition that would not be exact (exit code 2)
    └── FailedError           valid input, but the operation failed (exit code 1)
"""

import difflib
from collections.abc import Iterable


class PathsumError(Exception):
    """Base class of all errors that pathsum raises."""

    exit_code = 1


class InputError(PathsumError, ValueError):
    """An argument that cannot be used."""

    exit_code = 2


class ConfigError(InputError):
    """Fields of a `Config` that do not fit together."""


class TokenError(InputError):
    """Token ids or text that the model cannot read."""


class HeadError(InputError):
    """A head that the model does not have."""


class LayerError(InputError, IndexError):
    """A layer that the model does not have."""


class PathError(InputError):
    """A path that the model does not have."""


class WeightsError(InputError):
    """Tensors of the wrong shape, or not finite."""


class FileError(InputError):
    """A file or folder that cannot be read as expected."""


class ArgumentError(InputError, TypeError):
    """An argument of the wrong type."""


class NotExactError(PathsumError, ValueError):
    """A decomposition that would not add up exactly."""

    exit_code = 2


class FailedError(PathsumError, RuntimeError):
    """Valid input, but the operation failed."""


def damaged(file: object, problem: str) -> FileError:
    """The error for a downloaded file that does not follow its format."""
    return FileError(f"{file} {problem}; download it again: it is damaged or was cut short")


def near_misses(name: str, names: Iterable[str], limit: int = 3) -> str:
    """A clause that suggests similar names, or an empty string.

    >>> near_misses("two-layr", ["induction", "two-layer"])
    "; did you mean 'two-layer'?"
    """
    close = difflib.get_close_matches(name, list(names), n=limit)
    if not close:
        return ""
    return "; did you mean " + " or ".join(repr(word) for word in close) + "?"


def first_line(error: BaseException) -> str:
    """The first line of an error's message, to quote in another message."""
    return str(error).strip().split("\n")[0]
