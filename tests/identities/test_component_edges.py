"""Runs with some edges between components: the same as patching the others, one by one."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.identities.configs import Drawn, close, models_with_tokens
from tests.identities.test_sweeps import corrupted
from torch import Tensor

from pathsum.base import Site
from pathsum.base.errors import NotExactError
from pathsum.model import Config, Trace, random_model
from pathsum.paths.component_edges import ComponentRuns
from pathsum.paths.target import Target, find_target


def drawn_runs(drawn: Drawn) -> tuple[Trace, Trace, Target]:
    model, tokens = drawn[0], drawn[1][:1]
    trace, other = model.trace(tokens), model.trace(corrupted(model, tokens, 0))
    return trace, other, find_target(trace, -1, 1, "mean")


@given(models_with_tokens(max_layers=3, max_heads=3), st.data())
@settings(max_examples=40, deadline=None)
def test_all_none_and_all_but_some_edges(drawn: Drawn, data: st.DataObject) -> None:
    trace, other, target = drawn_runs(drawn)
    runs = ComponentRuns(trace, other, target)
    graph = runs.graph

    def same(found: float, logits: Tensor) -> bool:
        return close(torch.tensor(found), target.of(logits)[0].cpu().float(), 1e-5)

    assert same(runs.value(graph.exists), trace.logits)
    assert same(runs.value(torch.zeros_like(graph.exists)), other.logits)
    edges = graph.exists.nonzero().tolist()
    cut = [edges[data.draw(st.integers(0, len(edges) - 1))] for _ in range(3)]
    kept = graph.exists.clone()
    for reader, writer in cut:
        kept[reader, writer] = False
    names = {graph.edge(reader, writer) for reader, writer in cut}
    assert same(runs.value(kept), trace.patch(dict.fromkeys(names, other)).logits)
    for reader, writer in cut:
        assert graph.entry(graph.edge(reader, writer)) == (reader, writer)


@given(models_with_tokens(max_layers=2, max_heads=2, mlps=("none", "gelu", "silu_gated")))
@settings(max_examples=20, deadline=None)
def test_eap_is_the_slope_of_a_cut(drawn: Drawn) -> None:
    """Nearly all of each edge kept: the loss, divided by the part cut, is its score."""
    trace, other, target = drawn_runs(drawn)
    runs = ComponentRuns(trace, other, target)
    scores = runs.eap()
    full, small = runs.graph.exists.double(), 1e-6
    size = max(1.0, float(scores.abs().max()))
    for reader, writer in runs.graph.exists.nonzero().tolist()[::3]:
        part = full.clone()
        part[reader, writer] -= small
        slope = (runs.value(full) - runs.value(part)) / small
        assert slope == pytest.approx(float(scores[reader, writer]), abs=1e-3 * size)


def test_held_mlps_write_what_they_wrote() -> None:
    config = Config(2, 2, 8, 4, 11, 8, mlp="relu")
    model = random_model(config, seed=3, dtype=torch.float64)
    trace, other = model.trace([1, 2, 3]), model.trace([4, 2, 5])
    target = find_target(trace, -1, 1, "mean")
    runs = ComponentRuns(trace, other, target, hold_mlps=True)
    kept = torch.zeros_like(runs.graph.exists)
    kept[-1] = torch.tensor(["mlp" in str(one) for one in runs.graph.writers])
    patched = other.patch({"mlp0→logits": trace, "mlp1→logits": trace})
    assert runs.value(kept) == pytest.approx(float(target.of(patched.logits)[0]), abs=1e-9)


def test_norms_after_blocks_are_refused() -> None:
    model = random_model(Config(1, 1, 8, 4, 11, 8, norm="rms", norm_place="both"))
    trace = model.trace([1, 2])
    with pytest.raises(NotExactError, match="norm_place is 'both'"):
        ComponentRuns(trace, trace, find_target(trace))


def test_norm_over_all_heads() -> None:
    """A norm over the queries of all heads: each head's read changes the scale of its own norm."""
    config = Config(2, 2, 8, 4, 11, 8, positions="rotary", norm="rms", qk_norm="rms_all")
    model = random_model(config, seed=5, dtype=torch.float64)
    trace, other = model.trace([1, 2, 3]), model.trace([4, 2, 5])
    target = find_target(trace, -1, 1, "mean")
    runs = ComponentRuns(trace, other, target)
    kept = runs.graph.exists.clone()
    reader, writer = runs.graph.entry(Site.parse("L0H1→L1H0.k"))
    kept[reader, writer] = False
    patched = trace.patch({"L0H1→L1H0.k": other})
    assert runs.value(kept) == pytest.approx(float(target.of(patched.logits)[0]), abs=1e-9)
    assert runs.value(runs.graph.exists) == pytest.approx(float(target.of(trace.logits)[0]))
