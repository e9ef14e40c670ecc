"""Runs that do not record logits: those computed on demand are those of a run that does."""

import pytest
import torch

import pathsum as ps
from pathsum.base.errors import InputError
from pathsum.model import trace as trace_module
from pathsum.model.losses import trace_losses
from pathsum.model.recording import RESIDUAL
from pathsum.model.sites import find_hook
from pathsum.model.trace import Trace, trace_run

SIZES = {"n_layers": 2, "n_heads": 2, "d_model": 8, "d_head": 4, "d_vocab": 30, "n_ctx": 16}
MODELS = {
    "plain": {},
    "layer norm": {"norm": "layer", "mlp": "gelu"},
    "soft cap on logits": {"norm": "rms", "logit_cap": 2.0},
}
EDITS = {"none": {}, "a head": {"L0H1": "zero"}, "what the logits read": {"L1H0→logits": "zero"}}


@pytest.fixture(params=MODELS, ids=str)
def model(request: pytest.FixtureRequest) -> ps.Model:
    config = ps.Config(**SIZES, **MODELS[request.param])
    return ps.random_model(config, seed=0, biases=True, gains=True).to(torch.float64)


@pytest.fixture(params=EDITS, ids=str)
def runs(request: pytest.FixtureRequest, model: ps.Model) -> tuple[Trace, Trace]:
    """The same run twice: with its logits recorded, and without."""
    tokens = torch.arange(22).reshape(2, 11)
    whole = trace_run(model, tokens)
    bare = trace_run(model, tokens, keep=RESIDUAL)
    edits = EDITS[request.param]
    return (whole.patch(edits), bare.patch(edits)) if edits else (whole, bare)


def test_logits_are_those_of_a_run_that_recorded_them(
    runs: tuple[Trace, Trace], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, bare = runs
    monkeypatch.setattr(trace_module, "LOGITS_AT_ONCE", 4 * 2 * 30)
    assert whole.recorded_logits is not None
    assert bare.recorded_logits is None
    each = torch.tensor([3, 10])
    torch.testing.assert_close(bare.logits, whole.logits)
    for position in (0, 4, -1, each):
        torch.testing.assert_close(bare.logits_at(position), whole.logits_at(position))
        torch.testing.assert_close(
            bare.uncapped_logits_at(position), whole.uncapped_logits_at(position)
        )
    torch.testing.assert_close(whole.logits_at(each)[1], whole.logits[1, 10])
    for run in runs:
        parts = list(run.logits_in_parts())
        assert [part.shape[1] for _, part in parts] == [4, 4, 3]
        torch.testing.assert_close(torch.cat([part for _, part in parts], 1), whole.logits)
        own = torch.nn.functional.cross_entropy(
            whole.logits[:, :-1].flatten(0, 1), run.tokens[:, 1:].flatten(), reduction="none"
        )
        torch.testing.assert_close(trace_losses(run).flatten(), own)


def test_logits_before_the_cap_are_those_that_the_cap_bends(runs: tuple[Trace, Trace]) -> None:
    """Also where an edit reaches the logits alone, which the last stream does not have."""
    for run in runs:
        cap = run.model.config.logit_cap
        bent = run.uncapped_logits if cap is None else cap * (run.uncapped_logits / cap).tanh()
        torch.testing.assert_close(bent, run.logits)
        row = run.uncapped_logits_at(-1)
        torch.testing.assert_close(row, run.uncapped_logits[:, -1])


def test_everything_else_is_the_same(model: ps.Model) -> None:
    tokens = torch.arange(11)[None]
    whole = trace_run(model, tokens)
    bare = trace_run(model, tokens, keep=RESIDUAL)
    torch.testing.assert_close(bare.scales.final, whole.scales.final)
    torch.testing.assert_close(bare.prefix(0, 5).logits, whole.prefix(0, 5).logits)
    assert bare.prefix(0, 5).recorded_logits is None
    for position in (3, -1):
        mine, theirs = (run.paths().toward(position, versus="mean") for run in (bare, whole))
        assert mine.total == pytest.approx(theirs.total)
        assert mine.target_tokens == theirs.target_tokens
    assert bare.paths().remainder() < 1e-12


def test_a_hook_on_the_logits_is_called(model: ps.Model) -> None:
    """Its logits do not follow from the stream, so they are recorded."""
    hooked = find_hook(model, "logits", lambda logits: logits + 1)
    tokens = torch.arange(11)[None]
    bare = trace_run(model, tokens, [hooked], keep=RESIDUAL)
    torch.testing.assert_close(bare.logits, model(tokens) + 1)
    torch.testing.assert_close(bare.logits_at(-1), model(tokens)[:, -1] + 1)


def test_an_unembedding_that_overflows_is_an_error() -> None:
    config = ps.Config(n_layers=0, n_heads=1, d_model=2, d_head=1, d_vocab=3, n_ctx=4)
    nothing = {name: torch.zeros(0, 1, 2, 1) for name in ("W_Q", "W_K", "W_V")}
    model = ps.from_tensors(
        config,
        {
            "W_E": torch.full((3, 2), 1e30),
            "W_U": torch.full((2, 3), 1e30),
            "W_pos": torch.zeros(4, 2),
            "W_O": torch.zeros(0, 1, 1, 2),
            **nothing,
        },
    )
    bare = trace_run(model, torch.tensor([[0, 1]]), keep=RESIDUAL)
    for compute in (
        lambda: bare.logits,
        lambda: bare.logits_at(-1),
        lambda: list(bare.logits_in_parts()),
    ):
        with pytest.raises(InputError, match="the run overflowed"):
            compute()
