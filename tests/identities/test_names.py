"""The grammar of names: every printed form parses back to the value it came from."""

import copy
import pickle
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pathsum.base import (
    LOGITS,
    HeadId,
    Part,
    Path,
    Side,
    Site,
    Source,
    parse_read,
    parse_writer,
)
from pathsum.base.errors import HeadError, InputError, PathError
from pathsum.base.path import find_head
from pathsum.base.record import jsonable
from pathsum.base.site import HEAD_SIDES, MLP_SIDES

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
mlps = st.builds(Source, st.just("mlp"), numbers)
reads = st.one_of(
    st.builds(Site, st.none(), heads, st.sampled_from(HEAD_SIDES)),
    st.builds(Site, st.none(), mlps, st.sampled_from(MLP_SIDES)),
    st.builds(Site, st.none(), st.one_of(mlps, st.just(LOGITS))),
)
writers = st.one_of(heads, sources)
edges = st.builds(lambda writer, read: replace(read, writer=writer), writers, reads)
own_parts = st.one_of(
    numbers.map(Part.position), st.sampled_from([Part.bias("query"), Part.bias("key")])
)
nodes = st.builds(Site, st.one_of(writers, own_parts, st.just(LOGITS)), at=numbers)
positions = st.one_of(st.none(), st.integers(-200, 200))
sites = st.one_of(
    nodes,
    st.builds(Site, writers, at=positions),
    st.builds(lambda edge, at, to: replace(edge, at=at, to=to), edges, positions, positions),
    st.builds(lambda read, to: replace(read, to=to), reads, positions),
    st.builds(Site, heads, value=st.sampled_from(["pattern", "z"])),
    st.builds(Site, st.builds(Source, st.just("residual"), numbers)),
    st.just(Site(LOGITS, value="pre")),
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
    source: Source, path: Path, part: Part, read: Site, edge: Site
) -> None:
    assert Source.parse(str(source)) == source
    assert Path.parse(str(path)) == path
    assert Part.parse(str(part)) == part
    assert parse_read(str(read)) == read
    assert parse_writer(str(edge.writer)) == edge.writer
    assert Site.parse(str(edge)) == edge
    for arrow in (">", "->", " → ", " > "):
        assert Path.parse(str(path).replace("→", arrow)) == path
        assert Site.parse(str(edge).replace("→", arrow)) == edge
    for name in (source, path, part, read, edge):
        assert jsonable(name) == str(name)


@given(edges)
def test_an_edge_is_also_a_tuple(edge: Site) -> None:
    assert Site.parse(edge) is edge
    assert Site.parse((edge.writer, edge.read)) == edge
    assert Site.parse((str(edge.writer), str(edge.read))) == edge
    if isinstance(edge.reader, HeadId):
        head = edge.reader
        assert Site.parse((edge.writer, head, edge.side)) == edge
        assert Site.parse((edge.writer, (head.layer, head.head), str(edge.side))) == edge


def test_the_nearest_head_is_named() -> None:
    for name, near in (("L9H9", "L1H3"), ("L0H4", "L0H3"), ("L2H1", "L1H1")):
        with pytest.raises(HeadError) as caught:
            find_head(name, 2, 4)
        assert str(caught.value) == (
            f"head {name} does not exist: this model has layers 0 to 1 with heads 0 to 3 each; "
            f"{near} is the nearest"
        )
    assert find_head("L1H3", 2, 4) == HeadId(1, 3)


@pytest.mark.parametrize(
    "name",
    ["L1", "1.4", "", "H4L1", "L1H4H2", "L-1H0", (1,), (1, 2, 3), ("L1", "H4"), (1, 2.0), 1.5],
)
def test_what_does_not_name_a_head(name: object) -> None:
    with pytest.raises(HeadError, match="does not name a head; use a label such as 'L1H4'"):
        HeadId.parse(name)  # pyright: ignore[reportArgumentType]


def test_numbers_that_are_not_heads() -> None:
    why = "is not a head: layers and heads count from 0 and have at most 9 digits"
    for layer, head in ((-1, 0), (0, -1), (10**9, 0), (0, 10**9)):
        with pytest.raises(HeadError, match=f"layer {layer}, head {head} {why}"):
            HeadId.parse((layer, head))
    with pytest.raises(HeadError, match=f"layer 1000000000, head -1000000000 {why}"):
        HeadId(10**5000, -(10**5000))
    assert HeadId(999_999_999, 0) == "L999999999H0"


