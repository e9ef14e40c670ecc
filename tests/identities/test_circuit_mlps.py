"""Circuits through MLPs and between two runs add up on every family of models, in float64."""

from collections import defaultdict
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.identities.configs import Drawn, mlp_models_with_tokens, models_with_tokens

from pathsum.base.errors import InputError
from pathsum.base.site import Side
from pathsum.model import Config, Model, Trace, construct, random_model
from pathsum.model.store import MemoryStore
from pathsum.model.weights import Weights
from pathsum.paths.circuit import find_circuit
from pathsum.paths.edges import GraphEdge
from pathsum.paths.graph import Graph, Method
from pathsum.paths.growth import EDGE_PART
from pathsum.paths.score import score
from pathsum.paths.target import find_target

seeds = st.integers(0, 2**16)


def sums_by_kind(circuit: Graph) -> dict[str, dict[Side, float]]:
    """By node and kind: the sum over all edges into the node, omitted ones included."""
    sums: dict[str, dict[Side, float]] = defaultdict(lambda: defaultdict(float))
    for edge in circuit.edges:
        sums[str(edge.edge.end)][edge.kind] += edge.share
    for rest in circuit.left_out:
        sums[str(rest.node)][rest.kind] += rest.share
    return sums


def other_text(model: Model, trace: Trace) -> Trace:
    return model.trace((3 * trace.tokens + 1) % model.config.d_vocab)


def weights_with(model: Model, changes: dict[str, torch.Tensor]) -> Model:
    store = MemoryStore({**dict(model.weights.items()), **changes})
    weights = Weights(model.config, store, torch.float64, model.weights.device)
    return replace(model, weights=weights)


@given(mlp_models_with_tokens(), seeds, st.sampled_from([1e-6, 0.02, 0.2]))
@settings(max_examples=25)
def test_values_and_gates_each_add_up_to_an_mlp(drawn: Drawn, seed: int, threshold: float) -> None:
    model, tokens = drawn
    trace, token = model.trace(tokens[:1]), seed % model.config.d_vocab
    found = find_circuit(trace, -1, token, "mean", threshold, effects=False)
    assert found.remainder < 1e-9
    size = max(1e-9, *(abs(one.value) for one in found.nodes))
    sums = sums_by_kind(found)
    mlps = [one for one in found.nodes if str(one.node.writer).startswith("mlp")]
    for one in mlps:
        if str(one.node.writer).startswith("mlp_bias"):
            continue
        for side in (Side.U, Side.G):
            assert sums[str(one.node)][side] == pytest.approx(one.value, abs=1e-9 * size)


@given(st.one_of(mlp_models_with_tokens(), models_with_tokens(max_layers=3, max_heads=3)), seeds)
@settings(max_examples=40)
def test_all_edges_add_up_to_the_difference_of_two_runs(drawn: Drawn, seed: int) -> None:
    model, tokens = drawn
    trace, token = model.trace(tokens), seed % model.config.d_vocab
    other, row = other_text(model, trace), seed % len(tokens)
    threshold = (1e-6, 0.02, 0.2)[seed % 3]
    found = find_circuit(
        trace, -1, token, "mean", threshold, sequence=row, other=other, effects=False
    )
    assert found.by is Method.INTEGRATED
    logits = trace.logits[row, -1], other.logits[row, -1]
    own, there = (float(one[token] - one.mean()) for one in logits)
    assert found.nodes[0].value == pytest.approx(own - there, rel=1e-9, abs=1e-12)
    assert found.total == pytest.approx(own, rel=1e-9, abs=1e-12)
    size = max(1e-9, *(abs(one.value) for one in found.nodes))
    allowed = found.quadrature_error + 1e-9 * size
    assert found.quadrature_error < 1e-3 * max(1.0, size)
    sums = sums_by_kind(found)
    for one in found.nodes:
        if sums[str(one.node)]:
            assert sum(sums[str(one.node)].values()) == pytest.approx(one.value, abs=allowed)


