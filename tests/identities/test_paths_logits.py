"""The expansion of logits as properties, on every variant of a model, in float64."""

from dataclasses import replace
from itertools import pairwise

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.identities.configs import models_with_tokens, relative
from torch import Tensor

from pathsum.model import HeadId, Model, Path
from pathsum.model.folding import folded_unembedding
from pathsum.model.symmetries import scrambled
from pathsum.paths import LogitAttribution, PathSum, TopPaths
from pathsum.paths.frozen import Frozen

SMALL = {"max_layers": 3, "max_heads": 2}


def explained(model: Model, tokens: Tensor, seed: int) -> tuple[PathSum, LogitAttribution]:
    """A target of each sequence, drawn at random."""
    generator = torch.Generator().manual_seed(seed)
    batch, length = tokens.shape
    paths = model.trace(tokens).paths()
    position = torch.randint(-length, length, (batch,), generator=generator)
    token, other = torch.randint(model.config.d_vocab, (2, batch), generator=generator)
    versus = (None, "mean", other)[seed % 3]
    return paths, paths.toward(position, token, versus)


@given(models_with_tokens(max_layers=5, max_heads=4))
@settings(max_examples=60)
def test_the_total_is_the_model(drawn: tuple[Model, Tensor]) -> None:
    model, tokens = drawn
    assert model.trace(tokens).paths().remainder() < 1e-9


@given(models_with_tokens(dtype=torch.float32, max_layers=5, max_heads=4))
@settings(max_examples=30)
def test_the_total_is_the_model_in_float32(drawn: tuple[Model, Tensor]) -> None:
    model, tokens = drawn
    paths = model.trace(tokens).paths()
    assert paths.total().dtype == torch.float32
    assert paths.remainder() < 1e-4


@given(models_with_tokens(**SMALL))
@settings(max_examples=24)
def test_contributions_of_all_paths_add_up(drawn: tuple[Model, Tensor]) -> None:
    model, tokens = drawn
    trace = model.trace(tokens)
    paths = trace.paths()
    listed = list(paths)
    assert len(listed) == len(set(listed)) == paths.count
    assert relative(sum(paths.contribution(path) for path in listed), trace.logits) < 1e-9
    orders = [path.order for path in listed]
    assert orders == sorted(orders)
    for order, count in enumerate(paths.counts):
        assert list(paths.order(order)) == [path for path in listed if path.order == order]
        assert orders.count(order) == count