@pytest.mark.parametrize("digits", ["9" * 10, "9" * 5000, "٣", "²", ""])
@pytest.mark.parametrize(
    ("parse", "name"),
    [
        (HeadId.parse, "L{}H0"),
        (HeadId.parse, "L0H{}"),
        (Source.parse, "mlp{}"),
        (Source.parse, "bias{}"),
        (Part.parse, "pos@{}"),
        (parse_read, "mlp{}"),
        (parse_read, "L{}H0.q"),
        (Site.parse, "L0H0→mlp{}"),
        (Site.parse, "L0H0@{}"),
        (Site.parse, "L0H0→L1H0@{}.k"),
        (Site.parse, "residual{}"),
        (Site.parse, "mlp{}"),
    ],
)
def test_numbers_that_no_name_has(parse: object, name: str, digits: str) -> None:
    """Python itself refuses to convert thousands of digits, and reads digits of any script."""
    with pytest.raises((PathError, HeadError)):
        parse(name.format(digits))  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize("other", ["", "A", "L1", "L1H", "embed", "z"])
def test_other_strings_come_after_heads(other: str) -> None:
    for head in (HeadId(0, 0), HeadId(7, 9)):
        assert head < other
        assert head <= other
        assert not head > other
        assert not head >= other


def test_the_formula_of_a_path() -> None:
    """The paper's notation: patterns from the last head to the first, weights as data flows."""
    for name, formula in {
        "embed": "Id ⊗ W_E·W_U",
        "pos→L0H7": "A[L0H7] ⊗ W_pos·OV[L0H7]·W_U",
        "mlp0→L1H2→L3H4": "A[L3H4]·A[L1H2] ⊗ MLP[0]·OV[L1H2]·OV[L3H4]·W_U",
        "bias2": "Id ⊗ b[2]·W_U",
        "bias_U": "Id ⊗ b_U",
    }.items():
        assert Path.parse(name).formula == formula
    assert Source("unembed_bias").symbol == "b_U"


@pytest.mark.parametrize(
    ("source", "heads", "message"),
    [
        ("embed", ["L1H0", "L1H0"], "a path through L1H0 and then L1H0 names a head twice: data"),
        ("embed", ["L1H0", "L1H1"], "a path through L1H0 and then L1H1 is out of order: data"),
        ("embed", ["L0H0", "L2H0", "L1H1"], "through L2H0 and then L1H1 is out of order"),
        ("bias_U", ["L1H0"], "bias_U is added to the logits themselves; no head reads it"),
        ("mlp2", ["L2H0"], "L2H0 cannot read mlp2, .* the first head must be in layer 3 or above"),
        ("bias2", ["L1H0"], "L1H0 cannot read bias2, .* head must be in layer 3 or above"),
    ],
)
def test_what_no_path_goes_through(source: str, heads: list[str], message: str) -> None:
    with pytest.raises(PathError, match=message):
        Path(source, heads)
    with pytest.raises(PathError, match=message):
        Path.parse("→".join([source, *heads]))


def test_paths_of_two_neighboring_layers() -> None:
    assert Path("mlp2", ["L3H0", "L4H0"]).order == 2
    assert Path("embed", ["L0H0"]).order == 1


@given(paths(), heads, numbers)
def test_parts_are_paths_or_not(path: Path, head: HeadId, layer: int) -> None:
    part = Part.of_path(path)
    assert part.path == path
    assert Part.parse(path) == part
    assert Part.parse(part) is part
    assert part.headed == (path.order > 0)
    assert Part.writer(head).headed
    for other in (Part.writer(head), Part.position(layer), Part.bias("key")):
        with pytest.raises(PathError, match=f"the part {other} is not a path from a source"):
            _ = other.path
    assert not Part.position(layer).headed and not Part.bias("query").headed


@given(heads, st.sampled_from(HEAD_SIDES))
def test_reads_by_side(head: HeadId, side: Side) -> None:
    assert parse_read(head, side) == parse_read(str(head), side.value) == Site(None, head, side)
    assert Site.parse((head, f"{head}.{side}")) == Site(head, head, side)
    with pytest.raises(PathError, match=f"logits has one read only; leave '{side}' out"):
        parse_read("logits", side.value)
    with pytest.raises(PathError, match=f"mlp3 has the reads 'mlp3.u' .* it has no '{side}'"):
        parse_read("mlp3", side.value)
    with pytest.raises(PathError, match="does not name a read"):
        parse_read(f"{head}.q", side)


