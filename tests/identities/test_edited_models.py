"""Edited models, as properties over every variant of model: an edited model is a model."""

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.identities.configs import Drawn, close, models_with_tokens
from torch import Tensor

from pathsum.base import LOGITS, Side
from pathsum.base.errors import NotExactError
from pathsum.model import HeadId, Model, Source, fold
from pathsum.paths.causal import edges_of

SIZES: dict[str, Any] = {"min_layers": 1, "max_layers": 3, "max_heads": 4}


@st.composite
def edits(draw: st.DrawFn, model: Model, *, linear: bool) -> dict[Any, Any]:
    """Some nodes, edges and a pattern; `linear`: only such that leave the logits a sum of paths."""
    values = st.sampled_from(["zero", "mean"])
    nodes: list[Any] = [head.id for head in model.heads] + [Source("embed")]
    if model.config.mlp != "none":
        nodes += [Source("mlp", layer) for layer in range(model.config.n_layers)]
    found: dict[Any, Any] = {
        node: draw(values) for node in draw(st.lists(st.sampled_from(nodes), max_size=2))
    }
    edges = [
        edge
        for edge in edges_of(model)
        if not linear or (edge.reader != LOGITS and edge.side is not Side.V)
    ]
    # A head that writes its mean writes a bias, and its edges cannot be edited (refused).
    means = {node for node, value in found.items() if isinstance(node, HeadId) and value == "mean"}
    edges = [edge for edge in edges if edge.writer not in means]
    found |= {edge: draw(values) for edge in draw(st.lists(st.sampled_from(edges), max_size=3))}
    head = draw(st.sampled_from([head.id for head in model.heads]))
    others = [one.id for one in model.heads if one.id.layer <= head.layer and one.id != head]
    if others and draw(st.booleans()):
        found[f"{head}.pattern"] = draw(st.sampled_from(others))
    return found


@given(models_with_tokens(**SIZES), st.data())
@settings(max_examples=12, deadline=None)
def test_decompositions_of_an_edited_model_add_up(drawn: Drawn, data: st.DataObject) -> None:
    model, tokens = drawn
    wanted = data.draw(edits(model, linear=True))
    assume(wanted and tokens.shape[1] > 1)
    edited = model.edited(wanted, text=tokens if "mean" in wanted.values() else None)
    trace = edited.trace(tokens)
    assert close(edited(tokens), trace.logits)
    assert trace.paths().remainder() < 1e-9
    read = {edge.reader for edge in edited.weights.edited_edges}
    for head in (head.id for head in edited.heads):
        if head in read or head in edited.weights.edited_patterns:
            with pytest.raises(NotExactError, match=f"scores of {head}"):
                trace.scores(head)
        else:
            assert trace.scores(head).remainder() < 1e-9


@given(models_with_tokens(**SIZES), st.data())
@settings(max_examples=12, deadline=None)
def test_an_edited_model_runs_as_its_edits_in_a_run(drawn: Drawn, data: st.DataObject) -> None:
    """The same edits made in one run of the plain model, with the same means, give its logits."""
    model, tokens = drawn
    wanted = data.draw(edits(model, linear=False))
    wanted = {name: value for name, value in wanted.items() if not isinstance(value, HeadId)}
    assume(wanted and tokens.shape[1] > 1)
    edited = model.edited(wanted, text=tokens if "mean" in wanted.values() else None)
    assert close(edited(tokens), model.trace(tokens).patch(wanted).logits)
    assert close(fold(edited)(tokens), edited(tokens))


@given(models_with_tokens(**SIZES), st.data())
@settings(max_examples=9, deadline=None)
def test_patches_of_an_edited_model(drawn: Drawn, data: st.DataObject) -> None:
    """Layers that are shared with the edited model's own run change nothing."""
    model, tokens = drawn
    wanted = data.draw(edits(model, linear=False))
    assume(wanted and tokens.shape[1] > 1)
    edited = model.edited(wanted, text=tokens if "mean" in wanted.values() else None)
    trace = edited.trace(tokens)
    head = data.draw(st.sampled_from([head.id for head in model.heads]))
    at = data.draw(st.integers(1, tokens.shape[1] - 1))
    patched = trace.patch({f"{head}@{at}": "zero"})
    assert close(patched.streams[0], trace.streams[0])
    if model.config.causal:
        assert close(patched.logits[:, :at], trace.logits[:, :at])
    hooked = edited.trace(tokens, hooks={f"{head}.z": lambda z: _zeroed(z, at)})
    assert close(patched.logits, hooked.logits)


def _zeroed(z: Tensor, at: int) -> Tensor:
    z = z.clone()
    z[:, at] = 0
    return z


@given(models_with_tokens(min_layers=2, max_layers=2, max_heads=2))
@settings(max_examples=3, deadline=None)
def test_values_and_logits_that_see_something_else_are_no_sum_over_paths(drawn: Drawn) -> None:
    model, tokens = drawn
    for edge in (("L0H0", "L1H0", "v"), ("L0H0", "logits")):
        trace = model.edited({edge: "zero"}).trace(tokens)
        with pytest.raises(NotExactError, match="not a sum over its paths"):
            trace.paths()
