"""The terminal: control characters in printed text are escaped.

Names come from files of unknown origin, and a control character in one could move the cursor or
overwrite the screen. Every console of pathsum is a `SafeConsole`.
"""

import json
import re
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

# Control, format and surrogate characters, line and paragraph separators; not newline and tab.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u180e\u200b-\u200f"
    "\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0001\U000e0020-\U000e007f]"
)
LONGEST_MESSAGE = 500
NARROWEST = 20


def printable(text: str) -> str:
    r"""Text with control characters escaped.

    >>> printable("red: \x1b[31m, reversed: \u202e")
    'red: \\x1b[31m, reversed: \\u202e'
    """
    return _HIDDEN.sub(lambda found: _escape(ord(found[0])), text)


def printable_json(text: str) -> str:
    """`printable` for JSON text: the result is JSON of the same value."""
    return _HIDDEN.sub(lambda found: json.dumps(found[0])[1:-1], text)


def shorten(text: str, longest: int = LONGEST_MESSAGE) -> str:
    """Cut a message to a length in the middle; its end, the advice, stays.

    >>> shorten("a name of " + 90 * "x" + " is too long", 40)
    'a name of xxxxxxxxxxxxxxx … s too long'
    """
    if len(text) <= longest:
        return text
    end = longest // 4
    return f"{text[: longest - end - 5]} … {text[-end:]}"


def _escape(code: int) -> str:
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


class SafeConsole(Console):
    """A console that escapes control characters in everything it prints.

    It is never narrower than `NARROWEST`: with a width of 0, rich prints nothing at all.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if self.width < NARROWEST:
            self.width = NARROWEST

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """The segments of something to print; rich's own control codes are kept apart from text."""
        for segment in super().render(renderable, options):
            if segment.control or not _HIDDEN.search(segment.text):
                yield segment
            else:
                yield Segment(printable(segment.text), segment.style)
