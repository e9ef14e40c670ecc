"""Figures of the paper as SVG: each a function of a result, drawn without other libraries.

In reading order:

svg        elements, text widths, and the colors shared with the explorer
figure     `Figure`: shown in a notebook, saved as SVG, PNG or PDF; axes, legends, color bars
heat_maps  `heat_map`, `attention_map`, `sweep_map`, `composition_map`, `lens_map`
spectra    `eigenvalue_plane`, `eigenvalue_histogram`, `induction_scatter`
bars       `term_bars`, `logit_waterfall`, `training_curves`
graphs     `composition_graph`, `circuit_graph`

`figure_of(result)` selects the figure of a result; `result.figure()` does the same. Figures are
drawn from the public fields of results, without computing on a model.
"""

from collections.abc import Callable
from typing import Any

from pathsum.base.record import Record
from pathsum.figures.bars import logit_waterfall, term_bars, training_curves
from pathsum.figures.figure import Figure, NoFigureError, check_figure
from pathsum.figures.graphs import circuit_graph, composition_graph
from pathsum.figures.heat_maps import (
    attention_map,
    composition_map,
    heat_map,
    lens_map,
    sweep_map,
)
from pathsum.figures.spectra import eigenvalue_histogram, eigenvalue_plane, induction_scatter
from pathsum.figures.svg import COLUMN, Theme

__all__ = [
    "COLUMN",
    "Figure",
    "NoFigureError",
    "Theme",
    "attention_map",
    "check_figure",
    "circuit_graph",
    "composition_graph",
    "composition_map",
    "eigenvalue_histogram",
    "eigenvalue_plane",
    "figure_of",
    "heat_map",
    "induction_scatter",
    "lens_map",
    "logit_waterfall",
    "show_figure",
    "sweep_map",
    "term_bars",
    "training_curves",
]


def _copying(copying: Any, **options: Any) -> Figure:
    if len(copying.heads) == 1:
        return eigenvalue_plane(copying.heads[0], **options)
    return eigenvalue_histogram(copying, **options)


def _head_card(card: Any, **options: Any) -> Figure:
    if card.copying is None:
        raise NoFigureError(
            f"{card.head} has no eigenvalues to draw: its outputs are not its input tokens"
        )
    return _copying(card.copying, **options)


def _paths(explanation: Any, **options: Any) -> Figure:
    return logit_waterfall(explanation.toward, **options)


_BY_KIND: dict[str, Callable[..., Figure]] = {
    "attention": attention_map,
    "atlas": induction_scatter,
    "circuit": circuit_graph,
    "composition": composition_map,
    "composition-edges": composition_graph,
    "copying": _copying,
    "dynamics": training_curves,
    "head-card": _head_card,
    "head-copying": eigenvalue_plane,
    "induction": induction_scatter,
    "lens": lens_map,
    "patch-sweep": sweep_map,
    "paths": _paths,
    "term-importance": term_bars,
    "toward": logit_waterfall,
}
"""The figure of each kind of record; by kind, because types would import every package."""


def show_figure(result: Record) -> str:
    """The figure of a result as HTML; empty for a result without one."""
    if result.record_kind not in _BY_KIND:
        return ""
    try:
        return f"<div>{figure_of(result).to_svg()}</div>"
    except NoFigureError:
        return ""


def figure_of(result: Record, **options: Any) -> Figure:
    """The figure of a result.

    Args:
        result: A result of pathsum, such as a circuit or a patch sweep.
        options: Options of the figure's function: `width` in inches, `theme`, and for some `k`.

    Returns:
        The figure; NoFigureError if this kind of result has none.

    Example:
        >>> import pathsum as ps
        >>> trace = ps.construct.induction().trace("a b c a")
        >>> figure_of(trace.circuit())
        Figure("circuit of hand-built induction: 'b', +9.63 logits", 3.3 × 2.92 in)
    """
    draw = _BY_KIND.get(getattr(result, "record_kind", ""))
    if draw is None:
        raise NoFigureError(
            f"a {type(result).__name__} has no figure; results with one are "
            + ", ".join(sorted(_BY_KIND))
        )
    return draw(result, **options)
