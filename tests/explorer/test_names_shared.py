"""The grammar of names is the same in Python and in the browser.

`web/src/lib/names.test.ts` tests the browser's side with the same file.
"""

import json
from pathlib import Path as File

import pytest

from pathsum.base import HeadId, Path, Site
from pathsum.base.errors import PathsumError

EXAMPLES = json.loads(
    (File(__file__).parents[1] / "names_examples.json").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("example", EXAMPLES["heads"], ids=lambda example: example["text"])
def test_heads(example: dict) -> None:
    head = HeadId.parse(example["text"])
    assert (head.layer, head.head) == (example["layer"], example["head"])
    assert str(head) == example["text"]


@pytest.mark.parametrize("example", EXAMPLES["paths"], ids=lambda example: example["text"])
def test_paths(example: dict) -> None:
    path = Path(example["source"], example["heads"])
    assert str(path) == example["text"] and path.formula == example["formula"]
    for text in (example["text"], *example["accepted"]):
        assert Path.parse(text) == path


@pytest.mark.parametrize("example", EXAMPLES["edges"], ids=lambda example: example["text"])
def test_edges(example: dict) -> None:
    edge = Site.parse(example["text"])
    assert edge.is_edge and str(edge) == example["text"]
    assert str(edge.writer) == example["writer"] and str(edge.reader) == example["reader"]
    assert edge.side == example["side"]
    for text in example["accepted"]:
        assert Site.parse(text) == edge


@pytest.mark.parametrize(
    ("noun", "text"),
    [
        (noun, text)
        for noun, name in ((HeadId, "heads"), (Path, "paths"), (Site, "edges"))
        for text in EXAMPLES["wrong"][name]
    ],
)
def test_what_is_not_a_name_is_rejected(noun: type, text: str) -> None:
    if noun is Site and text == "L0H7":  # a site, but not an edge
        assert not Site.parse(text).is_edge
        return
    with pytest.raises(PathsumError):
        noun.parse(text)
