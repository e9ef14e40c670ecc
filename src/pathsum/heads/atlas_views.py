"""The atlas in a terminal: heat maps, kinds and tables of scores."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderableType
from rich.text import Text

from pathsum.base import Table, text_column
from pathsum.base.table import format_number
from pathsum.model import HeadId

if TYPE_CHECKING:
    from pathsum.heads.atlas import Atlas
    from pathsum.heads.kinds import HeadEntry
    from pathsum.heads.score import Score

SHADES = " ░▒▓█"
# Widths of a score's title and of one head's value next to its null, with column spacing.
_TITLE, _CELL = 33, 16


@dataclass(frozen=True, eq=False)
class PrintedAtlas:
    """The atlas in a terminal: heat maps, kinds, then every score of every head next to its null.

    As many heads side by side as the terminal is wide.
    """

    found: "Atlas"

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        found = self.found
        for name in ("previous_token", "induction", "copying"):
            if not found.score(name):
                continue
            title = next(info.title for info in found.infos if info.name == name)
            yield score_grid(title, found.score(name))
            yield Text()
        if any(entry.evidence for entry in found.heads):
            yield found.kinds_table()
            yield Text()
            for layer, counts in enumerate(found.by_layer()):
                kinds = ", ".join(f"{count} {kind}" for kind, count in counts.items())
                yield Text(f"L{layer}: {kinds}")
        else:
            yield Text(f"{found.model}: no score passes the threshold of a kind\n\n{found.note}")
        side_by_side = max(1, (options.max_width - _TITLE) // _CELL)
        for layer in range(len(found.by_layer())):
            heads = [entry for entry in found.heads if entry.head.layer == layer]
            for start in range(0, len(heads), side_by_side):
                yield Text()
                yield _scores_table(found, heads[start : start + side_by_side])
        for name, why in found.absent.items():
            yield Text(f"{name}: {why}", style="italic")


def _scores_table(found: "Atlas", heads: "Sequence[HeadEntry]") -> Table:
    """One row per score, one column per head: its value, the null in brackets, a star beyond it."""
    shown = [info for info in found.infos if info.name not in found.absent]
    rows = tuple(
        (info.title, *(_with_null(entry.scores.get(info.name), found.alpha) for entry in heads))
        for info in shown
    )
    columns = (text_column("score"), *(text_column(entry.head) for entry in heads))
    note = f"value (null); *: p ≤ {found.alpha:g}"
    return Table(columns, rows, f"scores of {heads[0].head} to {heads[-1].head}", note)


def _with_null(score: "Score | None", alpha: float) -> str | None:
    if score is None or math.isnan(score.value):
        return None
    null = "" if score.null is None else f" ({format_number(score.null, '.2f')})"
    return (
        format_number(score.value, ".2f")
        + null
        + ("*" if score.p is not None and score.p <= alpha else "")
    )


def score_grid(title: str, values: Mapping[HeadId, float]) -> Text:
    """One shade per head from 0 to 1, layers as rows; negative values are blank."""
    layers = sorted({head.layer for head in values})
    n_heads = 1 + max(head.head for head in values)
    lines = [title, "     " + "".join(f"{head:<3}" for head in range(n_heads))]
    for layer in layers:
        cells = [shade(values[HeadId(layer, head)]) for head in range(n_heads)]
        lines.append(f"L{layer:<3} " + "".join(f"{cell} " for cell in cells))
    return Text("\n".join(lines))


def shade(share: float) -> str:
    """Two characters, darker the closer a share is to 1; blank below 0."""
    level = 0 if math.isnan(share) else round(max(0.0, min(1.0, share)) * (len(SHADES) - 1))
    return SHADES[level] * 2
