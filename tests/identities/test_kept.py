"""What a trace keeps is what the full trace has there; what it dropped is an error."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.identities.configs import models_with_tokens
from torch import Tensor

import pathsum as ps
from pathsum.base import HeadId
from pathsum.base.errors import HeadError, InputError
from pathsum.model import Config, Keep, Model
from pathsum.model import transformer as parts

CONFIG = Config(n_layers=3, n_heads=2, d_model=8, d_head=4, d_vocab=11, n_ctx=12, mlp="relu")


@settings(max_examples=30)
@given(models_with_tokens(), st.data())
def test_what_is_kept_is_what_the_full_trace_has(
    given_: tuple[Model, Tensor], data: st.DataObject
) -> None:
    model, tokens = given_
    config, length = model.config, tokens.shape[1]
    layers = st.integers(0, max(0, config.n_layers - 1))
    heads = st.builds(HeadId, layers, st.integers(0, config.n_heads - 1))
    some = config.n_layers > 0
    keep = Keep(
        patterns=data.draw(st.lists(heads | layers, max_size=4 * some)),
        streams=data.draw(st.lists(st.integers(0, config.n_layers), max_size=3)),
        mlp_outputs=data.draw(st.lists(layers, max_size=2 * (some and config.mlp != "none"))),
        logits=data.draw(st.lists(st.integers(-length, length - 1), max_size=3)),
    )
    full, kept = model.trace(tokens), model.trace(tokens, keep=keep)
    for name in keep.patterns:
        if isinstance(name, HeadId):
            torch.testing.assert_close(kept.pattern(name), full.pattern(name))
        else:
            torch.testing.assert_close(kept.patterns[name], full.patterns[name])
    for layer in keep.streams:
        torch.testing.assert_close(kept.streams[layer], full.streams[layer])
    for layer in keep.mlp_outputs:
        torch.testing.assert_close(kept.mlp_outputs[layer], full.mlp_outputs[layer])
    for position in keep.logits:
        torch.testing.assert_close(kept.logits_at(position), full.logits[:, position])
    torch.testing.assert_close(vars(kept.scales), vars(full.scales))
    for head in (name for name in keep.patterns if isinstance(name, HeadId)):
        if head.layer in keep.streams:
            torch.testing.assert_close(kept.written(head), full.written(head))


def test_what_was_not_kept_is_an_error_that_says_how_to_keep_it() -> None:
    trace = ps.random_model(CONFIG).trace(
        [1, 2, 3, 4], keep=Keep(patterns=["L1H0", 2], streams=[1], logits=[-1, 0])
    )
    with pytest.raises(
        InputError,
        match=r"the pattern of L1H1 was not kept \(kept: \[2, 'L1H0'\]\); trace again with "
        r"keep=ps\.Keep\(patterns=\['L1H1'\], …\), or without keep",
    ):
        trace.pattern("L1H1")
    with pytest.raises(InputError, match=r"patterns of layer 1 were not kept .*patterns=\[1\]"):
        _ = trace.patterns[1]
    with pytest.raises(InputError, match="patterns of layer 0 were not kept"):
        list(trace.patterns)
    with pytest.raises(InputError, match=r"stream before layer 3 was not kept .*streams=\[3\]"):
        _ = trace.streams[-1]
    with pytest.raises(InputError, match=r"output of mlp0 was not kept \(kept: none\)"):
        trace.written("mlp0")
    with pytest.raises(InputError, match=r"at positions \[0, 3\] of 4 only; use trace.logits_at"):
        _ = trace.logits
    with pytest.raises(InputError, match=r"logits at position 2 were not kept \(kept: \[0, 3\]\)"):
        trace.logits_at(-2)
    with pytest.raises(InputError, match="position 4 is out of range: the text has 4 tokens"):
        trace.logits_at(4)
    with pytest.raises(InputError, match="patterns of layer 0 were not kept"):
        trace.paths().total()
    assert trace.patterns[2:][0].shape == (1, 2, 4, 4)


@pytest.mark.parametrize(
    ("keep", "error", "message"),
    [
        (Keep(streams=[4]), InputError, r"streams=\[4\] has layer 4, which is out of range: .* 4"),
        (Keep(logits=[0, 9]), InputError, r"logits=\[0, 9\] has position 9, which is out of"),
        (Keep(patterns=[3]), InputError, "layer 3, which is out of range"),
        (Keep(patterns=["L0H2"]), HeadError, "head L0H2 does not exist"),
        (Keep(patterns="L0H1"), InputError, "patterns='L0H1' is not a list of heads or 'all'"),
    ],
)
def test_what_cannot_be_kept(keep: Keep, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ps.random_model(CONFIG).trace([1, 2, 3, 4], keep=keep)


def test_everything_kept_is_the_full_trace() -> None:
    model = ps.random_model(CONFIG)
    full = model.trace([1, 2, 3])
    kept = model.trace([1, 2, 3], keep=Keep("all", "all", "all", "all"))
    torch.testing.assert_close(kept.logits, full.logits)
    assert kept.paths().remainder() < 1e-5
    torch.testing.assert_close(kept.scores("L2H1").total(), full.scores("L2H1").total())


def test_a_hook_runs_and_only_what_is_asked_for_is_kept() -> None:
    model = ps.random_model(CONFIG)
    hooks = {"L1H0.pattern": torch.zeros_like}
    full = model.trace([1, 2, 3], hooks=hooks)
    kept = model.trace([1, 2, 3], hooks=hooks, keep=Keep(patterns=["L1H1"], logits="all"))
    torch.testing.assert_close(kept.logits, full.logits)
    torch.testing.assert_close(kept.pattern("L1H1"), full.pattern("L1H1"))
    # Not a view, which would hold the patterns of the whole layer.
    assert kept.pattern("L1H1").untyped_storage().nbytes() == 4 * 3 * 3


@pytest.mark.parametrize("extra", [{"score_cap": 5.0}, {"sinks": True}])
def test_patterns_one_head_at_a_time(
    monkeypatch: pytest.MonkeyPatch, extra: dict[str, float | bool]
) -> None:
    config = CONFIG.replace(n_heads=4, n_kv_heads=2, **extra)
    model = ps.random_model(config, dtype=torch.float64)
    tokens = torch.randint(11, (2, 9))
    together = model(tokens)
    monkeypatch.setattr(parts, "ONE_HEAD_AT_A_TIME", 0)
    torch.testing.assert_close(model(tokens), together)
    torch.testing.assert_close(
        model.trace(tokens, keep=Keep(patterns=["L1H3"])).pattern("L1H3"),
        model.trace(tokens).pattern("L1H3"),
    )
