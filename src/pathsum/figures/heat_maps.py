"""Heat maps: attention patterns, patch sweeps, composition scores, and any other matrix."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pathsum.base.options import parse_choice, parse_count
from pathsum.figures.figure import COLUMN, POINTS, Figure, color_bar, vertical_label
from pathsum.figures.svg import (
    INK,
    LABEL,
    LINE,
    MARGIN,
    MUTED,
    SMALL,
    TITLE,
    Length,
    Pen,
    Point,
    Scale,
    Theme,
    clip_text,
    color_at,
    ink_on,
    text_width,
)

if TYPE_CHECKING:
    from torch import Tensor

    from pathsum.circuits import Composition
    from pathsum.heads.attention import Attention
    from pathsum.paths import Lens, PatchSweep

# Labels take at most this much of the width, and are this far apart.
LABEL_SHARE, LABEL_PITCH = 0.24, 5.6
SCALES: tuple[Scale, ...] = ("sequential", "diverging")


def heat_map(
    values: "Tensor | Sequence[Sequence[Length]]",
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    title: str = "",
    row_label: str = "",
    column_label: str = "",
    value_label: str = "",
    texts: Sequence[Sequence[str]] | None = None,
    scale: Scale | str = "sequential",
    extent: Length | None = None,
    square: bool = False,
    mono_rows: bool = False,
    width: Length = COLUMN,
    theme: Theme = "light",
) -> Figure:
    """A matrix as colored cells, with names of rows and columns.

    Args:
        values: [row, column]; NaN leaves a cell empty.
        rows: Names of rows, from the top.
        columns: Names of columns, usually tokens.
        title: Above the figure.
        row_label: What the rows are.
        column_label: What the columns are.
        value_label: What the colors are, next to the color bar.
        texts: A text for each cell, such as the token a lens reads there.
        scale: "sequential" (0 to `extent`) or "diverging" (−`extent` to `extent`).
        extent: The value of the strongest color; default: the largest magnitude.
        square: Whether cells are as high as they are wide.
        mono_rows: Whether rows are tokens.
        width: In inches.
        theme: "light" or "dark".

    Returns:
        The figure.

    Example:
        >>> heat_map([[0.1, 0.9]], ["L0"], ["a", "b"], title="a lens")
        Figure('a lens', 3.3 × 0.875 in)
    """
    kind: Scale = parse_choice(SCALES, scale, "scale")
    matrix = _plain(values)
    pen, wide = Pen(theme), width * POINTS
    extent = _extent(matrix) if extent is None else extent
    room = LABEL_SHARE * wide
    left = MARGIN + (9 if row_label else 0) + _label_room(rows, room, mono_rows) + 3
    across = wide - left - MARGIN
    cell = across / max(len(columns), 1)
    tall = cell if square else min(max(cell * 0.6, 7.5 if texts else 6.0), 12.0)
    top = MARGIN + (12 if title else 0) + (10 if column_label else 0)
    top += _column_room(columns, cell, 0.7 * room)
    down = tall * len(rows)
    body = [pen.cells(matrix, (left, top), (cell, tall), kind, extent)]
    body.append(pen.rect((left, top), (across, down), "none", stroke=pen.of(LINE)))
    if title:
        body.append(pen.title(title, wide))
    if column_label:
        at = (left + across / 2, MARGIN + (12 if title else 0) + 6)
        body.append(pen.text(at, column_label, LABEL, anchor="middle", color=pen.of(MUTED)))
    if row_label:
        body.append(vertical_label(pen, (MARGIN + 5, top + down / 2), row_label))
    body.append(row_names(pen, rows, (left - 3, top), tall, room, mono_rows))
    body.append(column_names(pen, columns, (left, top - 3), cell, 0.7 * room))
    if texts is not None:
        body.append(_cell_texts(pen, matrix, texts, (left, top), (cell, tall), kind, extent))
    end = top + down + 7
    body.append(color_bar(pen, (left + across - 66, end), 60, kind, extent, value_label))
    return Figure(title or "heat map", "".join(body), width, (end + 12 + MARGIN) / POINTS, theme)


def _plain(values: "Tensor | Sequence[Sequence[Length]]") -> list[list[float]]:
    return [[float(value) for value in row] for row in values]


def _extent(matrix: list[list[float]]) -> float:
    known = [abs(value) for row in matrix for value in row if math.isfinite(value)]
    return max(known, default=0.0) or 1.0


def _label_room(names: Sequence[str], room: Length, mono: bool) -> float:
    return min(max((text_width(name, SMALL, mono) for name in names), default=0.0), room)


def _column_room(names: Sequence[str], cell: Length, room: Length) -> float:
    """The height that column names need: one line if they fit side by side."""
    widest = max((text_width(name, SMALL, mono=True) for name in names), default=0.0)
    return 8.0 if widest < cell - 1 else min(widest, room) + 3


def row_names(
    pen: Pen, names: Sequence[str], at: Point, pitch: Length, room: Length, mono: bool = False
) -> str:
    """Names to the left of rows; if rows are narrow, only of every second or third one."""
    every = max(1, math.ceil(LABEL_PITCH / pitch))
    return "".join(
        pen.text(
            (at[0], at[1] + (row + 0.5) * pitch + 1.9),
            clip_text(name, room, SMALL, mono),
            SMALL,
            anchor="end",
            mono=mono,
        )
        for row, name in enumerate(names)
        if row % every == 0
    )


def column_names(pen: Pen, names: Sequence[str], at: Point, pitch: Length, room: Length) -> str:
    """Tokens above columns; upright if they do not fit side by side."""
    flat = max((text_width(n, SMALL, mono=True) for n in names), default=0.0) < pitch - 1
    every = 1 if flat else max(1, math.ceil(LABEL_PITCH / pitch))
    parts: list[str] = []
    for column, name in enumerate(names):
        if column % every:
            continue
        x = at[0] + (column + 0.5) * pitch
        if flat:
            parts.append(pen.text((x, at[1]), name, SMALL, anchor="middle", mono=True))
        else:
            text = clip_text(name, room, SMALL, mono=True)
            parts.append(pen.text((x + 1.9, at[1]), text, SMALL, mono=True, turn=-90))
    return "".join(parts)


def _cell_texts(
    pen: Pen,
    matrix: list[list[float]],
    texts: Sequence[Sequence[str]],
    at: Point,
    cell: Point,
    scale: Scale,
    extent: Length,
) -> str:
    size = min(SMALL, cell[1] * 0.7)
    parts: list[str] = []
    for row, line in enumerate(texts):
        for column, text in enumerate(line):
            value = matrix[row][column]
            share = value / extent if math.isfinite(value) else 0.0
            place = (at[0] + (column + 0.5) * cell[0], at[1] + (row + 0.68) * cell[1])
            shown = clip_text(text, cell[0] - 0.5, size, mono=True)
            ink = ink_on(color_at(share, scale, pen.theme))
            parts.append(pen.text(place, shown, size, anchor="middle", mono=True, color=ink))
    return "".join(parts)


def attention_map(
    attention: "Attention", *, width: Length = COLUMN, theme: Theme = "light"
) -> Figure:
    """The attention pattern of one head, or small patterns of several heads, on one text.

    Rows attend to columns. With several heads, layers are rows of patterns.

    Args:
        attention: From `ps.attention(trace, heads)`.
        width: In inches.
        theme: "light" or "dark".
    """
    if len(attention.heads) == 1:
        return heat_map(
            attention.patterns[0],
            attention.tokens,
            attention.tokens,
            title=f"attention of {attention.heads[0]}",
            row_label="destination",
            column_label="source",
            value_label="attention",
            extent=1.0,
            square=True,
            mono_rows=True,
            width=width,
            theme=theme,
        )
    return _attention_tiles(attention, width, theme)


def lens_map(
    lens: "Lens",
    *,
    readout: str = "held",
    k: int = 12,
    width: Length = 2 * COLUMN,
    theme: Theme = "light",
) -> Figure:
    """The top tokens that a lens reads from every layer, at the last positions of a text.

    Colors are the logit of the top token, relative to the mean over the vocabulary.

    Args:
        lens: From `trace.lens()`.
        readout: "direct" (the logit lens) or "held".
        k: How many positions, the last of which is that of the lens.
        width: In inches.
        theme: "light" or "dark".
    """
    parse_choice(("direct", "held"), readout, "readout")
    rows = lens.direct if readout == "direct" else lens.held
    at = slice(max(0, lens.position + 1 - parse_count(k, "positions")), lens.position + 1)
    shown = [row[at] for row in reversed(rows)]
    return heat_map(
        [[max(0.0, one.logit) for one in row] for row in shown],
        [f"residual{layer}" for layer in reversed(range(len(rows)))],
        lens.context[at],
        title=f"{lens.model}: {readout} lens",
        row_label="stream",
        column_label="position",
        value_label="logit",
        texts=[[one.token for one in row] for row in shown],
        width=width,
        theme=theme,
    )


def _attention_tiles(attention: "Attention", width: Length, theme: Theme) -> Figure:
    pen, wide = Pen(theme), width * POINTS
    layers: dict[int, list[int]] = {}
    for index, head in enumerate(attention.heads):
        layers.setdefault(head.layer, []).append(index)
    most = min(max(map(len, layers.values())), 8)
    rows = [
        indices[start : start + most]
        for indices in layers.values()
        for start in range(0, len(indices), most)
    ]
    gap = 5.0
    tile = min((wide - 2 * MARGIN - gap * (most - 1)) / most, 110.0)
    cell = tile / len(attention.tokens)
    body: list[str] = []
    y = MARGIN
    for indices in rows:
        for place, index in enumerate(indices):
            x = MARGIN + place * (tile + gap)
            body.append(pen.text((x, y + 6), str(attention.heads[index]), LABEL))
            corner = (x, y + 8)
            values = attention.patterns[index].tolist()
            body.append(pen.cells(values, corner, (cell, cell), "sequential", 1.0))
            body.append(pen.rect(corner, (tile, tile), "none", stroke=pen.of(LINE)))
        y += tile + 8 + gap
    bar = color_bar(pen, (wide - MARGIN - 66, y + 1), 60, "sequential", 1.0, "attention")
    text = clip_text("".join(attention.tokens), wide - 2 * MARGIN - 118, SMALL, mono=True)
    shown = pen.text((MARGIN, y + 5.5), text, SMALL, mono=True, color=pen.of(MUTED))
    title = f"attention of {len(attention.heads)} heads"
    height = (y + 13 + MARGIN) / POINTS
    return Figure(title, "".join(body) + bar + shown, width, height, theme)


def sweep_map(sweep: "PatchSweep", *, width: Length = COLUMN, theme: Theme = "light") -> Figure:
    """The effect of patching every node at every position, as `ps.patch_sweep` measured it.

    Args:
        sweep: From `ps.patch_sweep`.
        width: In inches.
        theme: "light" or "dark".
    """
    return heat_map(
        sweep.effect,
        sweep.nodes,
        sweep.tokens,
        title=f"patch sweep of {sweep.model}",
        value_label=f"effect on {sweep.metric}",
        scale="diverging",
        width=width,
        theme=theme,
    )


def composition_map(
    composition: "Composition", *, width: Length = COLUMN, theme: Theme = "light"
) -> Figure:
    """Q-, K- and V-composition of all pairs of heads, as z against random rotations.

    Rows write, columns read. Blue pairs share more directions than random heads, orange pairs
    fewer.

    Args:
        composition: From `ps.composition(model)`.
        width: In inches.
        theme: "light" or "dark".
    """
    pen, wide = Pen(theme), width * POINTS
    n_layers = 1 + max((head.layer for head in composition.heads), default=0)
    writers = [i for i, head in enumerate(composition.heads) if head.layer < n_layers - 1]
    readers = [i for i, head in enumerate(composition.heads) if head.layer > 0]
    kinds = {"Q": composition.q, "K": composition.k, "V": composition.v}
    maps = {name: scores.z[writers][:, readers].tolist() for name, scores in kinds.items()}
    extent = max(map(_extent, maps.values()))
    names = [str(composition.heads[i]) for i in writers]
    left = MARGIN + 9 + _label_room(names, 60, mono=False) + 3
    gap = 7.0
    across = (wide - left - MARGIN - 2 * gap) / 3
    cell = across / max(len(readers), 1)
    tall = min(max(cell, 1.0), 14.0)
    reading = [str(composition.heads[i]) for i in readers]
    top = MARGIN + 12 + _column_room(reading, cell, 20)
    down = tall * len(writers)
    body = [vertical_label(pen, (MARGIN + 5, top + down / 2), "writer")]
    body.append(row_names(pen, names, (left - 3, top), tall, 60))
    for place, (name, values) in enumerate(maps.items()):
        x = left + place * (across + gap)
        body.append(pen.text((x + across / 2, MARGIN + 7), name, TITLE, anchor="middle"))
        body.append(column_names(pen, reading, (x, top - 3), cell, 20))
        body.append(pen.cells(values, (x, top), (cell, tall), "diverging", extent))
        body.append(pen.rect((x, top), (across, down), "none", stroke=pen.of(LINE)))
    middle = (left + wide - MARGIN) / 2
    body.append(pen.text((middle - 60, top + down + 9), "reader", LABEL, color=pen.of(INK)))
    bar = color_bar(pen, (wide - MARGIN - 72, top + down + 6), 60, "diverging", extent, "z")
    height = (top + down + 19 + MARGIN) / POINTS
    title = f"composition of {composition.model}"
    return Figure(title, "".join(body) + bar, width, height, theme)