@pytest.mark.parametrize("mlp", ["silu_gated", "gelu", "relu", "bilinear"])
@pytest.mark.parametrize("between", [False, True])
def test_neither_a_key_bias_nor_the_order_of_neurons_matters(mlp: str, between: bool) -> None:
    config = Config(*(2, 2, 12, 6, 17, 8), norm="rms").replace(mlp=mlp, d_mlp=10)
    model = random_model(config, seed=3, dtype=torch.float64, biases=True, gains=True)
    stored, changes = dict(model.weights.items()), dict[str, torch.Tensor]()
    order = torch.randperm(10, generator=torch.Generator().manual_seed(1))
    for name, tensor in stored.items():
        last = name.rpartition(".")[2]
        if last == "b_K":
            changes[name] = tensor + 4 * torch.randn(tensor.shape, dtype=torch.float64)
        elif last == "W_out":
            changes[name] = tensor[order]
        elif last in ("W_in", "W_gate", "b_in", "b_gate"):
            changes[name] = tensor[..., order]
    assert any(name.endswith("b_K") for name in changes)
    graphs: list[Graph] = []
    for each in (model, weights_with(model, changes)):
        trace = each.trace([[3, 1, 4, 1, 5]])
        other = other_text(each, trace) if between else None
        graphs.append(find_circuit(trace, -1, 6, "mean", 0.01, other=other, effects=False))
    one, two = ({edge.name: edge.share for edge in graph.edges} for graph in graphs)
    assert one == pytest.approx({name: two[name] for name in one if "b_K" not in name}, abs=1e-9)


def test_a_node_is_kept_by_the_sum_of_its_edges() -> None:
    config = Config(*(3, 4, 24, 6, 30, 12), norm="rms", mlp="gelu", d_mlp=32)
    trace = random_model(config, seed=1, dtype=torch.float64).trace([[3, 1, 4, 1, 5, 9, 2, 6]])
    found = find_circuit(trace, -1, 7, "mean", 0.05, effects=False)
    weak: dict[str, list[GraphEdge]] = defaultdict(list)
    for edge in found.edges:
        if edge.strength < found.floor:
            weak[str(edge.edge.start)].append(edge)
            assert abs(edge.share) >= EDGE_PART * found.floor
    assert weak
    for edges in weak.values():
        # Values and gates are two views, each counted by half.
        together = sum(e.share / (2 if e.kind in (Side.U, Side.G) else 1) for e in edges)
        assert abs(together) >= found.floor


def test_both_inputs_of_an_mlp_are_in_the_circuit() -> None:
    """An MLP that adds a moved token to the current one."""
    model = construct.conjunction()
    trace, other = model.trace("a b"), model.trace("c d")
    for found in (trace.circuit(), trace.circuit(other=other)):
        edges = {str(edge.edge.without_positions) for edge in found.edges}
        assert {"embed→mlp0.u", "L0H0→mlp0.u", "mlp0→logits"} <= edges
        for edge in found.edges:
            if edge.kind in (Side.U, Side.G) and edge.effect is not None:
                cut = trace.patch({edge.name: other if found.by is Method.INTEGRATED else "zero"})
                target = find_target(trace, -1, None, "mean")
                drop = target.of(trace.logits)[0] - target.of(cut.logits)[0]
                assert edge.effect == pytest.approx(float(drop), abs=1e-5)


def test_an_integrated_score_needs_a_run_of_the_same_length() -> None:
    trace = construct.memory().trace("a b")
    target = find_target(trace, -1, None, "mean")
    with pytest.raises(InputError, match="reference is 'zero'; pass a trace of the same length"):
        score(trace, target, by="integrated")
    with pytest.raises(InputError, match="tokens"):
        score(trace, target, by="integrated", reference=trace.model.trace("a b c"))


def test_a_circuit_ends_at_an_mlp_that_is_no_value_times_a_gate() -> None:
    config = Config(*(2, 2, 12, 6, 17, 8), norm="layer", mlp="solu", d_mlp=10)
    trace = random_model(config, seed=3).trace([[3, 1, 4, 1, 5]])
    found = trace.circuit(other=trace.model.trace([[2, 7, 1, 8, 2]]))
    assert {edge.kind for edge in found.edges} <= {Side.V, Side.Q, Side.K}
    mlps = [one for one in found.nodes if str(one.node).startswith("mlp")]
    assert mlps and all("'solu' is not a value times a gate" in one.note for one in mlps)
    kept = found.faithfulness("other", draws=2)
    assert kept.points[-1].eap is not None
