"""How much of a prediction a circuit keeps, on models whose circuits are known."""

import json
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.identities.configs import models_with_tokens
from torch import Tensor

from pathsum.base import HeadId, Source
from pathsum.base.errors import InputError
from pathsum.base.site import LOGITS, Side, Site
from pathsum.model import Config, Model, Trace, construct, random_model
from pathsum.model.edit import Edit, Writes
from pathsum.model.forward import run_logits
from pathsum.model.reference import mean_writes, reference_text
from pathsum.paths.cuts import values_with_only
from pathsum.paths.edges import edge_between, edges_into, random_order
from pathsum.paths.gradients import GradientScores, gradient_order
from pathsum.paths.graph import Graph
from pathsum.paths.target import PredictionRun, find_target
from pathsum.sources import load


def induction(model: Model | None = None) -> Graph:
    model = model or construct.induction()
    return model.trace("a b c d a").circuit(token="b", effects=False)


def test_the_circuit_of_induction_keeps_the_prediction_whatever_the_reference() -> None:
    model = construct.induction()
    circuit = induction(model)
    references: list[Trace | str] = ["zero", "mean", model.trace("e b c d a")]
    for reference in references:
        found = circuit.faithfulness(reference, baselines=())
        assert found.kept.value > 0.97
        assert found.damage.value > 0.99
        assert found.full.value == pytest.approx(circuit.total, rel=1e-5)


def test_without_edges_it_is_the_reference() -> None:
    model = construct.induction()
    circuit = induction(model)
    other = model.trace("e b c d a")
    found = circuit.faithfulness(other, baselines=())
    logits = other.logits[0, -1]
    assert found.empty.value == pytest.approx(
        float(logits[model.token_id("b")] - logits.mean()), rel=1e-5
    )
    # Nothing in the stream: this model has no biases, so all logits are 0.
    assert circuit.faithfulness("zero", baselines=()).empty.value == pytest.approx(0, abs=1e-5)


def test_half_a_circuit_by_hand() -> None:
    """Without its K edges the induction head attends by the reference's keys: to all alike."""
    trace = construct.induction().trace("a b c d a")
    target = find_target(trace, -1, "b", "mean")
    edges = [Site.parse(one) for one in ("L1H0@5→logits@5", "embed@2→L1H0@5.v")]
    found = values_with_only(PredictionRun(trace, target), [edges], Writes.zero(trace))
    ov = trace.model.head("L1H0").ov.dense()
    embedded = trace.weights.W_E[trace.tokens[0, 2]]
    # Keys and queries are zero but for positions, which this head does not read.
    logits = embedded @ ov @ trace.weights.W_U / 6
    value = logits[trace.model.token_id("b")] - logits.mean()
    assert float(found[0]) == pytest.approx(float(value), rel=1e-4)


def test_an_mlp_recomputed_or_held_by_hand() -> None:
    """With all its inputs zero, an MLP without biases writes nothing unless its output is held."""
    config = Config(1, 2, 12, 6, d_vocab=9, n_ctx=6, mlp="relu", d_mlp=20, positions="rotary")
    model = random_model(config, seed=3, dtype=torch.float64)
    trace = model.trace(torch.tensor([[1, 4, 2]]))
    target = find_target(trace, -1, versus="mean")
    rows, zero = [[Site.parse("mlp0@2→logits@2")]], Writes.zero(trace)
    of = PredictionRun(trace, target)
    held = values_with_only(of, rows, zero, hold_mlps=True)
    logits = trace.mlp_outputs[0][0, 2] @ model.weights.W_U
    torch.testing.assert_close(held[0], logits[target.tokens[0]] - logits.mean())
    assert values_with_only(of, rows, zero).tolist() == [0.0]
    last = trace.circuit(effects=False).faithfulness("zero", baselines=()).points[-1]
    assert last.held is not None
    assert last.held.value != last.kept.value


def test_only_models_with_mlps_in_circuits_have_a_share_kept_with_mlps_held() -> None:
    found = induction().faithfulness("zero", baselines=())
    assert found.held is None
    assert "MLPs held" not in str(found)
    model = load("two-layer-mlp")
    of_mlps = (
        model.trace("self.quixel = quixel\n        return self.quix")
        .circuit(effects=False)
        .faithfulness(baselines=())
    )
    assert of_mlps.held is not None
    assert "MLPs held" in str(of_mlps)


