"""The figures of the guide: draw them all, or those named, into docs/pictures.

    python -m scripts.docs_figures              # all
    python -m scripts.docs_figures composition  # one
    python -m scripts.docs_figures --live       # the live figures of the site, into build/live

`tests/test_docs.py` draws the quick ones again and compares them with the files. A live figure is
one view of the explorer with the model inside (`pathsum report --fragment`). The site shows it in
place of the line `<!-- live: NAME -->` of a page.
"""

import io
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from scripts import calibrate
from scripts.docs_outputs import blocks

import pathsum as ps
from pathsum.figures import Figure
from pathsum.paths import by_head
from pathsum.text.shards import spaced

ROOT = Path(__file__).parent.parent
PICTURES, LIVE_FIGURES = ROOT / "docs" / "pictures", ROOT / "build" / "live"
TILLERMAN = "Mr. and Mrs. Tillerman kept the lighthouse. Mr. Tiller"
DURSLEY = "Mr. and Mrs. Dursley of number four were proud to say they were normal. Mr. Durs"
STATUS = "self.assertEqual(response.status_"
QUIXEL = "self.quixel = quixel\n        return self.quix"


def terms(model: ps.Model) -> Figure:
    """As `pathsum terms two-layer --split heads`."""
    tokens = model.held_out
    assert tokens is not None
    some = tokens[spaced(len(tokens), 10)]
    return ps.term_importance(model, some, sets=by_head(model)).figure()


def prompts(_: ps.Model) -> Figure:
    """The mean circuit of the page on prompts, whose first block makes it."""
    page = (ROOT / "docs" / "prompts.md").read_text(encoding="utf-8")
    namespace: dict[str, Any] = {}
    with redirect_stdout(io.StringIO()):
        exec(next(blocks(page)).code, namespace)  # noqa: S102
    return namespace["mean"].figure()


FIGURES: dict[str, Callable[[ps.Model], Figure]] = {
    "attention": lambda model: ps.attention(model.trace(TILLERMAN), "L1H0").figure(),
    "dursley": lambda model: ps.attention(model.trace(DURSLEY)).figure(),
    "composition": lambda model: ps.composition(model).edges(max_p=0.01).figure(),
    "composition-map": lambda model: ps.composition(model).figure(),
    "waterfall": lambda model: model.trace(TILLERMAN).paths().toward(versus="mean").figure(),
    "eigenvalues": lambda model: ps.copying(model)["L1H0"].figure(),
    "eigenvalue-histogram": lambda model: ps.copying(model).figure(),
    "induction-scatter": lambda model: ps.atlas(model).figure(),
    "terms": terms,
    "circuit": lambda model: model.trace(TILLERMAN).circuit().figure(),
    "why": lambda model: model.trace(QUIXEL).circuit(token="el", threshold=0.05).figure(),
    "mlps": lambda _: ps.load("one-layer-bilinear").trace(STATUS).circuit(threshold=0.08).figure(),
    "prompts": prompts,
    "training": lambda _: ps.dynamics("two-layer").figure(),
    "calibration": lambda _: calibrate.figure(calibrate.read_kept()),
}
LIVE = {"story": TILLERMAN, "text": DURSLEY, "why": QUIXEL, "paths": TILLERMAN}
"""The text of each live figure, by view."""
QUICK = (
    *("attention", "composition", "composition-map", "eigenvalue-histogram"),
    *("mlps", "prompts", "waterfall"),
)


def write_live(view: str) -> None:
    """A live figure of `two-layer` as an HTML page of its own, for a frame."""
    file = LIVE_FIGURES / f"{view}.html"
    ps.report("two-layer", file, texts=[LIVE[view]], views=[view], fragment=True)
    text = file.read_text(encoding="utf-8")
    file.write_text(f'<!doctype html><meta charset="utf-8"><body>{text}', encoding="utf-8")


def main(names: list[str]) -> None:
    """Draw figures by name."""
    if names == ["--live"]:
        LIVE_FIGURES.mkdir(parents=True, exist_ok=True)
        for view in LIVE:
            write_live(view)
        return
    model = ps.load("two-layer")
    for name in names or FIGURES:
        FIGURES[name](model).save(PICTURES / f"{name}.svg")


if __name__ == "__main__":
    main(sys.argv[1:])
