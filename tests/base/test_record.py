import json
from dataclasses import dataclass
from typing import Literal

import pytest
import torch
from jaxtyping import Float
from rich.console import RenderableType
from torch import Tensor

from pathsum.base import (
    Column,
    Estimate,
    Record,
    Table,
    computed_field,
    jsonable,
    records,
    schema,
    stacked,
    text_column,
)
from pathsum.base.errors import FailedError
from pathsum.model import HeadId, Path


@dataclass(frozen=True, eq=False)
class Inner(Record, kind="test-inner"):
    head: HeadId
    weight: float


@dataclass(frozen=True, eq=False)
class Outer(Record, kind="test-outer"):
    name: str
    count: int
    exact: bool
    note: str | None
    group: Literal["q", "k"]
    values: Float[Tensor, "heads heads"]
    path: Path
    inner: tuple[Inner, ...]
    by_name: dict[str, float]
    pair: tuple[int, str]
    _hidden: int = 0


def example() -> Outer:
    return Outer(
        name="<b>bold</b>",
        count=3,
        exact=True,
        note=None,
        group="q",
        values=torch.tensor([[1.0, float("nan")], [float("inf"), 2.0]]),
        path=Path("embed", ["L0H1"]),
        inner=(Inner(HeadId(0, 1), 0.5),),
        by_name={"a": 1.0},
        pair=(1, "x"),
    )


@dataclass(frozen=True, eq=False)
class Lazy(Record, kind="test-lazy"):
    given: int
    asked: list[int]

    @computed_field
    def twice(self) -> tuple[int, ...]:
        self.asked.append(1)
        return (2 * self.given,)


def test_a_computed_field_is_computed_once_and_written_like_the_others() -> None:
    lazy = Lazy(3, [])
    _ = repr(lazy), str(lazy)
    assert lazy.asked == []
    assert lazy.to_json()["twice"] == [6]
    assert lazy.twice == (6,)
    assert lazy.asked == [1]
    properties = schema(Lazy)["properties"]
    assert list(properties) == ["format", "version", "given", "asked", "twice"]
    assert properties["twice"] == {"type": "array", "items": {"type": "integer"}}


def test_json_has_format_version_and_every_public_field() -> None:
    found = json.loads(example().dumps())
    assert found["format"] == "pathsum-test-outer"
    assert found["version"] == 1
    assert found["values"] == [[1.0, None], [None, 2.0]]
    assert found["path"] == "embed→L0H1"
    assert found["inner"] == [{"head": "L0H1", "weight": 0.5}]
    assert "_hidden" not in found


def test_complex_numbers_are_pairs() -> None:
    assert jsonable(torch.tensor([1 + 2j])) == [[1.0, 2.0]]


def test_what_has_no_json_form_is_an_error() -> None:
    with pytest.raises(FailedError, match="holds a object, which has no JSON form"):
        jsonable(object())


def test_the_schema_comes_from_the_fields() -> None:
    found = schema(Outer)
    assert set(found["required"]) == set(found["properties"]) == set(example().to_dict())
    properties = found["properties"]
    assert properties["values"] == {"type": "array", "x-axes": "heads heads"}
    assert properties["group"] == {"enum": ["q", "k"]}
    assert properties["note"] == {"anyOf": [{"type": "string"}, {"type": "null"}]}
    assert properties["inner"]["items"]["properties"]["head"]["pattern"] == "^L[0-9]+H[0-9]+$"
    assert properties["by_name"]["additionalProperties"] == {"type": ["number", "null"]}
    assert properties["pair"]["prefixItems"] == [{"type": "integer"}, {"type": "string"}]


def test_every_kind_is_listed_once() -> None:
    assert records()["test-outer"] is Outer
    assert "test-inner" in records()
    with pytest.raises(TypeError, match="two records have the kind 'test-outer'"):

        class Another(Record, kind="test-outer"):
            pass


def test_views_escape_what_they_show() -> None:
    html = example()._repr_html_()
    assert "&lt;b&gt;bold&lt;/b&gt;" in html
    assert "<b>" not in html


def test_a_table_in_all_its_forms() -> None:
    table = Table(
        (text_column("token"), Column("logit", ".2f", unit="nats")),
        (("[bold]x", 1.234), ("y", float("nan")), ("z", None)),
        title="a title",
        note="a note",
    )
    text = table.to_text()
    assert "[bold]x" in text  # a token is not markup
    for shown in ("1.23", "–", "logit", "(nats)", "a title", "a note"):
        assert shown in text
    assert table.to_dicts()[0] == {"token": "[bold]x", "logit": 1.234}


def test_the_default_table_has_names_and_estimates() -> None:
    @dataclass(frozen=True, eq=False)
    class Measured(Record, kind="measured-for-a-test"):
        path: Path
        cost: Estimate

    shown = str(Measured(Path("embed", ["L0H1"]), Estimate(0.5, 0.1, 0.3, 0.7)))
    assert "embed→L0H1" in shown and "0.5 [0.3, 0.7]" in shown


def test_print_shows_the_table_and_repr_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")

    @dataclass(frozen=True, eq=False)
    class Walled(Record, kind="walled-for-a-test"):
        name: str
        share: float
        wall: torch.Tensor

    walled = Walled("one", 0.25, torch.zeros(100, 100))
    assert repr(walled) == "Walled(name='one', share=0.25, …)"
    lines = str(walled).splitlines()
    assert any("share" in line and "0.25" in line for line in lines)
    assert "tensor" not in str(walled)
    assert all(len(line) <= 60 and line == line.rstrip() for line in lines)


def test_a_notebook_shows_all_that_print_shows() -> None:
    @dataclass(frozen=True, eq=False)
    class Both(Record, kind="test-both"):
        inner: Inner

        def __rich__(self) -> RenderableType:
            return stacked("a sentence <first>", self.inner, self.inner.to_table())

    html = Both(Inner(HeadId(0, 1), 0.5))._repr_html_()
    assert html.count("<table>") == 2
    assert html.startswith("<pre>a sentence &lt;first&gt;</pre>")