def test_random_circuits_keep_little_and_the_circuit_beats_them() -> None:
    found = induction().faithfulness("zero", draws=30, baselines=["random"])
    assert found.points[-1].random is not None
    assert found.points[-1].random.value < 0.2
    assert found.kept.p == pytest.approx(1 / 31)
    assert found.points[0].eap is None
    again = induction().faithfulness("zero", draws=30, baselines=["random"])
    assert again.dumps() == found.dumps()


def test_views() -> None:
    found = induction().faithfulness("zero", draws=2, sizes=[1, 2, 3])
    rows = found.to_dicts()
    assert [row["edges"] for row in rows][:3] == [1, 2, 3]
    assert rows[-1]["kept"] == found.kept.value
    assert "kept" in str(found)
    assert json.loads(found.dumps())["format"] == "pathsum-faithfulness"
    assert json.loads(found.dumps())["points"][-1]["kept"]["draws"] == 2


def test_the_curve_on_a_trained_model() -> None:
    trace = load("two-layer").trace("self.quixel = quixel\n        return self.quix")
    found = trace.circuit(token="el", effects=False).faithfulness("mean", sizes=[4, 20])
    assert [point.edges for point in found.points] == [4, 20]
    last = found.points[-1]
    assert last.random is not None
    assert last.kept.value > 0.7
    assert last.damage.value > 0.7
    assert last.random.value < 0.3


