"""The atlas as a heat map for a page: one row a head, one column a score, all of it inline."""

import html
import math
from typing import TYPE_CHECKING

from pathsum.heads.verdicts import ALPHA

if TYPE_CHECKING:
    from pathsum.heads.atlas import Atlas, HeadEntry
    from pathsum.heads.kinds.kind import ScoreInfo
    from pathsum.heads.score import Score


def atlas_html(found: "Atlas") -> str:
    """A table whose cells are shaded by value; what chance explains is gray.

    Hovering a cell tells value, error, chance and p; a heading tells the score's formula, a kind
    its evidence. Every string is escaped and nothing is loaded from anywhere.
    """
    shown = [
        info for info in found.infos if any(info.name in entry.scores for entry in found.heads)
    ]
    headings = "".join(
        f'<th title="{html.escape(info.formula)}" style="vertical-align:bottom;'
        f'font-weight:normal;padding:2px 4px">{html.escape(info.title)}</th>'
        for info in shown
    )
    rows = "".join(_row(entry, shown) for entry in found.heads)
    return (
        '<div class="pathsum-atlas" style="overflow-x:auto">'
        '<table style="border-collapse:collapse;font-size:12px">'
        f"<caption>heads of {html.escape(found.model)}</caption>"
        f'<thead><tr><th>head</th><th style="text-align:left">kind</th>{headings}</tr></thead>'
        f"<tbody>{rows}</tbody></table><p>{html.escape(found.note)}</p></div>"
    )


def _row(entry: "HeadEntry", shown: "list[ScoreInfo]") -> str:
    evidence = html.escape("\n".join(entry.evidence) or "no score passes its threshold")
    cells = "".join(_cell(entry.scores.get(info.name), info) for info in shown)
    return (
        f'<tr><th style="font-weight:normal">{entry.head}</th>'
        f'<td title="{evidence}" style="white-space:nowrap;text-align:left;padding:2px 4px">'
        f"{html.escape(entry.kind)}</td>{cells}</tr>"
    )


def _cell(score: "Score | None", info: "ScoreInfo") -> str:
    """Orange as far as the value goes towards its ceiling, gray where chance explains it."""
    if score is None or math.isnan(score.value):
        return '<td style="text-align:center">–</td>'
    ceiling = info.ceiling if math.isfinite(info.ceiling) else 1.0
    share = max(0.0, min(1.0, score.value / ceiling))
    color = "224,138,30" if score.p <= ALPHA else "128,128,128"
    # A star beside the number, so that color is not all that tells.
    value = f"{round(score.value, 2) + 0.0:.2f}"  # what rounds to zero has no sign
    star = "*" if score.p <= ALPHA and score.value >= info.threshold else ""
    return (
        f'<td title="{html.escape(f"{info.title}: {score}")}" style="text-align:right;'
        f'padding:2px 4px;background:rgba({color},{share:.2f})">{value}{star}</td>'
    )
