"""The grammar of names: every printed form parses back to the value it came from."""

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pathsum.errors import HeadError, InputError, PathError
from pathsum.names import (
    Edge,
    HeadId,
    HeadRead,
    LogitsRead,
    MlpRead,
    Part,
    Path,
    Side,
    Source,
    parse_read,
    parse_writer,
)
from pathsum.result.record import jsonable

numbers = st.integers(0, 200)
heads = st.builds(HeadId, numbers, numbers)
sources = st.one_of(
    st.sampled_from([Source("embed"), Source("pos"), Source("unembed_bias")]),
    st.builds(Source, st.sampled_from(["mlp", "bias"]), numbers),
)


@st.composite
def paths(draw: st.DrawFn) -> Path:
    source = draw(sources)
    if source.kind == "unembed_bias":
        return Path(source)
    layers = sorted(draw(st.sets(st.integers(source.layer + 1, source.layer + 50), max_size=4)))
    return Path(source, [HeadId(layer, draw(numbers)) for layer in layers])


parts = st.one_of(
    paths().map(Part.of_path),
    numbers.map(Part.position),
    st.sampled_from([Part.bias("query"), Part.bias("key")]),
    heads.map(Part.writer),
)
reads = st.one_of(
    st.builds(HeadRead, heads, st.sampled_from(Side)),
    st.builds(MlpRead, numbers),
    st.just(LogitsRead()),
)
edges = st.builds(Edge, st.one_of(heads, sources), reads)


@given(heads)
def test_a_head_is_its_label(head: HeadId) -> None:
    assert HeadId.parse(str(head)) == head == str(head) == f"L{head.layer}H{head.head}"
    assert HeadId.parse((head.layer, head.head)) == HeadId.parse(str(head).lower()) == head
    assert {head: 1}[str(head)] == {str(head): 1}[head] == 1
    assert jsonable(head) == str(head)
    for copied in (copy.deepcopy(head), pickle.loads(pickle.dumps(head))):  # noqa: S301
        assert (copied, copied.layer, copied.head) == (head, head.layer, head.head)
        assert type(copied) is HeadId


@given(heads, heads)
def test_heads_are_ordered_by_layer_and_number(one: HeadId, two: HeadId) -> None:
    pairs = (one.layer, one.head), (two.layer, two.head)
    assert (one < two) == (pairs[0] < pairs[1]) == (two > one)
    assert (one <= two) == (pairs[0] <= pairs[1]) == (two >= one)
    assert (one < str(two)) == (pairs[0] < pairs[1])


def test_a_head_is_not_a_pair() -> None:
    head = HeadId(1, 4)
    with pytest.raises(ValueError, match="too many values"):
        _layer, _number = head
    with pytest.raises(TypeError):
        HeadId(*head)  # pyright: ignore[reportArgumentType]


@given(sources, paths(), parts, reads, edges)
def test_every_name_parses_back(
    source: Source, path: Path, part: Part, read: HeadRead, edge: Edge
) -> None:
    assert Source.parse(str(source)) == source
    assert Path.parse(str(path)) == path
    assert Part.parse(str(part)) == part
    assert parse_read(str(read)) == read
    assert parse_writer(str(edge.writer)) == edge.writer
    assert Edge.parse(str(edge)) == edge
    for arrow in (">", "->", " → ", " > "):
        assert Path.parse(str(path).replace("→", arrow)) == path
        assert Edge.parse(str(edge).replace("→", arrow)) == edge
    for name in (source, path, part, read, edge):
        assert jsonable(name) == str(name)


@pytest.mark.parametrize("name", ["L1", "1.4", "", "H4L1", "L1H4H2", "L-1H0", (1,), (1, 2, 3), 1.5])
def test_what_does_not_name_a_head(name: object) -> None:
    with pytest.raises(HeadError, match="does not name a head; use a label such as 'L1H4'"):
        HeadId.parse(name)  # pyright: ignore[reportArgumentType]


def test_negative_numbers_are_not_heads() -> None:
    with pytest.raises(HeadError, match="layer -1, head 0 is not a head"):
        HeadId.parse((-1, 0))


@pytest.mark.parametrize(
    ("parse", "text", "message"),
    [
        (Source.parse, "token", "'token' is not a source of paths"),
        (Path.parse, "embed→nothing", "'nothing' does not name a head"),
        (Path.parse, "", "is not a source of paths"),
        (parse_read, "L1H4", "has three reads; name one: 'L1H4.q'"),
        (parse_read, "L1H4.x", "the reads 'q', 'k' and 'v', not 'x'"),
        (parse_read, "embed", "'embed' does not name a read"),
        (Edge.parse, "L0H7", "'L0H7' is not an edge; use 'L0H7→L1H4.k'"),
        (Edge.parse, "L0H7→L1H4→L2H0.k", "is not an edge"),
        (Edge.parse, "nothing→L1H4.k", "'nothing' does not name a writer"),
    ],
)
def test_what_names_nothing(parse: object, text: str, message: str) -> None:
    with pytest.raises((PathError, HeadError, InputError), match=message):
        parse(text)  # pyright: ignore[reportCallIssue]
