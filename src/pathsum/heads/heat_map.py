"""A heat map for the terminal: layers as rows, heads as columns, one character pair a head."""

from collections.abc import Mapping

from rich.text import Text

from pathsum.model import HeadId

SHADES = " ░▒▓█"


def heat_map(title: str, values: Mapping[HeadId, float], ceiling: float = 1.0) -> Text:
    """Values of heads as shades, from 0 to the ceiling; what is negative shows as empty."""
    layers = sorted({head.layer for head in values})
    n_heads = 1 + max(head.head for head in values)
    lines = [title, "     " + "".join(f"{head:<3}" for head in range(n_heads))]
    for layer in layers:
        cells = [_shade(values[HeadId(layer, head)] / ceiling) for head in range(n_heads)]
        lines.append(f"L{layer:<3} " + "".join(f"{cell} " for cell in cells))
    return Text("\n".join(lines))


def _shade(share: float) -> str:
    level = round(max(0.0, min(1.0, share)) * (len(SHADES) - 1)) if share == share else 0
    return SHADES[level] * 2
