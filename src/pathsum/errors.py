"""The exception tree.

Every message is one sentence that says what is wrong, why, and what would be right. The command
line prints it and leaves with `exit_code`; a library user catches the class.

    PathsumError
    ├── InputError            what was asked for cannot be meant (exit code 2)
    │   ├── ConfigError       fields of a Config that do not fit together
    │   ├── TokenError        token ids or text that the model cannot read
    │   ├── HeadError         a head that the model does not have
    │   ├── PathError         a path that no run of the model takes
    │   ├── WeightsError      tensors of the wrong shape, or not finite
    │   └── FileError         a file or folder that is not what it should be
    ├── NotExactError         a decomposition that would not be exact, refused (exit code 2)
    └── FailedError           sound input, and it still did not work (exit code 1)
"""

import difflib
from collections.abc import Iterable


class PathsumError(Exception):
    """Base of all errors raised on purpose."""

    exit_code = 1


class InputError(PathsumError, ValueError):
    """What was asked for cannot be meant."""

    exit_code = 2


class ConfigError(InputError):
    """Fields of a `Config` that do not fit together."""


class TokenError(InputError):
    """Token ids or text that the model cannot read."""


class HeadError(InputError):
    """A head that the model does not have."""


class PathError(InputError):
    """A path that no run of the model takes."""


class WeightsError(InputError):
    """Tensors of the wrong shape, or not finite."""


class FileError(InputError):
    """A file or folder that is not what it should be."""


class NotExactError(PathsumError, ValueError):
    """A decomposition that would not add up exactly, refused."""

    exit_code = 2


class FailedError(PathsumError, RuntimeError):
    """Sound input, and it still did not work."""


def near_misses(wrong: str, known: Iterable[str], limit: int = 3) -> str:
    """A clause that offers what may have been meant, or nothing.

    >>> near_misses("two-layr", ["induction", "two-layer"])
    "; did you mean 'two-layer'?"
    """
    close = difflib.get_close_matches(wrong, list(known), n=limit)
    if not close:
        return ""
    return "; did you mean " + " or ".join(repr(word) for word in close) + "?"
