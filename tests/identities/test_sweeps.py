"""Sweeps of patches, hooks and gradients against one patch at a time, over every variant."""

from collections.abc import Callable

import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.identities.configs import Drawn, models_with_tokens
from torch import Tensor

from pathsum.model import Model
from pathsum.paths import causal_effects, patch_sweep


def corrupted(model: Model, tokens: Tensor, first: int) -> Tensor:
    """Other tokens from a position on."""
    other = tokens.clone()
    other[:, first:] = (other[:, first:] + 1) % model.config.d_vocab
    return other


def close(found: float, truth: float, size: float) -> bool:
    return abs(found - truth) <= 1e-9 * max(1.0, size)


@given(models_with_tokens(min_layers=1, max_layers=3, max_heads=3), st.data())
@settings(max_examples=10, deadline=None)
def test_a_sweep_is_one_patch_at_a_time(drawn: Drawn, data: st.DataObject) -> None:
    model, tokens = drawn
    length = tokens.shape[1]
    first = data.draw(st.integers(0, length - 1))
    clean, other = model.trace(tokens), model.trace(corrupted(model, tokens, first))
    at = data.draw(st.integers(first, length - 1))
    nodes = [head.id for head in model.heads] + ["embed"]
    nodes += ["mlp0"] if model.config.mlp != "none" else []
    everywhere = data.draw(st.booleans())

    def metric(logits: Tensor) -> Tensor:
        return logits.square().mean((1, 2)) if everywhere else logits[:, 0, 1].sin()

    position = None if everywhere else at
    sweep = patch_sweep(
        model, tokens, other.tokens, metric=metric, position=position, nodes=nodes, into="clean"
    )
    base = metric(clean.logits if everywhere else clean.logits[:, [at]])
    columns = length if everywhere else model.config.visible_length(at, length)
    assert sweep.effect.shape == (len(nodes), columns)
    for node in nodes[:: max(1, len(nodes) // 3)]:
        place = data.draw(st.integers(0, columns - 1))
        logits = clean.patch({f"{node}@{place}": other}).logits
        alone = metric(logits if everywhere else logits[:, [at]]) - base
        found = sweep[f"{node}@{place}"].value
        assert close(found, float(alone.mean()), float(base.abs().max()))


@given(models_with_tokens(min_layers=1, max_layers=3, max_heads=3), st.data())
@settings(max_examples=10, deadline=None)
def test_all_edges_are_one_patch_at_a_time(drawn: Drawn, data: st.DataObject) -> None:
    model, tokens = drawn
    first = data.draw(st.integers(0, tokens.shape[1] - 1))
    trace, other = model.trace(tokens), model.trace(corrupted(model, tokens, first))
    if data.draw(st.booleans()):
        # On a patched run every edge is run by itself.
        trace = trace.patch({"L0H0@0": "zero"})
    at = data.draw(st.integers(0, tokens.shape[1] - 1))
    effects = causal_effects(trace, other, position=at, token=1, versus="mean")
    edges = [effect.edge for effect in effects.effects]
    for edge in edges[:: max(1, len(edges) // 6)]:
        patched = trace.patch({edge: other})
        values = [run.logits[:, at, 1] - run.logits[:, at].mean(-1) for run in (trace, patched)]
        truth = float((values[0] - values[1]).mean())
        assert close(effects[edge], truth, float(trace.logits.abs().max()))


@given(models_with_tokens(min_layers=1, max_layers=2, max_heads=3), st.data())
@settings(max_examples=10, deadline=None)
def test_gradients_are_those_of_finite_differences(drawn: Drawn, data: st.DataObject) -> None:
    model, tokens = drawn
    assume(model.config.mlp != "relu")  # a kink may lie between the two sides
    trace = model.trace(tokens, requires_grad=True)
    head = data.draw(st.sampled_from([head.id for head in model.heads]))
    weights = torch.randn(
        trace.logits.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    values = {
        f"{head}.z": trace.z(head.layer),
        f"{head}.pattern": trace.patterns[head.layer],
        f"residual{head.layer}": trace.streams[head.layer],
    }
    if model.config.mlp != "none":
        values[f"mlp{head.layer}"] = trace.mlp_outputs[head.layer]
    slopes = torch.autograd.grad((trace.logits * weights).sum(), list(values.values()))
    step = 1e-5
    for (name, value), slope in zip(values.items(), slopes, strict=True):
        here = slope[:, head.head] if name.endswith((".z", ".pattern")) else slope
        generator = torch.Generator().manual_seed(1)
        way = torch.randn(here.shape, dtype=torch.float64, generator=generator)
        sides = [
            float((model.trace(tokens, hooks={name: shift(way * by)}).logits * weights).sum())
            for by in (step, -step)
        ]
        truth = (sides[0] - sides[1]) / (2 * step)
        size = float((here * way).abs().sum()) + 1.0
        assert abs(float((here * way).sum()) - truth) <= 1e-5 * size, name
        assert value.requires_grad


def shift(by: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda value: value + by