@given(models_with_tokens(**SMALL))
@settings(max_examples=18)
def test_a_contribution_is_pattern_times_source_times_weights(drawn: tuple[Model, Tensor]) -> None:
    """The formula that a path prints, computed the long way."""
    model, tokens = drawn
    trace = model.trace(tokens)
    paths, frozen = trace.paths(), Frozen(trace)
    for path in list(paths)[:: max(1, paths.count // 6)]:
        if path.source.kind == "unembed_bias":
            continue
        moved = path.pattern(trace) @ frozen.source(path.source)
        if path.heads:
            moved = moved @ path.ov(model).dense()
        wanted = moved @ folded_unembedding(model.weights)
        torch.testing.assert_close(paths.contribution(path), wanted, rtol=1e-9, atol=1e-11)


@given(models_with_tokens(min_layers=1, **SMALL), st.integers(0, 2**16))
@settings(max_examples=30)
def test_a_pattern_that_is_not_the_models_shows_in_the_remainder(
    drawn: tuple[Model, Tensor], seed: int
) -> None:
    """The total is made from what was recorded of patterns, not from recorded streams."""
    model, tokens = drawn
    trace = model.trace(tokens)
    layer = seed % model.config.n_layers
    patterns = list(trace.patterns)
    patterns[layer] = patterns[layer] * 1.5
    wrong = replace(trace, patterns=tuple(patterns)).paths()
    assert wrong.remainder() > 1e-6 > trace.paths().remainder()


@given(models_with_tokens(**SMALL))
@settings(max_examples=24)
def test_the_total_does_not_use_recorded_streams_or_logits(drawn: tuple[Model, Tensor]) -> None:
    model, tokens = drawn
    trace = model.trace(tokens)
    blind = replace(
        trace,
        streams=tuple(torch.full_like(stream, torch.nan) for stream in trace.streams),
        recorded_logits=torch.full_like(trace.logits, torch.nan),
    )
    assert relative(blind.paths().total(), trace.logits) < 1e-9


@given(models_with_tokens(max_layers=4, max_heads=3), st.integers(0, 2**16))
@settings(max_examples=45)
def test_what_adds_up_adds_up_and_what_enters_a_head_leaves_it(
    drawn: tuple[Model, Tensor], seed: int
) -> None:
    paths, why = explained(*drawn, seed)
    own = float(why.target.of(paths.trace.logits).mean())
    scale = 1e-9 * (1 + float(paths.trace.logits.abs().max()))
    assert why.remainder < 1e-9
    for found in (why.total, why.by_order.sum(), why.by_last.sum(), why.by_source.sum()):
        assert abs(found - own) < scale
    edges, through = why.by_edge.values, why.by_head.values
    heads = len(through)
    sources = len(edges) - heads
    scale = 1e-9 * (1 + float(edges.abs().sum()))
    assert float((edges[sources:].sum(1) - through).abs().sum()) < scale
    assert float((edges[:, :heads].sum(0) - through).abs().sum()) < scale
    assert float((edges[:, -1] - why.by_last.values).abs().sum()) < scale
    assert float((edges[:sources].sum(1) - why.by_source.values.sum(1)).abs().sum()) < scale


@given(models_with_tokens(**SMALL), st.integers(0, 2**16), st.integers(1, 8))
@settings(max_examples=45)
def test_sweeps_and_search_give_what_listing_all_paths_gives(
    drawn: tuple[Model, Tensor], seed: int, k: int
) -> None:
    paths, why = explained(*drawn, seed)
    each = {path: float(why.target.of(paths.contribution(path)).mean()) for path in paths}
    close = 1e-9 * (1 + sum(map(abs, each.values())))
    check_totals(why, each, close)
    check_top(why.top(k, budget=10**9), each, close, proven=True)
    check_top(why.top(k, budget=1), each, close)


def check_totals(why: LogitAttribution, each: dict[Path, float], close: float) -> None:
    for order in range(len(why.by_order)):
        wanted = sum(value for path, value in each.items() if path.order == order)
        assert abs(why.by_order[order] - wanted) < close
    for name, value in why.by_last.items():
        last = [v for path, v in each.items() if name == (path.source, *path.heads)[-1]]
        assert abs(value - sum(last)) < close
    for name, value in why.by_head.items():
        assert abs(value - sum(v for path, v in each.items() if name in path.heads)) < close
    wanted = torch.zeros_like(why.by_edge.values)
    for path, value in each.items():
        for writer, reader in zip((path.source, *path.heads), (*path.heads, "logits"), strict=True):
            at = why.by_edge.rows.index(writer), why.by_edge.columns.index(reader)
            wanted[at] += value
    assert float((why.by_edge.values - wanted).abs().max()) < close


def check_top(
    top: TopPaths, each: dict[Path, float], close: float, proven: bool | None = None
) -> None:
    listed = {found.path for found in top}
    hidden = [abs(value) for path, value in each.items() if path not in listed]
    smallest = abs(top[-1].value)
    assert proven is None or top.proven == proven
    assert len(listed) == len(top.paths)
    assert abs(top.rest - (sum(each.values()) - sum(each[path] for path in listed))) < close
    assert all(abs(found.value - each[found.path]) < close for found in top)
    sizes = [abs(found.value) for found in top]
    assert all(one >= other - close for one, other in pairwise(sizes))
    if top.proven:
        assert max(hidden, default=0.0) <= smallest + close
    else:
        # What was looked at and not listed is smaller than all listed; the bound covers the rest.
        assert max(hidden, default=0.0) <= max(top.bound, smallest) + close
        assert top.bound > smallest


@given(models_with_tokens(**SMALL), st.integers(0, 2**16))
@settings(max_examples=24)
def test_shares_of_source_tokens_come_from_there(drawn: tuple[Model, Tensor], seed: int) -> None:
    """Position by position through the patterns of all paths."""
    paths, why = explained(*drawn, seed)
    trace = paths.trace
    direction, _ = why.target.direction(trace.model.weights)
    rows = torch.arange(len(direction))
    wanted = trace.logits.new_zeros(len(paths.sources), *trace.tokens.shape)
    for path in paths:
        place = paths.sources.index(path.source)
        if path.source.kind == "unembed_bias":
            at = why.target.of(paths.contribution(path))
            wanted[place, rows, why.target.positions] += at
            continue
        content = paths.frozen.source(path.source)
        if path.heads:
            content = content @ path.ov(trace.model).dense()
        worth = torch.einsum("bpd,bd->bp", content, direction)
        wanted[place] += path.pattern(trace)[rows, why.target.positions] * worth
    length = why.by_source.values.shape[1]
    found = why.by_source.values
    torch.testing.assert_close(found, wanted.mean(1)[:, :length], rtol=1e-8, atol=1e-9)


@given(models_with_tokens(max_layers=3, max_heads=3, tied=False), st.integers(0, 2**16))
@settings(max_examples=24)
def test_symmetries_of_the_weights_change_no_share(drawn: tuple[Model, Tensor], seed: int) -> None:
    model, tokens = drawn
    token = seed % model.config.d_vocab
    one = model.trace(tokens).paths().toward(-1, token, "mean")
    other = scrambled(model, seed=seed).trace(tokens).paths().toward(-1, token, "mean")
    close = 1e-7 * (1 + float(one.by_edge.values.abs().max()))
    assert abs(one.total - other.total) < close
    assert float((one.by_order.values - other.by_order.values).abs().max()) < close
    for name, value in one.by_head.items():
        assert isinstance(name, HeadId)
        assert abs(value - other.by_head[name]) < close
        assert abs(one.by_last[name] - other.by_last[name]) < close
