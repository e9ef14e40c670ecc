"""What the pages are made of, as properties, on every variant of a model, in float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.identities.configs import models_with_tokens
from torch import Tensor

from pathsum.explorer.answers.prediction import PredictionParams, paths
from pathsum.explorer.answers.text import ScoresParams, scores
from pathsum.explorer.session import Session, open_model
from pathsum.model import Config, Model, Path, random_model
from pathsum.model.symmetries import scrambled
from pathsum.paths import (
    direct_attribution,
    effects_by_layer,
    logit_effects,
    moved_by_layer,
    routes,
)
from pathsum.paths.explanation import source_values
from pathsum.paths.frozen import Frozen

SMALL = {"max_layers": 3, "max_heads": 3}


def ids_of(tokens: Tensor) -> str:
    return ",".join(map(str, tokens[0].tolist()))


@given(models_with_tokens(causal=(True,), min_layers=1, **SMALL), st.integers(0, 99))
@settings(max_examples=25)
def test_the_dot_products_of_score_parts_add_up_to_the_scores(
    drawn: tuple[Model, Tensor], chosen: int
) -> None:
    model, tokens = drawn
    head = model.heads[chosen % len(model.heads)].label
    found = scores(Session([open_model(model)]), ScoresParams(ids=ids_of(tokens), head=head))
    terms = torch.einsum("qik,pjk->qpij", found.query, found.key)
    total = terms.sum((0, 1)).tril()
    expected = model.trace(tokens[:1]).scores(head).total()[0]
    torch.testing.assert_close(total, expected, rtol=1e-8, atol=1e-9)
    assert found.remainder < 1e-8
    assert len(found.query_parts) == len(found.query) == len(set(found.query_parts))


@given(models_with_tokens(causal=(True,), min_layers=1, **SMALL), st.integers(0, 2**16))
@settings(max_examples=25)
def test_effects_of_a_layer_are_those_of_its_heads(drawn: tuple[Model, Tensor], seed: int) -> None:
    model, tokens = drawn
    trace = model.trace(tokens)
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(model.config.d_vocab, tokens.shape, generator=generator)
    direct = direct_attribution(trace, targets)
    for layer, effects in enumerate(effects_by_layer(trace, targets)):
        for head in range(model.config.n_heads):
            label = f"L{layer}H{head}"
            one = logit_effects(trace, label, targets).total
            torch.testing.assert_close(effects[:, head], one, rtol=1e-8, atol=1e-9)
            torch.testing.assert_close(
                effects[:, head].sum(-1), direct[label], rtol=1e-8, atol=1e-9
            )


@given(models_with_tokens(causal=(True,), min_layers=1, **SMALL))
@settings(max_examples=30)
def test_what_is_moved_is_the_norm_of_what_is_written(drawn: tuple[Model, Tensor]) -> None:
    model, tokens = drawn
    trace = model.trace(tokens)
    for layer, moved in enumerate(moved_by_layer(trace)):
        raw = model.weights.layers[layer]
        for head in range(model.config.n_heads):
            value = trace.read(layer) @ raw.W_V[head // model.config.heads_per_kv]
            if raw.b_V is not None:
                value = value + raw.b_V[head // model.config.heads_per_kv]
            size = (value @ raw.W_O[head]).norm(dim=-1)
            expected = trace.patterns[layer][:, head] * size[:, None]
            torch.testing.assert_close(moved[:, head], expected, rtol=1e-7, atol=1e-8)


@given(
    models_with_tokens(causal=(True,), min_layers=1, norms=("none",), **SMALL), st.integers(0, 99)
)
@settings(max_examples=20)
def test_what_is_moved_does_not_depend_on_a_basis(drawn: tuple[Model, Tensor], seed: int) -> None:
    model, tokens = drawn
    here = moved_by_layer(model.trace(tokens))
    there = moved_by_layer(scrambled(model, seed).trace(tokens))
    for one, other in zip(here, there, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)


@given(
    models_with_tokens(causal=(True,), **SMALL),
    st.integers(0, 99),
    st.sampled_from(["mean", "none", 1]),
)
@settings(max_examples=25)
def test_paths_add_up(drawn: tuple[Model, Tensor], chosen: int, versus: str | int) -> None:
    model, tokens = drawn
    position = chosen % tokens.shape[1]
    params = PredictionParams(ids=ids_of(tokens), position=position, token=0, versus=versus)
    found = paths(Session([open_model(model)]), params)
    logits = model(tokens[0])[position]
    own = {"mean": logits.mean(), "none": 0.0, 1: logits[1]}[versus]
    toward, top = found.toward, found.top
    total = pytest.approx(float(logits[0] - own), rel=1e-7, abs=1e-8)
    assert toward.total == total
    for parts in (toward.by_order, toward.by_last, toward.by_source):
        assert parts.sum() == total
    assert sum(ranked.value for ranked in top) + top.rest == total
    assert len(top) == sum(found.counts) or sum(found.counts) > 600
    assert len(found.routes) == min(len(top), 40)
    for ranked, routes_of in zip(top, found.routes, strict=False):
        for start, way in zip(routes_of.positions, routes_of.ways, strict=True):
            assert way[0] == start and way[-1] == position
            assert len(way) == ranked.path.order + 1 and list(way) == sorted(way)


@given(models_with_tokens(causal=(True,), max_layers=2, max_heads=2), st.integers(0, 99))
@settings(max_examples=30)
def test_sources_of_a_path_add_up_to_it(drawn: tuple[Model, Tensor], chosen: int) -> None:
    model, tokens = drawn
    paths = model.trace(tokens[:1]).paths()
    why_here = paths.toward(chosen % tokens.shape[1], 0, "mean")
    for ranked in why_here.top(k=paths.count):
        if ranked.path.source.kind == "unembed_bias":
            assert routes(paths, why_here.target, [ranked.path])[0].positions == ()
            continue
        frozen = Frozen(paths.trace, length=int(why_here.target.positions[0]) + 1)
        (values,) = source_values(frozen, why_here.target, [ranked.path])
        assert float(values.sum()) == pytest.approx(ranked.value, rel=1e-7, abs=1e-9)


@given(models_with_tokens(causal=(True,), max_layers=3, max_heads=2), st.integers(0, 99))
@settings(max_examples=30)
def test_paths_that_share_heads_have_the_routes_they_have_alone(
    drawn: tuple[Model, Tensor], chosen: int
) -> None:
    model, tokens = drawn
    paths = model.trace(tokens[:1]).paths()
    target = paths.toward(chosen % tokens.shape[1], 0, "mean").target
    listed = list(paths)[:: 1 + chosen % 3]
    together = routes(paths, target, listed)
    position = int(target.positions[0])
    for path, found in zip(listed, together, strict=True):
        (alone,) = routes(paths, target, [path])
        assert found.positions == alone.positions and found.ways == alone.ways
        assert found.values == pytest.approx(alone.values, rel=1e-9, abs=1e-12)
        if path.order != 2:
            continue
        layers = [paths.frozen.head(head) for head in path.heads]
        low, high = (layer.pattern[0, 0] * layer.scale[0] for layer in layers)
        for start, way in zip(found.positions, found.ways, strict=True):
            products = high[position] * low[:, start]
            assert float(products[way[1]]) == pytest.approx(float(products.max()), rel=1e-9)


def test_a_path_that_carries_nothing_has_no_routes() -> None:
    config = Config(n_layers=2, n_heads=1, d_model=8, d_head=4, d_vocab=9, n_ctx=6)
    model = random_model(config, seed=2, dtype=torch.float64)
    paths = model.edited({"L0H0": "zero"}).trace([1, 2, 3]).paths()
    target = paths.toward(2, 0).target
    assert routes(paths, target, [Path("embed", ["L0H0", "L1H0"])])[0].positions == ()


def test_the_strongest_way_is_the_one_with_the_largest_product() -> None:
    config = Config(n_layers=2, n_heads=2, d_model=8, d_head=4, d_vocab=9, n_ctx=6)
    trace = random_model(config, seed=2, dtype=torch.float64).trace([1, 2, 3, 4, 5])
    paths = trace.paths()
    target = paths.toward(4, 0).target
    for path in paths.order(2):
        low, high = (trace.pattern(head)[0] for head in path.heads)
        (found,) = routes(paths, target, [path])
        for start, way in zip(found.positions, found.ways, strict=True):
            products = high[4] * low[:, start]
            assert way == (start, int(products.argmax()), 4)
