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
from math import nan
from pathlib import Path
from typing import Any

import torch
from scripts import calibrate
from scripts.docs_outputs import blocks

import pathsum as ps
from pathsum.circuits import token_ov, token_qk, virtual_weights
from pathsum.claims.paper import STATEMENTS
from pathsum.figures import Figure, heat_map
from pathsum.paths import by_head
from pathsum.text.shards import spaced

ROOT = Path(__file__).parent.parent
PICTURES, LIVE_FIGURES = ROOT / "docs" / "pictures", ROOT / "build" / "live"
TILLERMAN = "Mr. and Mrs. Tillerman kept the lighthouse. Mr. Tiller"
DURSLEY = "Mr. and Mrs. Dursley of number four were proud to say they were normal. Mr. Durs"
STATUS = "self.assertEqual(response.status_"
DURSMAN = "Mr. and Mrs. Dursman kept the lighthouse. Mr. Tiller"
QUIXEL = "self.quixel = quixel\n        return self.quix"


def terms(model: ps.Model) -> Figure:
    """As `pathsum terms two-layer --split heads`."""
    tokens = model.held_out
    assert tokens is not None
    some = tokens[spaced(len(tokens), 10)]
    return ps.term_importance(model, some, sets=by_head(model)).figure()


def sweep(model: ps.Model) -> Figure:
    """The sweep of the page on interventions, for all heads."""
    heads = [head.label for head in model.heads]
    found = ps.patch_sweep(model, TILLERMAN, DURSMAN, token="man", versus="mean", nodes=heads)
    return found.figure(width=5.0)


def stream(model: ps.Model) -> Figure:
    """The norm of each component's output at each position."""
    trace = model.trace("Mr. and Mrs. Dursley were proud. Mr. Durs")
    names = ["embed", *(head.label for head in model.heads)]
    norms = torch.stack([trace.written(name)[0].norm(dim=-1) for name in names])
    title = "norm of each component's output"
    return heat_map(norms, names, trace.token_texts[0], title=title, value_label="norm")


def virtual(model: ps.Model) -> Figure:
    """The size of virtual weights, compared with random rotations."""
    writers = ["embed", *(head.label for head in model.heads)]
    readers = [f"L1H{head}.{side}" for head in range(4) for side in "qkv"] + ["logits"]
    values = [
        [
            nan if writer[:2] == reader[:2] else virtual_weights(model, writer, reader).z
            for reader in readers
        ]
        for writer in writers
    ]
    title = "virtual weights against random rotations"
    return heat_map(
        values,
        writers,
        readers,
        title=title,
        row_label="writes",
        column_label="reads",
        value_label="z",
        scale="diverging",
        extent=20.0,
    )


def bigrams(_: ps.Model) -> Figure:
    """Probabilities of the direct path of `zero-layer` after some tokens."""
    found = ps.bigram(ps.load("zero-layer"))
    rows = [
        found.after(token, k=1000) for token in ("import", " return", " is", " of", "self", "def")
    ]
    columns = list(dict.fromkeys(each.token.text for row in rows for each in row.likely[:2]))
    shown = [{each.token.text: each.value for each in row.likely} for row in rows]
    values = [[row.get(column, 0.0) for column in columns] for row in shown]
    names = [row.token.text for row in rows]
    return heat_map(
        values,
        names,
        columns,
        title="zero-layer: W_E W_U",
        row_label="token",
        column_label="next",
        value_label="probability",
        mono_rows=True,
    )


TOKENS = ("self", "import", " return", " the", " of", " None", " if", " and", "(", ".")


def circuits(model: ps.Model, name: str) -> Figure:
    """QK through the previous-token head, or OV, of L1H0 between some tokens."""
    ids = [model.token_id(token) for token in TOKENS]
    texts = [model.token_text(token) for token in ids]
    if name == "QK":
        circuit = token_qk(model, "L1H0", key_through=ps.Path("embed", ["L0H3"]))
        row, column = "destination", "token before the source"
    else:
        circuit = token_ov(model, "L1H0")
        row, column = "source", "output"
    values = torch.stack([circuit.row(token)[ids] for token in ids])
    title = f"L1H0: {name}" + (" through L0H3" if name == "QK" else "")
    return heat_map(
        values,
        texts,
        texts,
        title=title,
        row_label=row,
        column_label=column,
        scale="diverging",
        mono_rows=True,
    )


def bugs(_: ps.Model) -> Figure:
    """Two skip-trigrams in one head, and the two combinations that it cannot avoid."""
    model = ps.load("hand-built-bugs")
    keep, rows, columns = model.token_id("keep"), ("in", "at", "the"), ("mind", "bay", "door")
    attention = token_qk(model, "L0H0").column(keep)[[model.token_id(name) for name in rows]]
    effect = token_ov(model, "L0H0").row(keep)[[model.token_id(name) for name in columns]]
    texts = [["intended", "bug", ""], ["bug", "intended", ""], ["", "", ""]]
    values = attention[:, None] * effect
    return heat_map(
        values,
        rows,
        columns,
        title="one head",
        row_label="keep …",
        column_label="output",
        value_label="QK · OV",
        texts=texts,
    )


def claims(_: ps.Model) -> Figure:
    """The verdict of each claim on each of five seeds."""
    shade = {"holds": 1.0, "partly": 0.5, "does not hold": 0.0}
    found = [one for _, one in STATEMENTS]
    rows = [
        [
            nan if each.value is None else shade[one.rule.verdict(each.value)]
            for each in one.seeds().seeds
        ]
        for one in found
    ]
    title, label = "claims over seeds", "1 holds, ½ partly, 0 does not hold"
    names, seeds = [one.id for one in found], [f"seed {seed}" for seed in range(5)]
    return heat_map(rows, names, seeds, title=title, value_label=label, extent=1.0)


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
    "lens": lambda model: model.trace(QUIXEL).lens().figure(),
    "sweep": sweep,
    "stream": stream,
    "virtual-weights": virtual,
    "bigrams": bigrams,
    "qk": lambda model: circuits(model, "QK"),
    "ov": lambda model: circuits(model, "OV"),
    "bugs": bugs,
    "claims": claims,
    "mlps": lambda _: ps.load("one-layer-bilinear").trace(STATUS).circuit(threshold=0.08).figure(),
    "prompts": prompts,
    "training": lambda _: ps.dynamics("two-layer").figure(),
    "calibration": lambda _: calibrate.figure(calibrate.read_kept()),
}
LIVE = {"story": TILLERMAN, "text": DURSLEY, "why": QUIXEL, "paths": TILLERMAN}
"""The text of each live figure, by view."""
QUICK = (
    *("attention", "composition", "composition-map", "eigenvalue-histogram"),
    *("lens", "mlps", "prompts", "sweep", "waterfall"),
)


def write_live(view: str) -> None:
    """A live figure of `two-layer` as an HTML page of its own, for a frame."""
    file = LIVE_FIGURES / f"{view}.html"
    ps.report("two-layer", file, texts=[LIVE[view]], views=[view], fragment=True)
    # The frame decides the height, and nothing of the page around the figure shows.
    text = file.read_text(encoding="utf-8").replace("height: 720px", "height: 100vh", 1)
    head = '<!doctype html><meta charset="utf-8"><body style="margin: 0">'
    file.write_text(head + text, encoding="utf-8")


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
