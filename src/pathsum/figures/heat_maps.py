"""Heat maps: attention patterns, patch sweeps, composition scores, and any other matrix."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pathsum.base.options import parse_choice, parse_count
from pathsum.figures import svg
from pathsum.figures.figure import Figure, color_bar, page, vertical_label
from pathsum.figures.svg import MARGIN, Length, Pen, Point, Theme, clip_text, text_width

if TYPE_CHECKING:
    from torch import Tensor

    from pathsum.circuits import Composition
    from pathsum.heads.attention import Attention
    from pathsum.paths import Lens, PatchSweep

# The largest share of the width for labels, and the least distance between labels.
LABEL_SHARE, LABEL_PITCH = 0.24, 5.6
SCALES: tuple[svg.Scale, ...] = ("sequential", "diverging")


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
    scale: svg.Scale | str = "sequential",
    extent: Length | None = None,
    square: bool = False,
    mono_rows: bool = False,
    width: Length = svg.COLUMN,
    theme: Theme = "light",
) -> Figure:
    """A matrix as colored cells, with names of rows and columns.

    Args:
        values: [row, column]; NaN leaves a cell empty.
        rows: Names of rows, from the top.
        columns: Names of columns, usually tokens.
        title: Above the figure.
        row_label: The quantity of the rows; likewise `column_label` for the columns.
        value_label: The quantity of the colors, next to the color bar.
        texts: A text for each cell, such as the top token of a lens.
        scale: "sequential" (0 to `extent`) or "diverging" (−`extent` to `extent`).
        extent: The value of the strongest color; default: the largest magnitude.
        square: Whether cells are as high as they are wide.
        mono_rows: Whether rows are tokens.
        width: In inches.
        theme: "light" or "dark".

    Example:
        >>> heat_map([[0.1, 0.9]], ["L0"], ["a", "b"], title="a lens")
        Figure('a lens', 3.3 × 0.875 in)
    """
    kind: svg.Scale = parse_choice(SCALES, scale, "scale")
    matrix = [[float(value) for value in row] for row in values]
    pen = Pen(theme, width)
    extent = _extent(matrix) if extent is None else extent
    room = LABEL_SHARE * pen.wide
    left = MARGIN + (9 if row_label else 0) + _label_room(rows, room, mono_rows) + 3
    across = pen.wide - left - MARGIN
    cell = across / max(len(columns), 1)
    tall = cell if square else min(max(cell * 0.6, 7.5 if texts else 6.0), 12.0)
    above = MARGIN + (12 if title else 0)
    top = above + (10 if column_label else 0) + _column_room(columns, cell, 0.7 * room)
    down = tall * len(rows)
    body = pen.cells(matrix, (left, top), (cell, tall), kind, extent)
    body += pen.frame((left, top), (across, down))
    body += pen.title(title) if title else ""
    body += _axis_labels(pen, (left + across / 2, above), column_label, top + down / 2, row_label)
    body += row_names(pen, rows, (left - 3, top), tall, room, mono_rows)
    body += column_names(pen, columns, (left, top - 3), cell, 0.7 * room)
    body += _cell_texts(pen, texts or (), matrix, (left, top), (cell, tall), kind, extent)
    end = top + down + 7
    body += color_bar(pen, (left + across - 66, end), 60, kind, extent, value_label)
    return page(pen, title or "heat map", body, end + 12, heading="")


def _axis_labels(pen: Pen, above: Point, column_label: str, middle: Length, row_label: str) -> str:
    """A label above the columns and a label that reads upward along the rows, if any."""
    x, y = above
    body = (
        pen.text((x, y + 6), column_label, anchor="middle", color=svg.MUTED) if column_label else ""
    )
    return body + (vertical_label(pen, (MARGIN + 5, middle), row_label) if row_label else "")


def _cell_texts(
    pen: Pen,
    texts: Sequence[Sequence[str]],
    values: Sequence[Sequence[float]],
    at: Point,
    cell: Point,
    scale: svg.Scale,
    extent: Length,
) -> str:
    """A text in each cell, in black or white on the color of the cell."""
    size, body = min(svg.SMALL, cell[1] * 0.7), ""
    for row, line in enumerate(texts):
        for column, text in enumerate(line):
            position = (at[0] + (column + 0.5) * cell[0], at[1] + (row + 0.68) * cell[1])
            label = clip_text(text, cell[0] - 0.5, size, mono=True)
            value = values[row][column]
            share = value / extent if math.isfinite(value) else 0.0
            ink = svg.ink_on(svg.color_at(share, scale, pen.theme))
            body += pen.text(position, label, size, anchor="middle", mono=True, color=ink)
    return body


def _extent(matrix: list[list[float]]) -> float:
    finite = [abs(value) for row in matrix for value in row if math.isfinite(value)]
    return max(finite, default=0.0) or 1.0


def _label_room(names: Sequence[str], room: Length, mono: bool) -> float:
    return min(max((text_width(name, svg.SMALL, mono) for name in names), default=0.0), room)


def _column_room(names: Sequence[str], cell: Length, room: Length) -> float:
    """The height of the column names: one line if they fit side by side."""
    widest = max((text_width(name, svg.SMALL, mono=True) for name in names), default=0.0)
    return 8.0 if widest < cell - 1 else min(widest, room) + 3


def row_names(
    pen: Pen, names: Sequence[str], at: Point, pitch: Length, room: Length, mono: bool = False
) -> str:
    """Names to the left of rows; if rows are narrow, only of every second or third row."""
    body = ""
    for row in range(0, len(names), max(1, math.ceil(LABEL_PITCH / pitch))):
        name, y = clip_text(names[row], room, svg.SMALL, mono), at[1] + (row + 0.5) * pitch + 1.9
        body += pen.text((at[0], y), name, svg.SMALL, anchor="end", mono=mono)
    return body


def column_names(pen: Pen, names: Sequence[str], at: Point, pitch: Length, room: Length) -> str:
    """Tokens above columns; upright if they do not fit side by side."""
    flat = max((text_width(n, svg.SMALL, mono=True) for n in names), default=0.0) < pitch - 1
    step = 1 if flat else max(1, math.ceil(LABEL_PITCH / pitch))
    body = ""
    for column in range(0, len(names), step):
        x, name = at[0] + (column + 0.5) * pitch, names[column]
        if flat:
            body += pen.text((x, at[1]), name, svg.SMALL, anchor="middle", mono=True)
        else:
            text = clip_text(name, room, svg.SMALL, mono=True)
            body += pen.text((x + 1.9, at[1]), text, svg.SMALL, mono=True, turn=-90)
    return body


def attention_map(
    attention: "Attention", *, width: Length = svg.COLUMN, theme: Theme = "light"
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
    width: Length = 2 * svg.COLUMN,
    theme: Theme = "light",
) -> Figure:
    """The top tokens that a lens reads from every layer, at the last positions of a text.

    Colors are the logit of the top token, relative to the mean over the vocabulary.

    Args:
        lens: From `trace.lens()`.
        readout: "direct" (the logit lens) or "held".
        k: The number of positions up to the position of the lens.
        width: In inches.
        theme: "light" or "dark".
    """
    parse_choice(("direct", "held"), readout, "readout")
    rows = lens.direct if readout == "direct" else lens.held
    at = slice(max(0, lens.position + 1 - parse_count(k, "positions")), lens.position + 1)
    tops = [row[at] for row in reversed(rows)]
    return heat_map(
        [[max(0.0, top.logit) for top in row] for row in tops],
        [f"residual{layer}" for layer in reversed(range(len(rows)))],
        lens.context[at],
        title=f"{lens.model}: {readout} lens",
        row_label="stream",
        column_label="position",
        value_label="logit",
        texts=[[top.token for top in row] for row in tops],
        width=width,
        theme=theme,
    )


def _attention_tiles(attention: "Attention", width: Length, theme: Theme) -> Figure:
    pen, gap = Pen(theme, width), 5.0
    layers: dict[int, list[int]] = {}
    for index, head in enumerate(attention.heads):
        layers.setdefault(head.layer, []).append(index)
    most = min(max(map(len, layers.values())), 8)
    across = pen.wide - 2 * MARGIN
    tile = min((across - gap * (most - 1)) / most, 110.0)
    cell = tile / len(attention.tokens)
    body, y = "", MARGIN
    for indices in layers.values():
        for column, index in enumerate(indices):
            if column and column % most == 0:
                y += tile + 8 + gap
            x = MARGIN + column % most * (tile + gap)
            body += pen.text((x, y + 6), attention.heads[index])
            values = attention.patterns[index].tolist()
            body += pen.cells(values, (x, y + 8), (cell, cell), "sequential", 1.0)
            body += pen.frame((x, y + 8), (tile, tile))
        y += tile + 8 + gap
    body += color_bar(pen, (MARGIN + across - 66, y + 1), 60, "sequential", 1.0, "attention")
    text = clip_text("".join(attention.tokens), across - 118, svg.SMALL, mono=True)
    body += pen.text((MARGIN, y + 5.5), text, svg.SMALL, mono=True, color=svg.MUTED)
    return page(pen, f"attention of {len(attention.heads)} heads", body, y + 13, heading="")


def sweep_map(sweep: "PatchSweep", *, width: Length = svg.COLUMN, theme: Theme = "light") -> Figure:
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
    composition: "Composition", *, width: Length = svg.COLUMN, theme: Theme = "light"
) -> Figure:
    """Q-, K- and V-composition of all pairs of heads, as z against random rotations.

    Rows write, columns read. Blue pairs share more directions than random heads, orange pairs
    fewer.

    Args:
        composition: From `ps.composition(model)`.
        width: In inches.
        theme: "light" or "dark".
    """
    pen, gap = Pen(theme, width), 7.0
    n_layers = 1 + max((head.layer for head in composition.heads), default=0)
    writers = [i for i, head in enumerate(composition.heads) if head.layer < n_layers - 1]
    readers = [i for i, head in enumerate(composition.heads) if head.layer > 0]
    kinds = {"Q": composition.q, "K": composition.k, "V": composition.v}
    maps = {name: scores.z[writers][:, readers].tolist() for name, scores in kinds.items()}
    extent = max(map(_extent, maps.values()))
    row_labels, column_labels = (
        [str(composition.heads[i]) for i in indices] for indices in (writers, readers)
    )
    left = MARGIN + 9 + _label_room(row_labels, 60, mono=False) + 3
    across = (pen.wide - left - MARGIN - 2 * gap) / 3
    cell = across / max(len(readers), 1)
    tall = min(max(cell, 1.0), 14.0)
    top = MARGIN + 12 + _column_room(column_labels, cell, 20)
    down = tall * len(writers)
    body = vertical_label(pen, (MARGIN + 5, top + down / 2), "writer")
    body += row_names(pen, row_labels, (left - 3, top), tall, 60)
    for index, (name, values) in enumerate(maps.items()):
        x = left + index * (across + gap)
        body += pen.text((x + across / 2, MARGIN + 7), name, svg.TITLE, anchor="middle")
        body += column_names(pen, column_labels, (x, top - 3), cell, 20)
        body += pen.cells(values, (x, top), (cell, tall), "diverging", extent)
        body += pen.frame((x, top), (across, down))
    body += pen.text(((left + pen.wide - MARGIN) / 2 - 60, top + down + 9), "reader")
    corner = (pen.wide - MARGIN - 72, top + down + 6)
    body += color_bar(pen, corner, 60, "diverging", extent, "z")
    title = f"composition of {composition.model}"
    return page(pen, title, body, top + down + 19, heading="")
