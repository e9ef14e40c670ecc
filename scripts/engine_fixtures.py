"""Answers of the library that the tests of the page's engine compare with.

    python scripts/engine_fixtures.py FOLDER

One JSON file per model, packed as in a report: its weights, and answers about texts of every kind.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from pathsum.explorer.answers.weights import why_not_in_page
from pathsum.explorer.explorer import Explorer
from pathsum.explorer.params import ModelParams, PlainParams, answer_key, decode
from pathsum.explorer.report import FORMAT, VERSION, AnswerBlocks, deflate
from pathsum.sources import load
from pathsum.sources.named import bundled_names

HAND_BUILT = ("hand-built-induction", "hand-built-virtual-head")
# Texts that only their tokens are compared of.
TOKENIZED: tuple[PlainParams, ...] = (
    {"text": "def f(x):\n    return x  # it's  we'll\tdon't\n\n\ndef g(x):\n    ret"},
    {"text": "김치 🙂 naïve – “quoted” <|start|>\u00a0x\u0085y  \r\n 12 345"},
    {"text": ""},
)
WORDS: tuple[PlainParams, ...] = ({"text": "a b c d a"},)
TEXTS: tuple[PlainParams, ...] = (
    {"example": 0},
    {"text": "Mrs. Kovalenko met Mr. Okafor. Later that day Mrs. Koval"},
    {"ids": "0,7,3,7,3,9,7"},
    *TOKENIZED,
)


def questions(explorer: Explorer, text: PlainParams) -> Iterator[tuple[str, PlainParams]]:
    """Questions about one text; predictions at its end, and at the most interesting position."""
    run = decode(explorer.ask("run", text))
    yield "run", text
    if text in TOKENIZED:
        return
    for weighting in ("attention", "information", "effect"):
        yield "attention", {**text, "weighting": weighting, "precision": "full"}
    yield "story", text
    heads = [str(head.label) for head in explorer.session.model(ModelParams()).heads]
    for head in heads[-2:]:
        yield "scores", {**text, "head": head}
    last = len(run["ids"]) - 1
    for readout in ("direct", "held"):
        yield "lens", {**text, "readout": readout, "start": last // 3}
    for layer in range(explorer.session.model(ModelParams()).config.n_layers + 1):
        yield "lens_parts", {**text, "layer": layer, "position": last, "token": 5}
    for position in dict.fromkeys((run["highlight"], last)):
        about: PlainParams = {**text, "position": position}
        yield "story", about
        yield "why", about
        yield "paths", about
    # Other tokens of a hand-built model tie exactly, and rounding orders what explains them.
    if explorer.name not in HAND_BUILT:
        for name in ("paths", "why"):
            yield name, {**text, "position": last, "token": 5, "versus": 3}
        yield "story", {**text, "position": last, "token": 5}
        for off in _switches(heads, last):
            yield "without", {**text, "position": last, "off": off}


def _switches(heads: list[str], position: int) -> Iterator[str]:
    """A head, edges at all positions and at single ones, and several together."""
    if not heads:
        return
    first, last = heads[0], heads[-1]
    yield first
    yield f"{first}@{position},{last},embed→logits"
    yield f"embed@{position}→{last}@{position}.q,embed→{last}.v"
    if first[:2] != last[:2]:
        yield f"{first}→{last}.k,{first}@{position}→{last}@{position}.v,{heads[1]}→{last}.q"
        yield f"{first}→{last}.k,{first}@{position}→{last}@{position}.k,{first}"


def fixture(model: str) -> dict[str, object]:
    """The file of one model."""
    explorer = Explorer([model], bundled=())
    packed = AnswerBlocks()
    for name in ("model", "vocabulary", "weights"):
        packed.add(answer_key(name, {}), explorer.ask(name, {}))
    for text in WORDS if model in HAND_BUILT else TEXTS:
        for name, params in questions(explorer, text):
            key = answer_key(name, params)
            if key not in packed.index:
                packed.add(key, explorer.ask(name, params))
    head = {"format": FORMAT, "version": VERSION, "title": model, "views": [], "start": ""}
    return {**head, "answers": packed.index, "blocks": [deflate(one) for one in packed.blocks]}


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    runnable = (name for name in bundled_names() if not why_not_in_page(load(name)))
    for name in (*runnable, *HAND_BUILT):
        (folder / f"{name}.json").write_text(json.dumps(fixture(name)), encoding="utf-8")
