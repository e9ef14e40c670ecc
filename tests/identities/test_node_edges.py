"""Runs with single edges kept or cut, against the graph computed node by node, in float64."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.identities.configs import Drawn, mlp_models_with_tokens, models_with_tokens
from torch import Tensor

from pathsum.base import LOGITS, HeadId, Side, Site, Source
from pathsum.base.site import HEAD_SIDES
from pathsum.model import Config, Model, Trace, random_model, trace_run, transformer
from pathsum.model.edit import Edit, Writes, cut_edges, keep_edges
from pathsum.model.forward import run_logits
from pathsum.model.sites import writers_into
from pathsum.paths.cuts import values_without
from pathsum.paths.target import PredictionRun, find_target

REAL: list[dict[str, Any]] = [
    {"windows": (2, None), "sinks": True},
    {"norm": "rms", "norm_place": "both"},
    {"norm": "rms", "norm_place": "after"},
    {"qk_norm": "rms_all", "positions": "rotary"},
    {"qk_norm": "rms_per_head", "positions": "rotary"},
    {"score_cap": 2.0, "logit_cap": 5.0, "norm": "layer"},
]


def real_model(changes: dict[str, Any]) -> tuple[Model, Tensor]:
    sizes: dict[str, Any] = {
        "n_layers": 2,
        "n_heads": 4,
        "n_kv_heads": 2,
        "d_model": 12,
        "d_head": 4,
    }
    config = Config(**{**sizes, **changes}, d_vocab=17, n_ctx=8)
    model = random_model(config, seed=1, dtype=torch.float64, biases=True, gains=True)
    return model, torch.tensor([[3, 1, 4]])


def writers(model: Model, layer: int, position: int) -> Iterator[Site]:
    yield Site(Source("embed"), at=position)
    for below in range(layer):
        for head in range(model.config.n_heads):
            yield Site(HeadId(below, head), at=position)
        if model.config.mlp != "none":
            yield Site(Source("mlp", below), at=position)


def all_edges(model: Model, last: int) -> list[Site]:
    """Every edge between the nodes up to a position, and into the logits there."""
    config, found = model.config, list[Site]()
    for layer in range(config.n_layers):
        for head in range(config.n_heads):
            for dest in range(last + 1):
                reader = Site(HeadId(layer, head), at=dest)
                found += [Site.edge(one, reader, Side.Q) for one in writers(model, layer, dest)]
                for source in range(dest + 1 if config.causal else last + 1):
                    for one in writers(model, layer, source):
                        found += [Site.edge(one, reader, side) for side in (Side.K, Side.V)]
    top = Site(LOGITS, at=last)
    return found + [Site.edge(one, top, None) for one in writers(model, config.n_layers, last)]


def node_by_node(trace: Trace, kept: set[Site], reference: Writes, last: int) -> Tensor:
    """The oracle, for models without MLPs: each node reads a stream that is summed for it alone."""
    model, config = trace.model, trace.model.config
    own = Writes.of(trace)
    wrote: dict[Site, Tensor] = {}
    there: dict[Site, Tensor] = {}

    def seen(reader: Site, side: Side | None, layer: int) -> Tensor:
        # Positions and biases: what is left of the stream without all writes.
        stream = trace.streams[layer][0].clone()
        for at in range(len(stream)):
            for one in writers(model, layer, at):
                head = one.head
                if head is None:
                    before, after = own.embed[0, at], wrote[one]
                else:
                    W_O = model.weights.layers[head.layer].W_O[head.head]
                    before, after = own.z[head.layer][0, head.head, at] @ W_O, wrote[one]
                edge = Site.edge(one, reader, side)
                stream[at] += (after if edge in kept else there[one]) - before
        return stream[None]

    for at in range(last + 1):
        node = Site(Source("embed"), at=at)
        wrote[node], there[node] = own.embed[0, at], reference.embed[0, at]
    for index, layer in enumerate(model.weights.layers):
        z = torch.zeros_like(own.z[index])
        for head in range(config.n_heads):
            for dest in range(last + 1):
                node = Site(HeadId(index, head), at=dest)
                read = {
                    side: transformer.attention_read(config, layer, seen(node, side, index))[0]
                    for side in HEAD_SIDES
                }
                query = transformer.queries_and_keys(config, layer, read[Side.Q])[0]
                key = transformer.queries_and_keys(config, layer, read[Side.K])[1]
                pattern = transformer.attend(config, layer, query, key)
                moved = transformer.mix(pattern, transformer.values(layer, read[Side.V]))
                z[0, head, dest] = moved[0, head, dest]
        scale = transformer.write(config, layer, z)[1]
        for head in range(config.n_heads):
            for dest in range(last + 1):
                node = Site(HeadId(index, head), at=dest)
                wrote[node] = scale[0, dest] * z[0, head, dest] @ layer.W_O[head]
                there[node] = reference.z[index][0, head, dest] @ layer.W_O[head]
    stream = seen(Site(LOGITS, at=last), None, config.n_layers)
    return transformer.unembed(model.weights, stream)[0][0, last]


def kept_logits(trace: Trace, rows: list[list[Site]], reference: Writes, last: int) -> Tensor:
    edits = keep_edges(rows, Writes.of(trace), reference)
    at = torch.full((len(rows),), last)
    return run_logits(trace.weights, trace.tokens, edits, at, copies=len(rows))[:, 0]


def other_run(model: Model, tokens: Tensor) -> Trace:
    return model.trace((tokens + 1) % model.config.d_vocab)


@given(models_with_tokens(max_layers=2, max_heads=2, mlps=("none",)), st.integers(0, 2**16))
@settings(max_examples=8)
def test_kept_edges_are_the_graph_node_by_node(drawn: tuple[Model, Tensor], seed: int) -> None:
    model, tokens = drawn[0], drawn[1][:1, :3]
    check_against_oracle(model, tokens, seed)


@pytest.mark.parametrize("changes", REAL, ids=str)
def test_the_same_on_what_real_models_have(changes: dict[str, Any]) -> None:
    model, tokens = real_model(changes)
    check_against_oracle(model, tokens, 5)


def check_against_oracle(model: Model, tokens: Tensor, seed: int) -> None:
    trace, last = model.trace(tokens), tokens.shape[1] - 1
    reference = Writes.of(other_run(model, tokens))
    edges = all_edges(model, last)
    drawn = torch.rand(len(edges), generator=torch.Generator().manual_seed(seed)) < 0.5
    kept = [edge for edge, keep in zip(edges, drawn.tolist(), strict=True) if keep]
    found = kept_logits(trace, [kept, edges], reference, last)
    torch.testing.assert_close(found[0], node_by_node(trace, set(kept), reference, last))
    torch.testing.assert_close(found[1], trace.logits[0, last])


@given(models_with_tokens(max_layers=3, max_heads=2), st.integers(0, 2**16))
@settings(max_examples=8)
def test_everything_from_the_reference_is_the_reference(
    drawn: tuple[Model, Tensor], seed: int
) -> None:
    model, tokens = drawn[0], drawn[1][:1]
    trace, other = model.trace(tokens), other_run(model, tokens)
    last = seed % tokens.shape[1]
    found = kept_logits(trace, [[]], Writes.of(other), last)
    torch.testing.assert_close(found[0], other.logits[0, last])


@given(models_with_tokens(max_layers=2, max_heads=2, mlps=("none",)), st.integers(0, 2**16))
@settings(max_examples=8)
def test_cutting_some_edges_is_keeping_the_others(drawn: tuple[Model, Tensor], seed: int) -> None:
    model, tokens = drawn[0], drawn[1][:1, :3]
    check_cut_and_kept(model, tokens, seed)


@pytest.mark.parametrize("changes", [REAL[0], *REAL[3:]], ids=str)
def test_cutting_is_keeping_the_others_on_what_real_models_have(changes: dict[str, Any]) -> None:
    check_cut_and_kept(*real_model(changes), seed=7)


def check_cut_and_kept(model: Model, tokens: Tensor, seed: int) -> None:
    trace, last = model.trace(tokens), tokens.shape[1] - 1
    reference = Writes.of(other_run(model, tokens))
    edges = all_edges(model, last)
    drawn = torch.rand(len(edges), generator=torch.Generator().manual_seed(seed)) < 0.2
    cut = tuple(edge for edge, keep in zip(edges, drawn.tolist(), strict=True) if keep)
    rest = [edge for edge, keep in zip(edges, drawn.tolist(), strict=True) if not keep]
    kept = kept_logits(trace, [rest], reference, last)[0]
    found = run_logits(model.weights, tokens, cut_edges((cut, ()), reference), copies=2)
    torch.testing.assert_close(found[0, last], kept)
    torch.testing.assert_close(found[1], trace.logits[0])


@pytest.mark.parametrize(
    "changes",
    [{"causal": False}, {"mlp": "silu_gated", "norm": "rms", "positions": "rotary"}, *REAL],
    ids=str,
)
def test_positions_before_the_first_cut_are_shared(changes: dict[str, Any]) -> None:
    """Cuts into nodes from each position on, against runs of all positions."""
    model, _ = real_model(changes)
    tokens = torch.tensor([[3, 1, 4, 1, 5]])
    trace, reference = model.trace(tokens), Writes.of(other_run(model, tokens))
    edges = all_edges(model, 4)
    if model.config.mlp != "none":
        pairs = [(f"{one}@{at}", at) for one in ("embed", "L0H1", "L1H2") for at in range(5)]
        edges += [Site.parse(f"{one}→mlp1@{at}.{side}") for one, at in pairs for side in "ug"]
    chosen = torch.rand(5, len(edges), generator=torch.Generator().manual_seed(4)) < 0.2
    rows = [
        [edge for edge, cut in zip(edges, row, strict=True) if cut and (edge.to or 0) >= first]
        for first, row in enumerate(chosen.tolist())
    ]
    target = find_target(trace, -1, 7, "mean")
    found = values_without(PredictionRun(trace, target), rows, reference)
    whole = target.of(trace.uncapped_logits)[0]
    for value, row in zip(found, rows, strict=True):
        alone = trace_run(model, tokens, cut_edges([row], reference))
        torch.testing.assert_close(value, target.of(alone.uncapped_logits)[0])
        assert float((value - whole).abs()) > 1e-4
    (same,) = values_without(PredictionRun(trace, target), [[]], reference)
    torch.testing.assert_close(same, whole)


@pytest.mark.parametrize("changes", [{}, {"mlp": "gelu", "norm": "layer"}, *REAL], ids=str)
@pytest.mark.parametrize("top", [0, 1, 2])
def test_copies_share_the_layers_below_the_first_cut(changes: dict[str, Any], top: int) -> None:
    """Edges into all layers, into layer 1 and the logits, or into the logits alone."""
    model, _ = real_model(changes)
    tokens = torch.tensor([[3, 1, 4, 1]])
    trace, reference = model.trace(tokens), Writes.of(other_run(model, tokens))
    edges = [
        edge
        for edge in all_edges(model, 3)
        if edge.reader == LOGITS or (edge.reader is not None and edge.reader.layer >= top)
    ]
    drawn = torch.rand(2, len(edges), generator=torch.Generator().manual_seed(4)) < 0.3
    rows = [
        tuple(edge for edge, cut in zip(edges, row, strict=True) if cut) for row in drawn.tolist()
    ]
    alone = [run_logits(model.weights, tokens, cut_edges([row], reference)) for row in rows]
    found = run_logits(model.weights, tokens, cut_edges([*rows, ()], reference), copies=3)
    for one, other in zip(found, (*alone, trace.logits), strict=True):
        torch.testing.assert_close(one, other.view_as(one))
    assert float((found[0] - trace.logits[0]).abs().max()) > 1e-3


@pytest.mark.parametrize("changes", [{}, {"mlp": "gelu", "norm": "layer"}, *REAL], ids=str)
@pytest.mark.parametrize("step", [1, -1])
def test_copies_join_in_the_layer_of_their_first_edit(changes: dict[str, Any], step: int) -> None:
    """Copies in the order of their first edits, and in the opposite order."""
    model, _ = real_model(changes)
    tokens = torch.tensor([[3, 1, 4, 1]])
    writes = Writes.of(other_run(model, tokens))
    first = ["embed@1→L0H1@2.k", "embed→L0H0.v"]
    then = ["L0H0@1→L1H3@3.k", "L0H1→L1H2.k", "L1H1→logits", "L0H2@3→logits@3"]
    sites = [Site.parse(name) for name in (*first, *then)][::step]
    edits = [Edit(site, writes, row) for row, site in enumerate(sites)]
    found = run_logits(model.weights, tokens, edits, copies=len(sites))
    for one, site in zip(found, sites, strict=True):
        (alone,) = run_logits(model.weights, tokens, [Edit(site, writes)])
        torch.testing.assert_close(one, alone)


@pytest.mark.parametrize("changes", [{}, {"mlp": "gelu", "norm": "layer"}, *REAL], ids=str)
def test_copies_of_a_batch(changes: dict[str, Any]) -> None:
    """Sequence `copy · batch + row` is row of the batch in one copy."""
    model, _ = real_model(changes)
    tokens = torch.tensor([[3, 1, 4, 1], [5, 2, 6, 5]])
    other = model.trace((tokens + 1) % 17)
    writes = Writes.of(other)
    names = ["L0H1→L1H2.k", "embed→L1H0.v", "L0H0@1→L1H3@3.k", "L1H1→logits"]
    edits = [
        Edit(Site.parse(name), writes, 2 * copy + row)
        for copy, name in enumerate(names)
        for row in (0, 1)
    ]
    found = run_logits(model.weights, tokens, edits, copies=len(names))
    for copy, name in enumerate(names):
        alone = model.trace(tokens).patch({name: other}).logits
        torch.testing.assert_close(found[2 * copy : 2 * copy + 2], alone)


def test_zero_writes_have_the_shapes_of_a_run() -> None:
    trace = random_model(Config(2, 2, 8, 4, 9, 4, mlp="relu", d_mlp=8)).trace([[1, 2, 3]])
    zeros, writes = Writes.zero(trace).tensors, Writes.of(trace).tensors
    torch.testing.assert_close(zeros, [torch.zeros_like(tensor) for tensor in writes])


def test_an_edge_replaces_the_output_that_the_stream_has() -> None:
    model = random_model(Config(2, 2, 8, 4, 9, 4), seed=1)
    tokens, output = torch.tensor([[1, 2, 3]]), torch.arange(8.0)
    replaced = Edit(Site.parse("L0H0"), output)
    names = ("L0H0@1→L1H0@2.k", "L0H0@2→L1H1@2.q", "L0H0@0→logits", "L0H0→L1H1.v")
    same = [Edit(Site.parse(name), output) for name in names]
    expected = run_logits(model.weights, tokens, [replaced])
    found = run_logits(model.weights, tokens, [replaced, *same])
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("changes", [{}, {"mlp": "gelu", "norm": "layer"}, *REAL], ids=str)
@pytest.mark.parametrize("reader", ["L1H0.k", "mlp1", "logits"])
def test_an_edge_at_a_position_replaces_the_edge_as_a_whole(
    changes: dict[str, Any], reader: str
) -> None:
    model, _ = real_model(changes)
    if reader == "mlp1" and model.config.mlp == "none":
        return
    trace = model.trace(torch.tensor([[3, 1, 4, 1]]))
    first, second = (other_run(model, trace.tokens + shift) for shift in (0, 3))
    head, dot, side = reader.partition(".")
    there = f"L0H1@3→{head}@3{dot}{side}"
    found = trace.patch({f"L0H1→{reader}": first, there: second})
    alone = trace.patch({f"L0H1→{reader}": second})
    written = first.written("L0H1").clone()
    written[:, 3] = second.written("L0H1")[:, 3]
    mixed = trace.patch({f"L0H1→{reader}": written})
    torch.testing.assert_close(found.logits[:, 3], mixed.logits[:, 3])
    assert not torch.allclose(found.logits[:, 3], alone.logits[:, 3]) or reader != "L1H0.k"


@given(mlp_models_with_tokens(), st.integers(0, 2**16))
@settings(max_examples=30)
def test_the_two_sides_of_an_mlp_cut_together_are_its_whole_input(drawn: Drawn, seed: int) -> None:
    """Without experts: the router reads the whole input only."""
    model, tokens = drawn
    if model.config.n_experts:
        return
    trace, other = model.trace(tokens), other_run(model, tokens)
    layer = seed % model.config.n_layers
    writer = f"L{layer - 1}H0" if layer else "embed"
    for at in ("", f"@{seed % tokens.shape[1]}"):
        edges = [f"{writer}{at}→mlp{layer}{at}{side}" for side in ("", ".u", ".g")]
        whole, *sides = (trace.patch({edge: other}).logits for edge in edges)
        both = trace.patch(dict.fromkeys(edges[1:], other)).logits
        torch.testing.assert_close(both, whole)
        changed = not torch.equal(whole, trace.logits)
        assert float((sum(sides) - whole - trace.logits).abs().max()) > 0 or at or not changed


@given(mlp_models_with_tokens(), st.integers(0, 2**16))
@settings(max_examples=30)
def test_cutting_all_edges_into_an_mlp_replaces_its_output(drawn: Drawn, seed: int) -> None:
    """Every writer of its input, positions and biases included, from a run of the same length."""
    model, tokens = drawn
    if model.config.n_experts or model.config.norm_place != "before" or model.config.sinks:
        return
    trace, other = model.trace(tokens), other_run(model, tokens)
    layer = seed % model.config.n_layers
    at, config = seed % tokens.shape[1], model.config
    serial = config.block == "serial"
    names = [f"L{layer}H{head}" for head in range(config.n_heads if serial else 0)]
    names += map(str, writers_into(config, HeadId(layer, 0)))
    edges = [f"{name}@{at}→mlp{layer}@{at}.{side}" for name in names for side in "ug"]
    found = trace.patch(dict.fromkeys(edges, other)).logits
    torch.testing.assert_close(found, trace.patch({f"mlp{layer}@{at}": other}).logits)
