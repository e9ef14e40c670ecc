"""Paths through MLPs with their gates held, on every family, in float64."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.identities.configs import Drawn, close, mlp_models_with_tokens, relative
from torch import Tensor

import pathsum as ps
from pathsum.base.errors import InputError, NotExactError, PathError
from pathsum.base.path import level_of
from pathsum.model import HeadId, Model, Path, Source
from pathsum.paths import LogitAttribution, PathSum, by_mlp
from pathsum.paths.frozen import Frozen, FrozenMlp, Gates
from pathsum.paths.order_sweep import (
    DownSweep,
    MlpAdjointStep,
    MlpOutputs,
    UpSweep,
    final_stream,
    truncate,
)
from pathsum.paths.path_bounds import mlp_norm_bound, mlp_spread
from pathsum.paths.path_sum import expand_logits

SMALL: dict[str, Any] = {"max_layers": 2, "max_heads": 2}


def linear(model: Model, tokens: Tensor) -> PathSum:
    return model.trace(tokens).paths(mlps="linear")


def explained(drawn: Drawn, seed: int) -> tuple[PathSum, LogitAttribution]:
    model, tokens = drawn
    generator = torch.Generator().manual_seed(seed)
    batch, length = tokens.shape
    position = torch.randint(-length, length, (batch,), generator=generator)
    token, other = torch.randint(model.config.d_vocab, (2, batch), generator=generator)
    paths = linear(model, tokens)
    return paths, paths.toward(position, token, (None, "mean", other)[seed % 3])


@given(mlp_models_with_tokens(max_layers=5, max_heads=3))
@settings(max_examples=80)
def test_the_total_is_the_model(drawn: Drawn) -> None:
    assert linear(*drawn).remainder() < 1e-10


@given(mlp_models_with_tokens(dtype=torch.float32))
@settings(max_examples=20)
def test_the_total_is_the_model_in_float32(drawn: Drawn) -> None:
    assert linear(*drawn).remainder() < 1e-4


@given(mlp_models_with_tokens(**SMALL))
@settings(max_examples=25)
def test_contributions_of_all_paths_add_up(drawn: Drawn) -> None:
    model, tokens = drawn
    paths = linear(model, tokens)
    listed = list(paths)
    assert len(listed) == len(set(listed)) == paths.count == sum(paths.counts)
    total = torch.stack([paths.contribution(path) for path in listed]).sum(0)
    assert relative(total, paths.trace.logits) < 1e-10
    orders = [path.order for path in listed]
    assert orders == sorted(orders)
    for order, count in enumerate(paths.counts):
        of_order = list(paths.order(order))
        assert of_order == [path for path in listed if path.order == order]
        assert len(of_order) == count
    for path in listed:
        assert Path.parse(str(path)) == path == Path.parse(f"{path}→logits")
        assert not any(source.kind == "mlp" for source in paths.sources)


@given(mlp_models_with_tokens(**SMALL), st.integers(0, 2**16))
@settings(max_examples=25)
def test_totals_are_sums_over_listed_paths(drawn: Drawn, seed: int) -> None:
    paths, why = explained(drawn, seed)
    value = {
        path: float(why.target.of(paths.contribution(path)).mean())
        if path.source.kind != "unembed_bias"
        else None
        for path in paths
    }
    bias = why.by_source.values[len(paths.sources) - 1].sum()
    value = {path: float(bias) if one is None else one for path, one in value.items()}
    size = max(1.0, *map(abs, value.values()))

    def total(*wanted: bool) -> float:
        return sum(one for one, kept in zip(value.values(), wanted, strict=True) if kept)

    def near(found: float, truth: float) -> bool:
        return abs(found - truth) <= 1e-9 * size

    assert near(why.total, sum(value.values())) and why.remainder < 1e-10
    for order in range(len(paths.counts)):
        assert near(why.by_order[order], total(*(path.order == order for path in value)))
    for name in (*why.by_head.names, *why.by_mlp.names):
        by = why.by_head if isinstance(name, HeadId) else why.by_mlp
        assert near(by[name], total(*(name in path.steps for path in value)))
    for name in why.by_last.names:
        last = ((path.steps or (path.source,))[-1] for path in value)
        assert near(why.by_last[name], total(*(one == name for one in last)))
    for writer in why.by_edge.rows:
        for reader in why.by_edge.columns:
            edge: tuple[object, object] = (writer, reader)
            used = (edge in [*pairwise((path.source, *path.steps, "logits"))] for path in value)
            assert near(why.by_edge[writer, reader], total(*used))
    for place, source in enumerate(paths.sources):
        from_here = total(*(path.source == source for path in value))
        assert near(float(why.by_source.values[place].sum()), from_here)


@given(mlp_models_with_tokens(**SMALL), st.integers(0, 2**16), st.integers(1, 6))
@settings(max_examples=25)
def test_the_strongest_paths_are_proven_or_bounded(drawn: Drawn, seed: int, k: int) -> None:
    paths, why = explained(drawn, seed)
    sizes = {
        path: abs(float(why.target.of(paths.contribution(path)).mean()))
        for path in paths
        if path.source.kind != "unembed_bias"
    }
    for budget in (1, 50_000):
        top = why.top(k, budget)
        listed = {one.path for one in top}
        for one in top:
            if one.path in sizes:
                assert abs(abs(one.value) - sizes[one.path]) < 1e-9
        hidden = max((size for path, size in sizes.items() if path not in listed), default=0.0)
        weakest = min(abs(one.value) for one in top)
        assert hidden <= max(weakest, top.bound) + 1e-9
        if top.proven:
            assert hidden <= weakest + 1e-9
    assert top.proven


@given(mlp_models_with_tokens())
@settings(max_examples=40)
def test_an_mlp_is_linear_with_its_adjoint_and_within_its_bound(drawn: Drawn) -> None:
    model, tokens = drawn
    trace = model.trace(tokens)
    frozen = Frozen(trace, gates=Gates(trace))
    for layer in range(model.config.n_layers):
        mlp = frozen.mlp(layer)
        assert isinstance(mlp, FrozenMlp)
        x, g = torch.randn(2, 3, *trace.streams[0].shape, dtype=torch.float64)
        assert close((mlp.apply(x) * g).sum(), (x * mlp.adjoint(g)).sum())
        J = torch.einsum("dm,bpm,me->bpde", mlp.W_in, mlp.gate, mlp.W_out)
        norms = torch.linalg.matrix_norm(J, ord=2)
        assert bool((norms <= mlp_norm_bound(mlp, mlp_spread(mlp)) * (1 + 1e-9) + 1e-12).all())


@given(mlp_models_with_tokens())
@settings(max_examples=40)
def test_sweeps_keep_orders_apart(drawn: Drawn) -> None:
    model, tokens = drawn
    trace = model.trace(tokens)
    frozen = Frozen(trace, gates=Gates(trace))
    sweep = UpSweep.of(frozen, orders=frozen.orders(frozen.n_layers))
    for _ in sweep:
        pass
    assert close(sweep.streams.sum(0), trace.streams[-1])
    assert close(final_stream(frozen), trace.streams[-1])
    top = torch.randn_like(trace.streams[-1])
    down = DownSweep(frozen, top)
    for _ in down.steps_to(0):
        pass
    # All that does not come from the embeddings is added on the way.
    alone = UpSweep.of(frozen)
    met = (frozen.start * down.gradients[0]).sum()
    gradients = DownSweep(frozen, top)
    for step in gradients.steps_to(0):
        mlp = isinstance(step, MlpAdjointStep)
        added = frozen.source_sum(2 * step.index + mlp)
        if added is not None:
            met = met + (added * gradients.gradients[0]).sum()
    for _ in alone:
        pass
    assert close(met, (alone.streams[0] * top).sum())


@given(mlp_models_with_tokens())
@settings(max_examples=25)
def test_truncated_streams_are_sums_of_orders(drawn: Drawn) -> None:
    model, tokens = drawn
    trace = model.trace(tokens)
    paths, truncated = trace.paths(mlps="linear"), truncate(trace, mlps=MlpOutputs.LINEAR)
    assert len(truncated.last) == len(paths.counts)
    assert close(truncated.last[-1], trace.streams[-1])
    straight = [
        paths.frozen.source(path.source)
        for path in paths.order(0)
        if path.source.kind != "unembed_bias"
    ]
    assert close(truncated.last[0], torch.stack(straight).sum(0))
    first = Source("mlp", 0)
    outputs = [
        paths.frozen.along(Path(source, [first]))
        for source in paths.frozen.sources
        if level_of(source) < paths.frozen.reads_below(first)
    ]
    assert close(truncated.term([first]), torch.stack(outputs).sum(0))


CONFIG = ps.Config(
    n_layers=2, n_heads=2, d_model=8, d_head=4, d_vocab=11, n_ctx=8, mlp="gelu", norm="layer"
)
TOKENS = torch.tensor([[1, 2, 3, 4], [4, 3, 2, 1]])


def test_term_importance_has_mlps_as_terms() -> None:
    model = ps.random_model(CONFIG, dtype=torch.float64, biases=True, gains=True)
    held = ps.term_importance(model, TOKENS)
    terms = ps.term_importance(model, TOKENS, mlps="linear", sets=by_mlp(model))
    assert len(terms.loss) == 5 and len(held.loss) == 3
    assert abs(terms.loss[-1] - held.loss[-1]) < 1e-12
    assert [one.name for one in terms.sets] == ["mlp0", "mlp1"]
    assert "MLPs are terms like heads, with their gates held" in terms.note


def test_a_model_without_mlps_has_the_same_paths_either_way() -> None:
    model = ps.random_model(CONFIG.replace(mlp="none"), dtype=torch.float64)
    trace = model.trace(TOKENS)
    assert list(trace.paths()) == list(trace.paths(mlps="linear"))
    assert ps.term_importance(model, TOKENS, mlps="linear").loss == (
        ps.term_importance(model, TOKENS).loss
    )


def test_messages() -> None:
    model = ps.random_model(CONFIG)
    trace = model.trace(TOKENS)
    through, held = trace.paths(mlps="linear"), trace.paths()
    cases = [
        (held, "embed→mlp0", "goes through an MLP, and in this sum MLP outputs are sources; use"),
        (through, "mlp0", "begins at mlp0: with mlps='linear' paths go through MLPs; the model's"),
        (through, "mlp_bias0", "begins at mlp_bias0: there is no such bias; the model's sources"),
        (held, "mlp_bias0", "begins at mlp_bias0: MLP outputs are sources unless mlps='linear'"),
        (
            through,
            "embed→mlp7",
            "no path goes through mlp7: the model has 2 layers, counted from 0",
        ),
    ]
    for paths, name, message in cases:
        with pytest.raises(PathError, match=message):
            paths.contribution(Path.parse(name))
    with pytest.raises(PathError, match="a path through mlp0 and then L0H1 is out of order"):
        Path.parse("embed→mlp0→L0H1")
    with pytest.raises(PathError, match="bias0 is a source, and a path goes through heads and MLP"):
        Path("embed", [Source("bias", 0)])
    with pytest.raises(PathError, match="goes through an MLP, which is linear only on a run, with"):
        Path.parse("embed→mlp0").full_ov(model)
    parallel = ps.random_model(CONFIG.replace(block="parallel")).trace(TOKENS)
    with pytest.raises(PathError, match="mlp0 does not read L0H1: in a parallel block the MLP re"):
        parallel.paths(mlps="linear").contribution(Path.parse("embed→L0H1→mlp0"))
    with pytest.raises(InputError, match="a path goes through 0 to 4 heads and MLPs"):
        through.order(5)
    with pytest.raises(PathError, match="no path goes through mlp0: this model has no MLPs"):
        Path.parse("embed→mlp0").check_in(ps.random_model(CONFIG.replace(mlp="none")))
    with pytest.raises(InputError, match="mlps is 'open'; choose 'held' or 'linear'"):
        expand_logits(trace, "open")
    edited = trace.patch({"mlp0": "zero"})
    with pytest.raises(
        NotExactError, match="mlp0 was edited in this run, so the output of its MLP is"
    ):
        edited.paths(mlps="linear")
    assert edited.paths().remainder() < 1e-4
    with pytest.raises(InputError, match="the set has mlp0, but with mlps='frozen' no path goes"):
        ps.term_importance(model, TOKENS, sets=by_mlp(model))
    with pytest.raises(NotExactError, match="mlps='linear' holds gates and scales of the run, and"):
        ps.term_importance(model, TOKENS, mlps="linear", scale="recomputed")
