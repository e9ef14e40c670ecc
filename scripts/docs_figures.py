"""The figures of the guide: draw them all, or those named, into docs/pictures.

    python -m scripts.docs_figures              # all
    python -m scripts.docs_figures composition  # one

`tests/test_docs.py` draws the quick ones again and compares them with the files.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import pathsum as ps
from pathsum.figures import Figure
from pathsum.paths import by_head
from pathsum.text.shards import spaced

PICTURES = Path(__file__).parent.parent / "docs" / "pictures"
TILLERMAN = "Mr. and Mrs. Tillerman kept the lighthouse. Mr. Tiller"
DURSLEY = "Mr. and Mrs. Dursley of number four were proud to say they were normal. Mr. Durs"
QUIXEL = "self.quixel = quixel\n        return self.quix"


def terms(model: ps.Model) -> Figure:
    """As `pathsum terms two-layer --split heads`."""
    tokens = model.held_out
    assert tokens is not None
    some = tokens[spaced(len(tokens), 10)]
    return ps.term_importance(model, some, sets=by_head(model)).figure()


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
    "training": lambda _: ps.dynamics("two-layer").figure(),
}
QUICK = ("attention", "composition", "composition-map", "waterfall", "eigenvalue-histogram")


def main(names: list[str]) -> None:
    """Draw figures by name."""
    model = ps.load("two-layer")
    for name in names or FIGURES:
        FIGURES[name](model).save(PICTURES / f"{name}.svg")


if __name__ == "__main__":
    main(sys.argv[1:])
