"""Generation with a key–value cache equals recomputing every position, whatever is edited."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.identities.configs import Drawn, close, models_with_tokens
from tests.sources import tiny

import pathsum as ps
from pathsum.model import Config
from pathsum.model.forward import run, run_logits
from pathsum.model.recording import KeyValues

TOKENS = torch.tensor([[3, 1, 4, 1, 5, 2, 6, 5], [2, 7, 1, 8, 2, 8, 1, 8]])
EXTRA: list[dict[str, Any]] = [
    {"windows": (2, None)},
    {"windows": (2, None), "positions": "rotary", "rotary_local_base": 100.0},
    {"norm": "rms", "norm_place": "both"},
    {"norm": "rms", "norm_place": "after", "qk_norm": "rms_all", "positions": "rotary"},
    {"sinks": True, "positions": "residual"},
    {"score_cap": 2.0, "logit_cap": 5.0, "mlp": "silu_gated", "d_mlp": 8, "block": "parallel"},
]


def in_pieces(model: ps.Model, tokens: torch.Tensor, lengths: list[int]) -> torch.Tensor:
    """The logits of a text that is run piece by piece."""
    past = KeyValues()
    pieces = tokens.split(lengths, 1)
    return torch.cat([run_logits(model.weights, piece, past=past) for piece in pieces], 1)


def edits_of(model: ps.Model) -> dict[Any, Any]:
    """Edits of every kind that a model can have."""
    config = model.config
    matrix = torch.rand(config.n_ctx, config.n_ctx, dtype=torch.float64).tril()
    return {
        "L0H0": "mean",
        ("L0H1", "L1H0", "k"): "zero",
        ("embed", "L1H1", "v"): "mean",
        ("embed", "L1H2", "q"): torch.ones(config.d_model, dtype=torch.float64),
        ("L0H2", "logits"): "mean",
        "L1H1.pattern": "L0H2",
        "L1H3.pattern": matrix / matrix.sum(-1, keepdim=True),
    }


@given(models_with_tokens(causal=(True,)), st.integers(1, 3))
@settings(max_examples=60)
def test_pieces_of_a_text_equal_the_whole(drawn: Drawn, first: int) -> None:
    model, tokens = drawn
    whole = tokens.shape[1]
    lengths = [min(first, whole), *[1] * max(0, whole - first)]
    assert close(in_pieces(model, tokens, lengths), model(tokens), 1e-10)


@pytest.mark.parametrize("changes", EXTRA, ids=str)
def test_pieces_equal_the_whole_with_edits(changes: dict[str, Any]) -> None:
    config = Config(2, 4, 12, 4, 9, 8, n_kv_heads=2, **changes)
    model = ps.random_model(config, seed=1, dtype=torch.float64, biases=True, gains=True)
    for one in (model, model.edited(edits_of(model))):
        for lengths in ([8], [1] * 8, [3, 1, 4]):
            assert close(in_pieces(one, TOKENS, lengths), one(TOKENS), 1e-10)


@pytest.mark.parametrize("case", tiny.CASES)
def test_families(case: str) -> None:
    model = ps.from_hf(tiny.make(case)).to(torch.float64)
    tokens = torch.randint(0, 61, (2, 9), generator=torch.Generator().manual_seed(3))
    assert close(in_pieces(model, tokens, [4, 1, 1, 3]), model(tokens), 1e-10)


def test_a_recorded_run_continues_one_too() -> None:
    model = ps.random_model(Config(2, 2, 8, 4, 9, 8), dtype=torch.float64)
    past = KeyValues()
    run(model.weights, TOKENS[:, :5], past=past)
    found = run(model.weights, TOKENS[:, 5:], past=past).patterns[1]
    assert past.length == 8 and close(found, model.trace(TOKENS).patterns[1][:, :, 5:])


def recomputed(model: ps.Model, ids: list[int], n: int, hooks: dict[str, Any]) -> str:
    """Greedy generation by whole runs."""
    for _ in range(n):
        ids = [*ids, int(model.trace([ids], hooks=hooks).logits[0, -1].argmax())]
    return " ".join(f"<{one}>" for one in ids)


@pytest.mark.parametrize("edited", [False, True])
@pytest.mark.parametrize("hooked", [False, True])
def test_generated_text_equals_recomputing(edited: bool, hooked: bool) -> None:
    config = Config(2, 4, 12, 4, 30, 15, positions="rotary", norm="rms", start_token=0)
    model = ps.random_model(config, seed=2, dtype=torch.float64)
    push = torch.linspace(-3, 3, 12, dtype=torch.float64)
    hooks = {"residual1": lambda x: x + push * x.shape[1]} if hooked else {}
    edits = edits_of(model) if edited else {}
    found = model.generate([0, 3, 4], 12, edits={**edits, **hooks})
    other = model.edited(edits) if edited else model
    assert found == recomputed(other, [0, 3, 4], 12, hooks)
    assert (found == model.generate([0, 3, 4], 12)) == (not edited and not hooked)


def test_the_last_token_alone_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []

    def counted(weights: Any, tokens: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        lengths.append(tokens.shape[1])
        return run_logits(weights, tokens, *args, **kwargs)

    monkeypatch.setattr("pathsum.model.generation.run_logits", counted)
    model = ps.random_model(Config(1, 2, 8, 4, 9, 8))
    model.generate([1, 2, 3], 5)
    assert lengths == [3, 1, 1, 1, 1]


def test_edits_that_cannot_be_made() -> None:
    model = ps.random_model(Config(1, 2, 8, 4, 9, 8))
    with pytest.raises(ps.PathsumError, match="edits is"):
        model.generate([1, 2], 2, edits=["L0H0"])  # pyright: ignore[reportArgumentType]
    with pytest.raises(ps.PathsumError, match="head L7H0 does not exist"):
        model.generate([1, 2], 2, edits={"L7H0": "zero"})
