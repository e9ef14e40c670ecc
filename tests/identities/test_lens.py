"""The lens: the held readout is the sum over paths that stay at their position, in float64."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from tests.identities.configs import Drawn, close, mlp_models_with_tokens, models_with_tokens

import pathsum as ps
from pathsum.base.errors import InputError, NotExactError
from pathsum.paths.frozen import Frozen, Gates


def check(drawn: Drawn) -> None:
    model, tokens = drawn
    trace = model.trace(tokens[:1])
    found = trace.lens()
    logits = trace.uncapped_logits[0]
    centered = logits - logits.mean(-1, keepdim=True)
    for position in range(len(centered)):
        # At the top both lenses are the model's own logits.
        for one in (found.direct[-1][position], found.held[-1][position]):
            assert abs(one.logit - float(centered[position].max())) < 1e-9
    size = 1 + float(logits.abs().max())
    for layer in range(model.config.n_layers + 1):
        parts = found.parts(layer)
        for split in (parts.by_order, parts.by_last):
            assert abs(split.sum() - parts.held) < 1e-9 * size
        assert abs(parts.held - found.held[layer][-1].prediction) < 1e-9 * size
        assert abs(parts.direct - found.direct[layer][-1].prediction) < 1e-9 * size


@given(mlp_models_with_tokens())
@settings(max_examples=30)
def test_splits_add_up(drawn: Drawn) -> None:
    check(drawn)


@given(models_with_tokens())
@settings(max_examples=20)
def test_splits_add_up_on_models_of_any_kind(drawn: Drawn) -> None:
    check(drawn)


@given(mlp_models_with_tokens(min_layers=1))
@settings(max_examples=25)
def test_the_held_lens_of_the_embedding_is_the_run_where_positions_stay(drawn: Drawn) -> None:
    # With patterns cut to their diagonals the frozen run moves nothing between positions, so its
    # sum over paths from the embeddings is the held lens of layer 0.
    model, tokens = drawn
    trace = model.trace(tokens[:1])
    diagonal = tuple(torch.diag_embed(one.diagonal(dim1=-2, dim2=-1)) for one in trace.patterns)
    frozen = Frozen(replace(trace, patterns=diagonal), gates=Gates(trace))
    held = frozen.start
    for layer in range(model.config.n_layers):
        mlp = frozen.mlp(layer)
        assert mlp is not None
        heads = frozen.layer(layer).apply(held[None])[0]
        read = held if frozen.parallel else held + heads
        held = held + heads + mlp.apply(read[None])[0]
    found = trace.lens()
    logits = trace.paths(mlps="linear").unembedded(held)[0]
    bias = trace.paths().total() - trace.paths().unembedded(trace.streams[-1])
    logits = logits + bias[0]
    centered = logits - logits.mean(-1, keepdim=True)
    for position, readout in enumerate(found.held[0]):
        assert abs(readout.logit - float(centered[position].max())) < 1e-9 * (1 + readout.logit)


def test_messages() -> None:
    trace = ps.load("two-layer").trace("a b c")
    found = trace.lens()
    with pytest.raises(
        InputError, match="there is no stream before layer 3: layers are 0 to 1, an"
    ):
        found.parts(3)
    with pytest.raises(InputError, match="sequence 4 is out of range: the run has 1 sequences"):
        trace.lens(sequence=4)
    edited = ps.construct.memory().trace("a b").patch({"mlp0": "zero"})
    with pytest.raises(NotExactError, match="mlp0 was edited in this run"):
        edited.lens()
    assert "lens at position" in str(found) and "residual2" in str(found)
    assert "L1H3" in str(found.parts(0))


@given(mlp_models_with_tokens())
@settings(max_examples=25)
def test_the_mean_over_one_position_is_the_held_lens_there(drawn: Drawn) -> None:
    model, tokens = drawn
    row = tokens[:1, :1].repeat(1, 2)
    found, trace = ps.mean_lens(model, row, positions=1), model.trace(row)
    held = trace.lens(position=1)
    for layer in range(model.config.n_layers + 1):
        logits = found.logits(trace, layer)[0, 1]
        size = 1 + float(logits.abs().max())
        assert abs(float(logits.max()) - held.held[layer][1].logit) < 1e-9 * size


@given(mlp_models_with_tokens())
@settings(max_examples=25)
def test_parts_of_the_mean_lens_add_up_to_it(drawn: Drawn) -> None:
    model, tokens = drawn
    text = torch.cat([tokens, tokens], 1)[:, :5]
    found, trace = ps.mean_lens(model, text, positions=5), model.trace(tokens[:1])
    token = 1
    for layer in range(model.config.n_layers + 1):
        logits = found.logits(trace, layer)[0, -1]
        size = 1 + float(logits.abs().max())
        parts = found.parts(trace, layer, token=token)
        for split in (parts.by_order, parts.by_last):
            assert abs(split.sum() - float(logits[token])) < 1e-9 * size
    # At the top the mean lens reads with the mean of the final scales.
    last = found.maps[-1]
    assert close(last, last[0, 0] * torch.eye(len(last), dtype=last.dtype))


def test_the_mean_lens_explains_bad_input() -> None:
    model = ps.construct.induction()
    found, trace = ps.mean_lens(model, "a b c a b c"), model.trace("a b")
    with pytest.raises(InputError, match="there is no stream before layer 3"):
        found.logits(trace, 3)
    with pytest.raises(InputError, match="give a run of one"):
        found.parts(model.trace(["a b", "c d"]), 0)
    with pytest.raises(InputError, match="0 positions"):
        ps.mean_lens(model, "a b c", positions=0)
