"""The frozen run as a linear map: adjoints, sweeps by order, and pieces of a batch."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.identities.configs import Drawn, close, models_with_tokens
from torch import Tensor

from pathsum.paths.frozen import Frozen, FrozenLayer, relative_error
from pathsum.paths.order_sweep import AdjointStep, DownSweep, UpSweep, final_stream, split_at

drawn_models = models_with_tokens(min_layers=1, max_layers=4, max_heads=4)


def gaussian(like: Tensor, seed: int, many: int | None = None) -> Tensor:
    shape = like.shape if many is None else (many, *like.shape)
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=like.dtype)


def check_adjoint(x: Tensor, forward: Tensor, g: Tensor, back: Tensor) -> None:
    """⟨M x, g⟩ = ⟨x, Mᵀ g⟩, up to rounding of the terms."""
    left, right = forward * g, x * back
    size = float(left.abs().sum() + right.abs().sum())
    assert abs(float(left.sum() - right.sum())) <= 1e-12 * max(1.0, size)


@given(drawn_models, st.integers(0, 2**16), st.integers(1, 3))
@settings(max_examples=30)
def test_every_adjoint_is_one(drawn: Drawn, seed: int, many: int) -> None:
    model, tokens = drawn
    frozen = Frozen(model.trace(tokens))
    for index in range(frozen.n_layers):
        layer = frozen.layer(index)
        x, g = gaussian(frozen.start, seed, many), gaussian(frozen.start, seed + 1, many)
        values = layer.read(x)
        each = layer.per_head(values)
        z = layer.mix(values)
        assert z.shape == each.shape == (many, *tokens.shape[:1], *z.shape[2:])
        at_z, at_values = gaussian(z, seed + 2), gaussian(each, seed + 3)
        check_adjoint(x, each, at_values, layer.read_adjoint(at_values))
        check_adjoint(each, z, at_z, layer.mix_adjoint(at_z))
        check_adjoint(z, layer.write(z), g, layer.write_adjoint(g))
        check_adjoint(x, layer.apply(x), g, layer.adjoint(g))
        for number in range(many):  # streams do not mix
            assert close(layer.apply(x)[number], layer.apply(x[number : number + 1])[0])
            assert close(layer.adjoint(g)[number], layer.adjoint(g[number : number + 1])[0])
        parts = [
            frozen.layer(index, head).apply(x) for head in range(len(layer.W_O))
        ]  # one head at a time
        assert close(sum(parts[1:], start=parts[0]), layer.apply(x))


@given(drawn_models)
@settings(max_examples=30)
def test_a_sweep_up_carries_the_stream_by_order(drawn: Drawn) -> None:
    model, tokens = drawn
    trace = model.trace(tokens)
    frozen = Frozen(trace)
    n_layers = frozen.n_layers
    full = list[Tensor]()  # before each layer and at the end, every order separately
    whole = UpSweep.of(frozen, orders=n_layers + 1)
    for step in whole:
        assert step.index == whole.index
        full.append(whole.streams.clone())
    assert whole.index == n_layers
    full.append(whole.streams)
    for orders in range(1, n_layers + 3):
        sweep = UpSweep.of(frozen, orders)
        for index in range(n_layers + 1):
            assert [step.index for step in sweep.to(index)] == ([index - 1] if index else [])
            assert sweep.index == index
            expected = full[index]
            assert len(sweep.streams) == min(orders, index + 1)
            last = len(sweep.streams) - 1
            lumped = torch.cat([expected[:last], expected[last:].sum(0, keepdim=True)])
            assert close(sweep.streams, lumped)
            if index < n_layers:
                assert close(sweep.streams.sum(0), trace.streams[index])
    assert len(UpSweep.of(frozen).streams) == 1
    assert close(final_stream(frozen), full[-1].sum(0))
    for index in range(n_layers + 1):
        alone, through = split_at(frozen, index)
        assert close(alone, full[index][0])
        assert close(through, full[index][1:].sum(0))


@given(drawn_models, st.integers(0, 2**16), st.data())
@settings(max_examples=30)
def test_a_sweep_down_is_the_adjoint_of_one_up(
    drawn: Drawn, seed: int, data: st.DataObject
) -> None:
    """⟨x through n of the heads above, g⟩ = ⟨x, the gradient of order n⟩, at every layer."""
    model, tokens = drawn
    frozen = Frozen(model.trace(tokens))
    n_layers = frozen.n_layers
    x, top = gaussian(frozen.start, seed), gaussian(frozen.start, seed + 1)
    orders = data.draw(st.integers(1, n_layers + 2))
    sweep = DownSweep(frozen, top, orders)
    assert sweep.index == n_layers
    for index in reversed(range(n_layers + 1)):
        steps = [
            (step.index, isinstance(step, AdjointStep) and len(step.at_z) == len(step.at_values))
            for step in sweep.steps_to(index)
        ]
        assert steps == ([(index, True)] if index < n_layers else [])
        assert sweep.index == index
        layers = [frozen.layer(above) for above in range(index, n_layers)]
        up = by_order(layers, x)
        assert len(sweep.gradients) == min(orders, len(up))
        last = len(sweep.gradients) - 1
        lumped = [*up[:last], sum(up[last + 1 :], start=up[last])]
        for forward, back in zip(lumped, sweep.gradients, strict=True):
            check_adjoint(x, forward, top, back)


def by_order(layers: list[FrozenLayer], x: Tensor) -> list[Tensor]:
    """The coefficients of z^n of Π (1 + z M) x, one layer at a time."""
    found = [x]
    for layer in layers:
        through = [layer.apply(part[None])[0] for part in found]
        zero = torch.zeros_like(x)
        found = [a + b for a, b in zip([*found, zero], [zero, *through], strict=True)]
    return found


@given(drawn_models, st.integers(0, 2**16), st.data())
@settings(max_examples=20)
def test_rows_and_first_positions_are_those_of_the_whole(
    drawn: Drawn, seed: int, data: st.DataObject
) -> None:
    model, tokens = drawn
    trace = model.trace(tokens)
    row = data.draw(st.integers(0, len(tokens) - 1))
    length = data.draw(st.integers(1, tokens.shape[1])) if model.config.causal else tokens.shape[1]
    whole, some = Frozen(trace), Frozen(trace, rows=slice(row, row + 1), length=length)
    assert some.sources == whole.sources
    for source in whole.sources:
        assert torch.equal(some.source(source), whole.source(source)[row : row + 1, :length])
    assert torch.equal(some.final_scale, whole.final_scale[row : row + 1, :length])
    assert close(final_stream(some), final_stream(whole)[row : row + 1, :length])
    heads = [data.draw(st.sampled_from(model.heads)).id]
    x = gaussian(whole.start, seed)
    part = x[row : row + 1, :length]
    assert close(some.through(heads, part), whole.through(heads, x)[row : row + 1, :length])
    g = gaussian(part, seed + 1)
    check_adjoint(part, some.through(heads, part), g, some.through_adjoint(heads, g))


@given(drawn_models)
@settings(max_examples=20)
def test_sources_add_up_to_what_no_head_moved(drawn: Drawn) -> None:
    model, tokens = drawn
    frozen = Frozen(model.trace(tokens))
    assert [source.layer for source in frozen.sources] == sorted(
        source.layer for source in frozen.sources
    )
    for layer in range(-1, frozen.n_layers):
        here = [frozen.source(source) for source in frozen.sources if source.layer == layer]
        added = frozen.source_sum(2 * layer, 2 * layer + 1)
        assert (added is None) == (not here)
        if added is not None:
            assert close(added, torch.stack(here).sum(0))
    alone = split_at(frozen, frozen.n_layers)[0]
    assert close(alone, torch.stack([frozen.source(one) for one in frozen.sources]).sum(0))


def test_errors_are_relative_unless_the_truth_is_zero() -> None:
    truth = torch.tensor([0.0, -4.0, 2.0], dtype=torch.float64)
    assert relative_error(truth + torch.tensor([0.0, 0.0, 1.0]), truth) == 0.25
    assert relative_error(truth - torch.tensor([2.0, 0.0, 0.0]), truth) == 0.5
    assert relative_error(truth, truth) == 0.0
    assert relative_error(truth, torch.zeros(3)) == 4.0
