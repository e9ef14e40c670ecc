"""The circuit of a prediction adds up, node by node, on every variant of a model, in float64."""

from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.identities.configs import models_with_tokens
from torch import Tensor

from pathsum.base import HeadId, Part, Source
from pathsum.base.site import HEAD_SIDES, LOGITS, Side, Site
from pathsum.model import Config, Model, random_model
from pathsum.model.store import MemoryStore
from pathsum.model.weights import Weights
from pathsum.paths.attention import ScoreWeights, integrate_scores
from pathsum.paths.circuit import find_circuit
from pathsum.paths.edges import GraphNode
from pathsum.paths.graph import Graph


def sum_inputs(circuit: Graph, field: str) -> dict[tuple[Site, Side | None], float]:
    """By node and kind of edge: the sum over all edges into the node, omitted ones included."""
    sums: dict[tuple[Site, Side | None], float] = defaultdict(float)
    for edge in circuit.edges:
        sums[edge.edge.end, edge.kind] += getattr(edge, field)
    for rest in circuit.left_out:
        sums[rest.node, rest.kind] += getattr(rest, field)
    return sums


def inner_nodes(circuit: Graph) -> list[GraphNode]:
    return [found for found in circuit.nodes if found.node.head or found.node.writer == LOGITS]


@given(
    models_with_tokens(max_layers=3, max_heads=3),
    st.integers(0, 2**16),
    st.sampled_from([1e-6, 0.01, 0.2]),
)
@settings(max_examples=60)
def test_inputs_of_every_node_add_up(
    drawn: tuple[Model, Tensor], seed: int, threshold: float
) -> None:
    model, tokens = drawn
    trace = model.trace(tokens)
    sequence, position = seed % len(tokens), seed % tokens.shape[1]
    token = seed % model.config.d_vocab
    found = find_circuit(trace, position, token, "mean", threshold, sequence=sequence)
    logits = trace.logits[sequence, position]
    own = float(logits[token] - logits.mean())
    assert found.total == pytest.approx(own, rel=1e-9, abs=1e-12)
    assert found.remainder < 1e-9
    size = max(1e-9, *(abs(one.value) for one in found.nodes))
    shares, exact = sum_inputs(found, "share"), sum_inputs(found, "exact")
    for one in inner_nodes(found):
        assert shares[one.node, Side.V] == pytest.approx(one.value, abs=1e-9 * size)
        if one.attended is None:
            continue
        assert one.attended.uniform + one.attended.effect == pytest.approx(
            one.value, abs=1e-9 * size
        )
        if one.note:
            continue
        for kind in (Side.Q, Side.K):
            effect, contrast = one.attended.effect, one.attended.contrast
            assert shares[one.node, kind] == pytest.approx(
                effect, abs=found.quadrature_error + 1e-9 * size
            )
            assert exact[one.node, kind] == pytest.approx(contrast, rel=1e-9, abs=1e-9)


@given(models_with_tokens(max_layers=3, max_heads=3), st.integers(0, 2**16))
@settings(max_examples=40)
def test_what_enters_the_logits_is_the_direct_attribution(
    drawn: tuple[Model, Tensor], seed: int
) -> None:
    model, tokens = drawn
    trace = model.trace(tokens[:1])
    token = seed % model.config.d_vocab
    found = find_circuit(trace, -1, token, "mean", 1e-9)
    direct = trace.paths().toward(-1, token, "mean").by_last
    for edge in found.inputs(found.top):
        component = edge.edge.writer
        assert isinstance(component, HeadId | Source)
        assert edge.share == pytest.approx(direct[component], rel=1e-8, abs=1e-10)


def score_weights(
    scores: Tensor, values: Tensor, cap: float | None = None, sink: float | None = None
) -> ScoreWeights:
    """Of one row."""
    return integrate_scores(scores[None], values[None], cap=cap, sink=sink)


@given(
    st.lists(st.floats(-30, 30), min_size=2, max_size=9),
    st.integers(0, 2**16),
    st.sampled_from([None, 5.0, 30.0]),
)
@settings(max_examples=60)
def test_score_weights_are_complete_and_blind_to_a_constant(
    scores: list[float], seed: int, cap: float | None
) -> None:
    s = torch.tensor(scores, dtype=torch.float64)
    v = torch.randn(len(scores), generator=torch.Generator().manual_seed(seed)).double()
    found = score_weights(s, v, cap)
    bent = s if cap is None else cap * torch.tanh(s / cap)
    effect = float(bent.softmax(-1) @ v - v.mean())
    assert float(found.weights[0] @ s) == pytest.approx(effect, abs=1e-6 * float(v.max() - v.min()))
    if cap is None:
        assert float(found.weights.sum()) == pytest.approx(0, abs=1e-12)


