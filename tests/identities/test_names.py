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
    Node,
    NodeEdge,
    Part,
    Path,
    Side,
    Site,
    Source,
    Value,
    parse_read,
    parse_writer,
)
from pathsum.names.head_id import find_head
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
own_parts = st.one_of(
    numbers.map(Part.position), st.sampled_from([Part.bias("query"), Part.bias("key")])
)
nodes = st.builds(Node, st.one_of(heads, sources, own_parts, st.just("logits")), numbers)
positions = st.one_of(st.none(), st.integers(-200, 200))
sites = st.one_of(
    st.builds(Site, st.one_of(heads, sources), st.none(), positions),
    st.builds(Site, st.one_of(heads, sources), reads, positions, positions),
)
values = st.one_of(
    st.builds(Value, st.sampled_from(["pattern", "z"]), heads),
    st.builds(Value, st.just("read"), st.builds(HeadRead, heads, st.sampled_from(Side))),
    st.builds(Value, st.just("residual"), numbers),
    st.builds(
        Value,
        st.just("written"),
        st.one_of(st.just(Source("embed")), st.builds(Source, st.just("mlp"), numbers)),
    ),
    st.just(Value("logits")),
)


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


@given(edges)
def test_an_edge_is_also_a_tuple(edge: Edge) -> None:
    assert Edge.parse(edge) is edge
    assert Edge.parse((edge.writer, edge.reader)) == edge
    assert Edge.parse((str(edge.writer), str(edge.reader))) == edge
    if isinstance(edge.reader, HeadRead):
        head, side = edge.reader.head, edge.reader.side
        assert Edge.parse((edge.writer, head, side)) == edge
        assert Edge.parse((edge.writer, (head.layer, head.head), str(side))) == edge


@pytest.mark.parametrize("name", [("L0H0",), ("L0H0", "L1H0", "q", "k"), "L0H0", 3, ["L0H0", "L1"]])
def test_what_is_not_an_edge(name: object) -> None:
    with pytest.raises(PathError, match="is not an edge; use 'L0H7→L1H4.k' or"):
        Edge.parse(name)  # pyright: ignore[reportArgumentType]


def test_the_nearest_head_is_named() -> None:
    for name, near in (("L9H9", "L1H3"), ("L0H4", "L0H3"), ("L2H1", "L1H1")):
        with pytest.raises(HeadError) as caught:
            find_head(name, 2, 4)
        assert str(caught.value) == (
            f"head {name} does not exist: this model has layers 0 to 1 with heads 0 to 3 each; "
            f"{near} is the nearest"
        )
    assert find_head("L1H3", 2, 4) == HeadId(1, 3)


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


@given(nodes, nodes, st.sampled_from(Side), sites, values)
def test_what_a_run_has_parses_back(
    writer: Node, reader: Node, side: Side, site: Site, value: Value
) -> None:
    edge = NodeEdge(writer, reader, Side.V if reader.component == "logits" else side)
    for one in (writer, edge, site, value):
        assert type(one).parse(str(one)) == one
        assert type(one).parse(one) is one
        assert jsonable(one) == str(one)
    assert writer.head == (writer.component if isinstance(writer.component, HeadId) else None)


@given(heads, reads, numbers, numbers)
def test_sites_of_other_names(head: HeadId, read: object, written_at: int, read_at: int) -> None:
    edge = Edge(head, read)  # pyright: ignore[reportArgumentType]
    assert Site.parse(edge) == Site(head, edge.reader) and Site.parse(edge).edge == edge
    assert Site.parse(head) == Site.parse((head.layer, head.head)) == Site(head)
    assert Site.parse(head).edge is None
    assert Site.parse(Node(head, written_at)) == Site(head, None, written_at)
    if isinstance(read, HeadRead):
        given = (f"{head}@{written_at}", f"{read.head}@{read_at}", read.side.value)
        between = NodeEdge(Node(head, written_at), Node(read.head, read_at), read.side)
        assert Site.parse(given) == Site.parse(between) == Site(head, read, written_at, read_at)


@given(heads, numbers)
def test_where_a_value_is_computed(head: HeadId, layer: int) -> None:
    for what in ("pattern", "z", "q", "k", "v"):
        value = Value.parse(f"{head}.{what}")
        assert (value.head, value.layer) == (head, head.layer)
    for name, at in ((f"residual@L{layer}", layer), (f"mlp{layer}", layer), ("embed", -1)):
        assert (Value.parse(name).head, Value.parse(name).layer) == (None, at)
    assert (Value.parse("logits").head, Value.parse("logits").layer) == (None, None)


@pytest.mark.parametrize(
    ("parse", "name", "message"),
    [
        (Site.parse, 3, "neither an edge nor a node"),
        (Site.parse, ("L0H0",), "neither an edge nor a node"),
        (Site.parse, ("L0H0", "L1H0", "k", "q"), "neither an edge nor a node"),
        (Site.parse, "L0H0→L1H0→L2H0→L3H0", "neither an edge nor a node"),
        (Site.parse, "L0H0@x", "does not name a position"),
        (Site.parse, ("L0H0", 3), "does not name a read"),
        (Node.parse, "L0H0", "is not a node"),
        (Node.parse, "L0H0@-1", "is not a node"),
        (NodeEdge.parse, "L0H0@1", "is not an edge between nodes"),
        (Value.parse, "L0H0", "is not a value of a run"),
        (Value.parse, "L0H0.w", "is not a value of a run"),
    ],
)
def test_what_names_nothing_of_a_run(parse: object, name: object, message: str) -> None:
    with pytest.raises(PathError, match=message):
        parse(name)  # pyright: ignore[reportCallIssue]