def test_a_mean_over_text_is_the_mean_of_what_is_written() -> None:
    model = load("two-layer")
    start = model.trace("one two three")
    texts = ["a first text", "another, longer text"]
    found = mean_writes(model, reference_text(model, texts).batches).expand_as(Writes.of(start))
    assert found.embed.shape == start.streams[0].shape
    written = torch.cat([model.trace(text).written("L1H3")[0, 1:] for text in texts])
    W_O = model.weights.layers[1].W_O[3]
    torch.testing.assert_close(found.z[1][0, 3, 0] @ W_O, written.mean(0), rtol=1e-4, atol=1e-5)
    alone = mean_writes(model, [start.tokens])
    torch.testing.assert_close(alone.embed[0, 0], start.streams[0][0, 1:].mean(0))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"reference": "men"}, "choose 'zero', 'mean' or 'other'"),
        ({"baselines": ["eapig"]}, "'eap-ig'"),
        ({"draws": 0}, "draws=0 is out of range"),
        ({"steps": 0}, "steps=0 is out of range"),
        ({"sizes": [0, 3]}, "numbers of edges"),
        ({"reference": "zero", "text": "a b"}, "leave it out"),
        ({"reference": "other"}, "found without another run"),
    ],
)
def test_bad_input(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        induction().faithfulness(**wrong)


def test_bad_references() -> None:
    model = construct.induction()
    circuit = induction(model)
    with pytest.raises(InputError, match="same length"):
        circuit.faithfulness(model.trace("a b"))
    with pytest.raises(InputError, match="another model"):
        circuit.faithfulness(construct.induction().trace("a b c d a"))
    with pytest.raises(InputError, match="a difference below 20% of the prediction"):
        circuit.faithfulness(model.trace("a b c d a"))


Drawn = tuple[Model, Tensor]


@given(models_with_tokens(min_layers=1, max_layers=2, max_heads=2), st.integers(0, 2**16))
@settings(max_examples=6)
def test_gradients_are_the_slope_of_the_prediction(drawn: Drawn, seed: int) -> None:
    """Mixing a little of the reference into one edge moves the prediction by its score."""
    model, tokens = drawn[0], drawn[1][:1]
    check_slopes(model, tokens, seed)


@pytest.mark.parametrize(
    "changes",
    [
        {"windows": (2, None), "sinks": True},
        {"norm": "rms", "norm_place": "both"},
        {"qk_norm": "rms_all", "positions": "rotary"},
        {"score_cap": 2.0, "logit_cap": 5.0, "norm": "layer"},
    ],
    ids=str,
)
def test_the_same_on_what_real_models_have(changes: dict[str, Any]) -> None:
    sizes = {"n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "d_model": 12, "d_head": 4}
    config = Config(**sizes, d_vocab=17, n_ctx=8, **changes)
    # Behind a norm after the heads, their bias is scaled by what they write; it is not an edge.
    biases = "norm_place" not in changes
    model = random_model(config, seed=1, dtype=torch.float64, biases=biases, gains=True)
    check_slopes(model, torch.tensor([[3, 1, 4, 1]]), 5)


def check_slopes(model: Model, tokens: Tensor, seed: int) -> None:
    trace, last, small = model.trace(tokens), tokens.shape[1] - 1, 1e-6
    target = find_target(trace, -1, seed % model.config.d_vocab, None)
    own, other = Writes.of(trace), Writes.of(model.trace((tokens + 1) % model.config.d_vocab))

    def near(one: Tensor, two: Tensor) -> Tensor:
        return one + small * (two - one)

    nearly = Writes(
        near(own.embed, other.embed),
        tuple(map(near, own.z, other.z)),
        tuple(map(near, own.mlp_outputs, other.mlp_outputs)),
    )
    scores, everything = GradientScores(trace, target, other), all_edges_of(model, last)
    top = HeadId(model.config.n_layers - 1, seed % model.config.n_heads)
    nodes = [
        Site(LOGITS, at=last),
        Site(top, at=last),
        Site(HeadId(0, 0), at=seed % (last + 1)),
    ]
    if model.config.mlp != "none":
        nodes.append(Site(Source("mlp", model.config.n_layers - 1), at=last))
    found = [pair for node in nodes for pair in scores.into(node, 8)]
    rows = [[edge for edge in everything if edge != cut] for cut, _ in found]
    of = PredictionRun(trace, target)
    before, *without = values_with_only(of, [everything, *rows], nearly).tolist()
    assert scores.of([edge for edge, _ in found]) == pytest.approx([score for _, score in found])
    assert before == pytest.approx(float(target.of(trace.uncapped_logits)[0]), rel=1e-9, abs=1e-9)
    size = max(abs(score) for _, score in found)
    for (edge, score), value in zip(found, without, strict=True):
        assert (before - value) / small == pytest.approx(score, rel=1e-3, abs=1e-4 * size + 1e-7), (
            edge
        )


def all_edges_of(model: Model, last: int) -> list[Site]:
    config = model.config
    nodes = [
        Site(HeadId(layer, head), at=at)
        for layer in range(config.n_layers)
        for head in range(config.n_heads)
        for at in range(last + 1)
    ]
    if config.mlp != "none":
        mlps = [Source("mlp", layer) for layer in range(config.n_layers)]
        nodes += [Site(mlp, at=at) for mlp in mlps for at in range(last + 1)]
    tops = (*nodes, Site(LOGITS, at=last))
    return [edge for node in tops for edge in edges_into(config, node, last + 1)]


@given(models_with_tokens(max_layers=2, max_heads=2), st.integers(0, 2**16), st.integers(1, 30))
@settings(max_examples=20)
def test_random_circuits_are_connected_and_of_the_size_asked_for(
    drawn: Drawn, seed: int, count: int
) -> None:
    model, last = drawn[0], drawn[1].shape[1] - 1
    generator = torch.Generator().manual_seed(seed)
    found = random_order(model.config, last, last + 1, count, generator)
    there = len(all_edges_of(model, last))
    assert len(found) == len(set(found))
    assert len(found) == count or len(found) <= there < count or _all_reached(model, last, found)
    reached = {Site(LOGITS, at=last)}
    for edge in found:
        assert edge.end in reached
        reached.add(edge.start)


def _all_reached(model: Model, last: int, found: list[Site]) -> bool:
    """Whether no edge into a node of the circuit is missing."""
    inside = {Site(LOGITS, at=last), *(edge.start for edge in found if edge.start.head)}
    return all(
        edge in found for node in inside for edge in edges_into(model.config, node, last + 1)
    )


def test_gradients_between_inputs_find_what_one_gradient_misses() -> None:
    """Attention that is saturated has no slope at the run itself, and has on the way there."""
    trace = construct.induction().trace("a b c d a")
    target = find_target(trace, -1, "b", "mean")
    zero = Writes.zero(trace)
    key = edge_between(HeadId(0, 0), 2, Site(HeadId(1, 0), at=5), Side.K)
    assert key in gradient_order(trace, target, zero, 6, steps=8)
    # At the inputs of the reference itself, the run is the reference.
    embed = Edit(Site(Source("embed")), zero.embed)
    logits = run_logits(trace.weights, trace.tokens, [embed])
    assert float(target.of(logits)[0]) == pytest.approx(0, abs=1e-6)
