"""Patterns that a run computes when they are read: those that it would have recorded."""

from typing import Any

import pytest
import torch

import pathsum as ps
from pathsum.model import Trace, recording
from pathsum.model.recording import ComputedPatterns, PartialLayers

SIZES = {"n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "d_model": 12, "d_head": 4}
MODELS: dict[str, dict[str, Any]] = {
    "rotary": {"positions": "rotary", "mlp": "silu_gated"},
    "windows and sinks": {"windows": (2, None), "sinks": True, "mlp": "gelu"},
    "norms after blocks": {"norm_place": "both", "score_cap": 2.0, "mlp": "relu"},
    "not causal": {"causal": False, "qk_norm": "rms"},
}
TOKENS = [[3, 1, 4, 1, 5, 9]]


@pytest.fixture(params=MODELS, ids=str)
def runs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[Trace, Trace]:
    """The same run twice: with its patterns recorded, and without."""
    config = ps.Config(**SIZES, d_vocab=17, n_ctx=8, norm="rms", **MODELS[request.param])
    model = ps.random_model(config, seed=1, biases=True, gains=True, dtype=torch.float64)
    whole = model.trace(TOKENS)
    monkeypatch.setattr(recording, "PATTERN_BYTES", 0)
    return whole, model.trace(TOKENS)


def test_they_are_what_a_run_records(runs: tuple[Trace, Trace]) -> None:
    whole, computed = runs
    assert isinstance(computed.patterns, PartialLayers)
    assert isinstance(computed.patterns.tensors, ComputedPatterns)
    for layer in range(2):
        torch.testing.assert_close(computed.patterns[layer], whole.patterns[layer])
        torch.testing.assert_close(computed.z(layer), whole.z(layer))
    torch.testing.assert_close(computed.pattern("L1H3"), whole.pattern("L1H3"))
    torch.testing.assert_close(computed["L1H2.z"], whole["L1H2.z"])
    torch.testing.assert_close(computed.logits, whole.logits)


def test_paths_and_circuits_are_the_same(runs: tuple[Trace, Trace]) -> None:
    mlps = "held" if runs[0].model.config.mlp == "none" else "linear"
    found, expected = (run.paths(mlps=mlps).toward(token=2, versus="mean") for run in runs)
    for name in ("by_order", "by_source", "by_head", "by_edge"):
        torch.testing.assert_close(getattr(found, name).values, getattr(expected, name).values)
    graphs = [run.circuit(token=2, effects=False) for run in runs]
    assert {str(edge): edge.share for edge in graphs[0].edges} == pytest.approx(
        {str(edge): edge.share for edge in graphs[1].edges}, rel=1e-9, abs=1e-12
    )


def test_edited_runs_record_theirs(runs: tuple[Trace, Trace]) -> None:
    whole, computed = runs
    edit = {"L0H1": "zero"}
    found, expected = (run.patch(edit) for run in (computed, whole))
    for layer in range(2):
        torch.testing.assert_close(found.patterns[layer], expected.patterns[layer])
