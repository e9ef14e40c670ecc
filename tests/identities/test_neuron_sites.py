"""Neurons and streams as sites of a run: what an edit there must equal, in float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.identities.configs import Drawn, close, mlp_models_with_tokens

import pathsum as ps
from pathsum.base import Source
from pathsum.base.errors import NotExactError, PathsumError
from pathsum.base.site import Site
from pathsum.model import Model, Trace


def pick(drawn: Drawn, number: int) -> tuple[Model, Trace, int, int]:
    """A run with a layer and a neuron of it."""
    model, tokens = drawn
    layer, neuron = number % model.config.n_layers, number % model.config.d_mlp
    return model, model.trace(tokens), layer, neuron


def replaced(trace: Trace, layer: int, neuron: int, act: float, at: int | None = None) -> Trace:
    """The run with a neuron's activation set, by replacing the whole output of its MLP."""
    W_out = trace.weights.layers[layer].W_out
    assert W_out is not None
    change = (act - trace[f"mlp{layer}.act"][..., neuron : neuron + 1]) * W_out[neuron]
    if at is not None:
        kept = torch.zeros(change.shape[1], 1, dtype=change.dtype)
        kept[at] = 1
        change = change * kept
    return trace.patch({f"mlp{layer}": trace[f"mlp{layer}"] + change})


@settings(max_examples=40)
@given(mlp_models_with_tokens(), st.integers(0, 100))
def test_a_neuron_is_its_row_of_the_output(drawn: Drawn, number: int) -> None:
    model, trace, layer, neuron = pick(drawn, number)
    if model.config.norm_place != "before":
        with pytest.raises(NotExactError, match="a norm follows the MLPs"):
            trace[f"mlp{layer}.n{neuron}"]
        return
    name, last = f"mlp{layer}.n{neuron}", trace.tokens.shape[1] - 1
    for act in (0.0, 1.5):
        value = torch.tensor([act], dtype=torch.float64)
        whole = replaced(trace, layer, neuron, act)
        assert close(trace.patch({name: value}).logits, whole.logits)
        assert close(model.edited({name: value})(trace.tokens), whole.logits)
        assert close(
            trace.patch({f"{name}@{last}": value}).logits,
            replaced(trace, layer, neuron, act, last).logits,
        )
    without = trace[f"mlp{layer}"] - trace[name]
    cut = trace.patch({f"{name}→logits": "zero"})
    assert close(cut.logits, trace.patch({f"mlp{layer}→logits": without}).logits)


@settings(max_examples=40)
@given(mlp_models_with_tokens(), st.integers(0, 100))
def test_values_of_neurons_make_the_output(drawn: Drawn, number: int) -> None:
    _, trace, layer, _ = pick(drawn, number)
    other = trace.model.trace(trace.tokens.flip(-1))
    mlp, names = f"mlp{layer}", ["pre", "gate"] if trace.model.config.gated else ["pre"]
    whole = trace.patch({mlp: other}).logits
    if not trace.model.config.n_experts:
        # The router reads the stream itself.
        assert close(trace.patch({f"{mlp}.{name}": other for name in names}).logits, whole)
    if trace.weights.layers[layer].b_experts is None:
        assert close(trace.patch({f"{mlp}.act": other}).logits, whole)
    seen: dict[str, torch.Tensor] = {}
    hooks = {
        f"{mlp}.{name}": lambda x, name=name: seen.update({name: x}) for name in [*names, "act"]
    }
    trace.model.trace(trace.tokens, hooks=hooks)
    for name, value in seen.items():
        assert close(trace[f"{mlp}.{name}"], value)


@settings(max_examples=30)
@given(mlp_models_with_tokens(), st.integers(0, 100))
def test_a_stream_from_another_run_gives_that_run(drawn: Drawn, number: int) -> None:
    model, tokens = drawn
    layer = number % (model.config.n_layers + 1)
    trace, other = model.trace(tokens), model.trace(tokens.flip(-1))
    assert close(trace.patch({f"residual{layer}": other}).logits, other.logits)
    last = tokens.shape[1] - 1
    at = trace.patch({f"residual{layer}@-1": other}).streams[layer]
    assert torch.equal(at[:, last], other.streams[layer][:, last])
    assert torch.equal(at[:, :last], trace.streams[layer][:, :last])


CONFIG = ps.Config(
    n_layers=2, n_heads=2, d_model=8, d_head=4, d_vocab=11, n_ctx=8, mlp="gelu", d_mlp=6
)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mlp1.n6", "there is no mlp1.n6: mlp1 has 6 neurons, n0 to n5"),
        ("mlp2.n0", "there is no mlp2: this model has layers 0 to 1"),
        ("mlp0.gate", "mlp='gelu' has no W_gate; use 'mlp0.pre'"),
        ("residual3", "so the last stream is residual2"),
        ("mlp0.value", "'mlp0.value' is not a site of a run"),
        ("L0H0.act", "'L0H0.act' is not a site of a run"),
    ],
)
def test_a_name_that_the_model_lacks_is_an_error(name: str, message: str) -> None:
    trace = ps.random_model(CONFIG).trace([[1, 2, 3]])
    with pytest.raises(PathsumError, match=message):
        trace.patch({name: "zero"})
    with pytest.raises(PathsumError, match=message):
        trace[name]


def test_a_model_without_mlps_has_no_neurons() -> None:
    trace = ps.construct.induction().trace("a b")
    for call in (lambda: trace["mlp0.act"], lambda: trace.patch({"mlp0.n0": "zero"})):
        with pytest.raises(PathsumError, match="there is no mlp0: this model has no MLPs"):
            call()


def test_neurons_of_an_edited_run_are_not_recorded() -> None:
    trace = ps.random_model(CONFIG).trace([[1, 2, 3]])
    for name in ("mlp0.n2", "mlp0.pre"):
        patched = trace.patch({name: "zero"})
        with pytest.raises(NotExactError, match="the neurons of mlp0 were edited"):
            patched["mlp0.act"]
        with pytest.raises(NotExactError):
            patched.paths(mlps="linear")
        assert patched["mlp1.act"].shape == (1, 3, 6)


def test_names_of_neurons_read_back() -> None:
    for name in (
        "mlp3.n512",
        "mlp3.n512@7",
        "mlp3.n512@7→L4H1@9.k",
        "mlp3.n0→logits",
        "mlp3@7.act",
    ):
        assert str(Site.parse(name)) == name
        assert Site.parse(Site.parse(name)) == Site.parse(name)


def test_effects_of_edges_into_mlps_and_logits() -> None:
    model = ps.random_model(CONFIG)
    trace, other = model.trace([[1, 2, 3]]), model.trace([[4, 5, 6]])
    every = ps.causal_effects(trace, other)
    some = ps.causal_effects(trace, other, into=["logits", "mlp1", "L1H0"])
    readers = {str(found.edge.reader) for found in some.effects}
    assert readers == {"logits", "mlp1", "L1H0"}
    for found in some.effects:
        assert found.effect.value == pytest.approx(every.edge(found.edge).effect.value)
    with pytest.raises(PathsumError, match="'mlp1.n2' is not a reader"):
        ps.causal_effects(trace, other, into=["mlp1.n2"])


def test_only_mlps_have_values_of_neurons() -> None:
    trace = ps.random_model(CONFIG).trace([[1, 2, 3]])
    for source, value in (("embed", "act"), ("mlp0", "value")):
        with pytest.raises(PathsumError, match=f"'{source}.{value}' is not a value of neurons"):
            trace.neuron_values(Source.parse(source), value)