@given(heads, numbers, st.sampled_from(MLP_SIDES), numbers)
def test_an_mlp_has_two_sides(head: HeadId, layer: int, side: Side, at: int) -> None:
    mlp = Source("mlp", layer)
    assert parse_read(f"mlp{layer}.{side}") == parse_read(mlp, side) == Site(None, mlp, side)
    assert Site.parse(f"mlp{layer}.{side}") == Site(None, mlp, side)
    assert Site.parse(f"{head}→mlp{layer}") == Site(head, mlp)
    edge = Site(head, mlp, side, at, at)
    assert Site.parse(str(edge)) == Site.parse(f"{head}@{at}→mlp{layer}@{at}.{side}") == edge
    with pytest.raises(PathError, match=f"{head} has three reads; .* not '{side}'"):
        parse_read(head, side)


def test_names_are_strings_in_a_schema() -> None:
    pattern = HeadId.json_schema()["pattern"]
    assert re.search(pattern, "L12H3") and not re.search(pattern, "L12H3.q")
    assert HeadId.json_schema()["type"] == "string"
    assert all(kind.json_schema() == {"type": "string"} for kind in (Path, Source, Part, Site))


def test_no_head_of_a_model_without_layers() -> None:
    with pytest.raises(HeadError, match="head L0H0 does not exist: this model has no layers"):
        find_head("L0H0", 0, 4)
    assert find_head("L0H0", 1, 1) == HeadId(0, 0)


@pytest.mark.parametrize(
    ("parse", "text", "message"),
    [
        (Source.parse, "token", "'token' is not a source of paths"),
        (Path.parse, "embed→nothing", "'nothing' does not name a head"),
        (Path.parse, "", "is not a source of paths"),
        (parse_read, "L1H4", "has three reads; name one: 'L1H4.q'"),
        (parse_read, "L1H4.x", "the reads 'q', 'k' and 'v', not 'x'"),
        (parse_read, "embed", "'embed' does not name a read"),
        (Site.parse, "L0H7→L1H4→L2H0.k", "is not a site of a run"),
        (Site.parse, "L0H7→L1H4", "has three reads; name one: 'L1H4.q'"),
        (Path.parse, "logits→L0H0", "'logits' is not a source of paths"),
        (Path.parse, "residual1", "'residual1' is not a source of paths"),
        (Site.parse, "nothing→L1H4.k", "'nothing' does not name a writer"),
    ],
)
def test_what_names_nothing(parse: object, text: str, message: str) -> None:
    with pytest.raises((PathError, HeadError, InputError), match=message):
        parse(text)  # pyright: ignore[reportCallIssue]


@given(sites)
def test_every_site_parses_back(site: Site) -> None:
    assert Site.parse(str(site)) == site
    assert Site.parse(site) is site
    assert jsonable(site) == str(site)


@given(nodes, nodes, st.sampled_from(HEAD_SIDES))
def test_an_edge_joins_two_nodes(writer: Site, reader: Site, side: Side) -> None:
    if not isinstance(reader.writer, HeadId) and reader.writer != LOGITS:
        return
    edge = Site.edge(writer, reader, side if isinstance(reader.writer, HeadId) else None)
    assert (edge.start, edge.end) == (writer, reader) and edge.is_edge
    assert Site.parse(str(edge)) == edge
    assert writer.head == (writer.writer if isinstance(writer.writer, HeadId) else None)
    assert edge.without_positions.at is edge.without_positions.to is None


@given(heads, st.sampled_from(HEAD_SIDES), numbers, numbers)
def test_sites_of_other_names(head: HeadId, side: Side, at: int, to: int) -> None:
    assert Site.parse(head) == Site.parse((head.layer, head.head)) == Site(head)
    given = (f"{head}@{at}", f"{head}@{to}", side.value)
    assert Site.parse(given) == Site(head, head, side, at, to)
    for value in ("pattern", "z", "q", "k", "v"):
        assert Site.parse(f"{head}.{value}").head == head


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (3, "is not a site of a run"),
        (("L0H0",), "is not a site of a run"),
        (("L0H0", "L1H0", "k", "q"), "is not a site of a run"),
        ("L0H0→L1H0→L2H0→L3H0", "is not a site of a run"),
        ("L0H0@x", "does not name a position"),
        (("L0H0", 3), "does not name a read"),
        ("L0H0.w", "is not a site of a run"),
        ("embed.pattern", "is not a site of a run"),
        ("L0H0.pre", "is not a site of a run"),
    ],
)
def test_what_names_nothing_of_a_run(name: object, message: str) -> None:
    with pytest.raises(PathError, match=message):
        Site.parse(name)  # pyright: ignore[reportArgumentType]


def test_a_head_as_reader_needs_a_side() -> None:
    with pytest.raises(PathError, match="L1H0 has three reads; name one"):
        Site(HeadId(0, 0), HeadId(1, 0))
    with pytest.raises(PathError, match="logits has one read only; leave 'q' out"):
        Site(HeadId(0, 0), LOGITS, Side.Q)