def test_score_weights_are_integrated_gradients() -> None:
    """Against the gradient of attention's effect, integrated by many small steps."""
    generator = torch.Generator().manual_seed(3)
    s, v = (3 * torch.randn(6, generator=generator).double() for _ in range(2))
    steps = 4000
    total = torch.zeros_like(s)
    for step in range(steps):
        at = (s * (step + 0.5) / steps).requires_grad_()
        (at.softmax(-1) @ v).backward()
        assert at.grad is not None
        total += at.grad / steps
    torch.testing.assert_close(score_weights(s, v).weights[0], total, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("sink", [None, 0.7])
@pytest.mark.parametrize("cap", [None, 5.0])
def test_rows_of_scores_are_what_each_is_alone(cap: float | None, sink: float | None) -> None:
    generator = torch.Generator().manual_seed(4)
    # The last row is steep, so that its rule is refined alone.
    steep = torch.tensor([[1.0], [3.0], [60.0]]).double()
    s = steep * torch.randn(3, 7, generator=generator).double()
    v = torch.randn(3, 7, generator=generator).double()
    first, last = torch.tensor([0, 2, 1]), torch.tensor([6, 4, 5])
    places = torch.arange(7)
    seen = (places >= first[:, None]) & (places <= last[:, None])
    found = integrate_scores(s, v, seen, cap, sink)
    for row in range(3):
        alone = score_weights(s[row, seen[row]], v[row, seen[row]], cap, sink)
        own = found.weights[row]
        torch.testing.assert_close(own[seen[row]], alone.weights[0], rtol=1e-12, atol=1e-14)
        assert not bool(own[~seen[row]].any())
        for name in ("uniform", "effect", "sink"):
            one, other = float(getattr(found, name)[row]), float(getattr(alone, name)[0])
            assert one == pytest.approx(other, abs=1e-13)


numbers = st.integers(0, 200)
components = st.one_of(
    st.builds(HeadId, numbers, numbers),
    st.builds(Source, st.sampled_from(["mlp", "bias"]), numbers),
    st.sampled_from([Source("embed"), Source("pos"), Source("unembed_bias")]),
    numbers.map(Part.position),
    st.sampled_from([Part.bias("query"), Part.bias("key")]),
)


@given(components, st.one_of(st.builds(HeadId, numbers, numbers), st.just(LOGITS)), st.data())
def test_nodes_and_their_edges_print_as_they_parse(
    writer: HeadId | Source | Part, reader: HeadId | Source, data: st.DataObject
) -> None:
    at, to = data.draw(numbers), data.draw(numbers)
    side = data.draw(st.sampled_from(HEAD_SIDES)) if isinstance(reader, HeadId) else None
    start, end = Site(writer, at=at), Site(reader, at=to)
    assert Site.parse(str(start)) == start
    edge = Site.edge(start, end, side)
    assert Site.parse(str(edge)) == edge
    assert (edge.start, edge.end) == (start, end)


@pytest.mark.parametrize(
    "changes",
    [
        {"windows": (2, None, 3)},
        {"windows": (2, None, 3), "positions": "rotary", "rotary_local_base": 100.0},
        {"norm": "rms", "norm_place": "both"},
        {"norm": "rms", "norm_place": "after"},
        {"sinks": True},
        {"qk_norm": "rms_all"},
        {"score_cap": 2.0, "logit_cap": 5.0},
    ],
    ids=str,
)
def test_inputs_add_up_on_what_real_models_have(changes: dict[str, Any]) -> None:
    sizes = {"n_layers": 3, "n_heads": 4, "n_kv_heads": 2, "d_model": 12, "d_head": 4}
    config = Config(**sizes, d_vocab=17, n_ctx=8, **changes)
    model = random_model(config, seed=1, dtype=torch.float64, biases=True, gains=True)
    trace = model.trace(torch.tensor([[3, 1, 4, 1, 5, 9, 2]]))
    found = find_circuit(trace, -1, 6, "mean", 1e-4, effects=False)
    assert found.remainder < 1e-9
    size = max(abs(one.value) for one in found.nodes)
    shares = sum_inputs(found, "share")
    taken_apart = 0
    for one in inner_nodes(found):
        assert shares[one.node, Side.V] == pytest.approx(one.value, abs=1e-9 * size)
        if one.attended is None:
            continue
        worth = one.attended.uniform + one.attended.effect
        assert worth == pytest.approx(one.value, abs=1e-9 * size)
        for kind in (Side.Q, Side.K) if not one.note else ():
            taken_apart += 1
            assert shares[one.node, kind] == pytest.approx(one.attended.effect, abs=1e-5 * size)
    assert taken_apart


@given(
    models_with_tokens(max_layers=3, max_heads=3, positions=("qk", "residual", "none")), st.data()
)
@settings(max_examples=30)
def test_a_key_bias_changes_no_share(drawn: tuple[Model, Tensor], data: st.DataObject) -> None:
    """Without rotary positions b_K adds a constant to every row of scores."""
    model, tokens = drawn
    config = model.config
    if not config.n_layers or config.qk_norm != "none":
        return
    seed = data.draw(st.integers(0, 2**16))
    generator = torch.Generator().manual_seed(seed)
    shape = config.n_layers, config.n_kv_heads, config.d_head
    added = 4 * torch.randn(shape, generator=generator, dtype=torch.float64)
    tensors = dict(model.weights.items())
    for layer in range(config.n_layers):
        name = f"layers.{layer}.b_K"
        tensors[name] = tensors.get(name, torch.zeros(shape[1:]).double()) + added[layer]
    biased = replace(
        model, weights=Weights(config, MemoryStore(tensors), torch.float64, model.weights.device)
    )
    one, other = (
        find_circuit(each.trace(tokens[:1]), -1, 0, "mean", 1e-6, effects=False)
        for each in (model, biased)
    )
    assert other.total == pytest.approx(one.total, rel=1e-9, abs=1e-9)
    size = max(1.0, *(abs(edge.share) for edge in one.edges), 0.0)
    shares = {edge.name: edge.share for edge in one.edges}
    floor = max(one.floor, other.floor)
    for edge in other.edges:
        if str(edge.edge.writer) == "b_K":
            assert abs(edge.share) <= 1e-9 * size * max(1.0, float(added.abs().max()) ** 2)
        elif abs(edge.share) > 2 * floor:
            assert edge.share == pytest.approx(shares[edge.name], rel=1e-6, abs=1e-7 * size)
