"""The atlas of SmolLM2 as a page of the guide: docs/atlas-smollm2.md and its picture.

    python scripts/atlas_page.py

Everything on the page is what `ps.atlas(ps.load("smollm2"))` found.
"""

import html
import math
from pathlib import Path

import pathsum as ps
from pathsum.base.estimate import format_p
from pathsum.base.options import list_some
from pathsum.heads.atlas import Atlas
from pathsum.heads.score import ScoreInfo

DOCS = Path(__file__).parent.parent / "docs"
PICTURE = "pictures/atlas-smollm2.svg"
SHOWN = ("previous_token", "induction", "prefix_matching", "duplicate_token", "first_token")
STRONGEST = 4
# Pixels of one head, and of what is left and above.
CELL, LEFT, TOP = 12, 26, 30

PAGE = """# The atlas of SmolLM2

Which heads of SmolLM2-135M do what? This page, written by `scripts/atlas_page.py`, summarizes the
[atlas](heads.md) of all 270 heads; `pathsum atlas smollm2` prints all scores.

![Five scores of every head: layers from top to bottom, heads from left to right]({picture})

Orange: p ≤ {alpha:g} against random rotations of the same head; gray: not significant. Opacity is
the score, from 0 to 1.

## Kinds

"Mixed" heads have evidence from data only: in a deep model, heads mostly read the output of other
components, whereas scores from weights use embeddings. "Unknown" heads pass no threshold.

| kind | heads | labels |
|---|---|---|
{kinds}

## The strongest heads of each score

| score | value (null), and p if it is not below 1 in 200 |
|---|---|
{scores}

{absent}{note}
"""


def main() -> None:
    """Measure, and write the page and the picture."""
    found = ps.atlas(ps.load("smollm2"))
    (DOCS / PICTURE).write_text(picture(found), encoding="utf-8")
    (DOCS / "atlas-smollm2.md").write_text(page(found), encoding="utf-8")


def page(found: Atlas) -> str:
    """The page as Markdown."""
    kinds: dict[str, list[str]] = {}
    for entry in found.heads:
        kinds.setdefault(entry.kind, []).append(str(entry.head))
    ranked = sorted(kinds.items(), key=lambda item: (item[0] in ("mixed", "unknown"), item[0]))
    rows = [f"| {kind} | {len(heads)} | {list_some(heads, 12)} |" for kind, heads in ranked]
    scores = [
        f"| {info.title} | {_strongest(found, info)} |"
        for info in found.infos
        if info.name not in found.absent
    ]
    on_text = [why for name, why in found.absent.items() if name.endswith("_text")]
    absent = "".join(
        f"No `{name}`: {why}.\n" for name, why in found.absent.items() if why not in on_text
    )
    absent += f"No scores on text: {on_text[0]}.\n" if on_text else ""
    return PAGE.format(
        picture=PICTURE,
        alpha=found.alpha,
        kinds="\n".join(rows),
        scores="\n".join(scores),
        absent=absent + "\n" if absent else "",
        note=found.note,
    )


def _strongest(found: Atlas, info: ScoreInfo) -> str:
    known = [
        (entry.head, entry.scores[info.name])
        for entry in found.heads
        if info.name in entry.scores and not math.isnan(entry.scores[info.name].value)
    ]
    known.sort(key=lambda pair: -pair[1].value)
    shown: list[str] = []
    for head, score in known[:STRONGEST]:
        chance = "" if score.null is None else f" ({score.null:.2f})"
        notable = score.p is not None and score.p >= 1 / 200
        p = f", {format_p(score.p, score.draws)}" if notable else ""
        shown.append(f"{head} {score.value:.2f}{chance}{p}")
    return "; ".join(shown)


def picture(found: Atlas) -> str:
    """Grids of layers × heads, one per score, as SVG."""
    last = found.heads[-1].head
    width, height = (last.head + 1) * CELL, (last.layer + 1) * CELL
    titles = {info.name: info.title for info in found.infos}
    parts: list[str] = []
    for place, name in enumerate(SHOWN):
        left = LEFT + place * (width + CELL * 2)
        parts.append(f'<text x="{left}" y="{TOP - 10}">{html.escape(titles[name])}</text>')
        for entry in found.heads:
            score = entry.scores[name]
            beyond = score.p is not None and score.p <= found.alpha
            x, y = left + entry.head.head * CELL, TOP + entry.head.layer * CELL
            parts.append(
                f'<rect x="{x}" y="{y}" width="{CELL - 1}" height="{CELL - 1}" '
                f'fill="{"#e08a1e" if beyond else "#808080"}" '
                f'fill-opacity="{max(0.04, min(1.0, score.value)):.2f}">'
                f"<title>{entry.head}: {score.value:.2f}</title></rect>"
            )
    parts += [
        f'<text x="2" y="{TOP + layer * CELL + CELL - 2}">L{layer}</text>'
        for layer in range(0, last.layer + 1, 5)
    ]
    across = LEFT + len(SHOWN) * (width + CELL * 2)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{across}" height="{TOP + height + 4}" '
        'font-family="sans-serif" font-size="10" fill="#808080">' + "\n".join(parts) + "</svg>\n"
    )


if __name__ == "__main__":
    main()
