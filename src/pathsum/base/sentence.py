"""Sentences about numbers: templates with named slots, filled into spans.

>>> sentence = fill(
...     "{head} adds {share} of {total} logits.",
...     head=head_span("L1H4"),
...     share=signed(3.14159),
...     total=signed(4.0),
... )
>>> plain_text(sentence)
'L1H4 adds +3.14 of +4.00 logits.'
>>> [(span.kind, span.text) for span in sentence[:2]]
[('head', 'L1H4'), ('text', ' adds +3.14 of +4.00 logits.')]

Templates are data: other numbers can be filled into the same words.

The terminal: control characters in printed text are escaped.

Names come from files of unknown origin, and a control character in one could move the cursor or
overwrite the screen. Every console of pathsum is a `SafeConsole`.
"""

import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from string import Formatter
from typing import Any, Literal, TypeAlias

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

# Control, format and surrogate characters, line and paragraph separators; not newline and tab.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u180e\u200b-\u200f"
    "\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0001\U000e0020-\U000e007f]"
)
MAX_MESSAGE_LENGTH = 500
MIN_WIDTH = 20


def printable(text: str) -> str:
    r"""Text with control characters escaped.

    >>> printable("red: \x1b[31m, reversed: \u202e")
    'red: \\x1b[31m, reversed: \\u202e'
    """
    return _HIDDEN.sub(lambda match: _escape(ord(match[0])), text)


def printable_json(text: str) -> str:
    """`printable` for JSON text: the result is JSON of the same value."""
    return _HIDDEN.sub(lambda match: json.dumps(match[0])[1:-1], text)


def shorten(text: str, longest: int = MAX_MESSAGE_LENGTH) -> str:
    """Shorten a message in the middle; its end, the advice, stays.

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

    It is never narrower than `MIN_WIDTH`: with a width of 0, rich prints nothing at all.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if self.width < MIN_WIDTH:
            self.width = MIN_WIDTH

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """The segments of something to print; rich's own control codes are not escaped."""
        for segment in super().render(renderable, options):
            if segment.control or not _HIDDEN.search(segment.text):
                yield segment
            else:
                yield Segment(printable(segment.text), segment.style)


MINUS = "−"


@dataclass(frozen=True)
class Span:
    """A piece of a sentence.

    `kind` is its type: "text" and "strong" (emphasized) are plain text,
    "token" is the text of a token (at `position` of the text, None for a token that is predicted),
    "head" names `head`, and "cell" is the text of the token at `source` that `head` attends to from
    `position`. Quotation marks around tokens are part of the plain text.
    """

    text: str
    kind: Literal["text", "strong", "token", "head", "cell"] = "text"
    head: str | None = None
    position: int | None = None
    source: int | None = None


Sentence: TypeAlias = tuple[Span, ...]
Slot: TypeAlias = str | Span | Sentence


def fill(template: str, **slots: Slot) -> Sentence:
    """The spans of a template whose `{name}` slots are replaced by text, spans or sentences."""
    pieces: list[Slot] = []
    for text, name, _, _ in Formatter().parse(template):
        pieces.append(text)
        if name is not None:
            pieces.append(slots[name])
    return concat(*pieces)


def concat(*pieces: Slot) -> Sentence:
    """The pieces as one sentence; neighboring plain texts become one span."""
    result: list[Span] = []
    spans = (piece if isinstance(piece, tuple) else (piece,) for piece in pieces)
    for part in chain.from_iterable(spans):
        span = Span(part) if isinstance(part, str) else part
        if result and result[-1].kind == span.kind == "text":
            result[-1] = Span(result[-1].text + span.text)
        elif span.text:
            result.append(span)
    return tuple(result)


def join_spans(pieces: Iterable[Slot], separator: str = ", ") -> Sentence:
    """Pieces with a separator between them."""
    separated = [part for piece in pieces for part in (separator, piece)]
    return concat(*separated[1:])


def plain_text(sentence: Sentence) -> str:
    """A sentence without its references."""
    return "".join(span.text for span in sentence)


def head_span(label: str) -> Span:
    """The name of a head."""
    return Span(label, "head", head=label)


def strong(text: str) -> Span:
    """Text to emphasize."""
    return Span(text, "strong")


def signed(value: float, decimals: int = 2) -> str:
    """A number with its sign, except zero.

    >>> signed(1.5), signed(-0.25, 1), signed(-0.001)
    ('+1.50', '−0.2', '0.00')
    """
    text = f"{abs(value):.{decimals}f}"
    if float(text) == 0:
        return text
    return f"{MINUS if value < 0 else '+'}{text}"


def percent(share: float) -> str:
    """A share as a percentage.

    >>> (
    ...     percent(0.712),
    ...     percent(0.004),
    ...     percent(0.9996),
    ...     percent(0.00001),
    ...     percent(1.0),
    ...     percent(0.0),
    ... )
    ('71%', '0.40%', '> 99.9%', '< 0.01%', '100%', '0%')
    """
    if math.isnan(share):
        return "–"
    value = 100 * share
    if 0 < abs(value) < 0.01:
        return "< 0.01%" if value > 0 else f"> {MINUS}0.01%"
    if 99 < value < 100:  # less than everything must not be printed as 100%
        return f"{value:.1f}%" if value < 99.95 else "> 99.9%"
    decimals = 0 if value == 0 or abs(value) >= 10 else 1 if abs(value) >= 1 else 2
    return f"{value:.{decimals}f}%".replace("-", MINUS)


def sparkline(values: Sequence[float], low: float, high: float) -> str:
    """Numbers as a row of bars.

    >>> sparkline([0.0, 0.5, 1.0], 0.0, 1.0)
    '▁▅█'
    """
    bars, span = "▁▂▃▄▅▆▇█", max(high - low, 1e-9)
    shares = (min(1.0, max(0.0, (value - low) / span)) for value in values)
    return "".join(bars[round(share * (len(bars) - 1))] for share in shares)


def shade(share: float) -> str:
    """Two characters, darker the closer a share is to 1; blank below 0."""
    shades = " ░▒▓█"
    level = 0 if math.isnan(share) else round(max(0.0, min(1.0, share)) * (len(shades) - 1))
    return shades[level] * 2
