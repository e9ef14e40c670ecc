"""Edits of a run at single positions and on a repeated batch, over every variant of model."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.identities.configs import Drawn, close, models_with_tokens
from tests.identities.test_node_edges import REAL, real_model

from pathsum.base import Site
from pathsum.model import HeadId, Model, Trace, Weights, trace_run
from pathsum.model.edit import Edit
from pathsum.model.folding import bias_in_z, unembed_through
from pathsum.model.forward import run, run_logits
from pathsum.paths.ablation import After, after_edits
from pathsum.paths.descriptions import TopTokenTable

two_layers = models_with_tokens(min_layers=2, max_layers=2, max_heads=3)


def other_run(model: Model, tokens: torch.Tensor) -> Trace:
    return model.trace((tokens + 1) % model.config.d_vocab)


def check_rows(
    patched: Trace, clean: Trace, all_patched: Trace, head: HeadId, at: set[int]
) -> None:
    """Some rows of a head are those of the whole patch, and the others are clean."""
    for dest in range(clean.tokens.shape[1]):
        truth = all_patched if dest in at else clean
        for found, expected in (
            (patched.patterns[head.layer], truth.patterns[head.layer]),
            (patched.z(head.layer), truth.z(head.layer)),
        ):
            assert close(found[:, head.head, dest], expected[:, head.head, dest])


def check_destinations(model: Model, tokens: torch.Tensor, side: str, writers: list[str]) -> None:
    clean, other = model.trace(tokens), other_run(model, tokens)
    length, head = tokens.shape[1], HeadId(1, model.config.n_heads - 1)
    whole = clean.patch({f"{writer}→{head}.{side}": other for writer in writers})
    for at in ({0}, {length - 1}, {0, length - 1}, set(range(1, length))):
        sites = [f"{writer}→{head}@{dest}.{side}" for writer in writers for dest in sorted(at)]
        if sites:
            check_rows(clean.patch(dict.fromkeys(sites, other)), clean, whole, head, at)
    # What each destination sees is its own: one is changed by one writer, another by all.
    if length > 1:
        mixed = {f"{writer}→{head}@{length - 1}.{side}": other for writer in writers}
        found = clean.patch({f"{writers[0]}→{head}@0.{side}": other, **mixed})
        one = clean.patch({f"{writers[0]}→{head}.{side}": other})
        for truth, dest in ((one, 0), (whole, length - 1)):
            assert close(found.z(1)[:, head.head, dest], truth.z(1)[:, head.head, dest])


@given(two_layers, st.sampled_from("qkv"))
@settings(max_examples=15)
def test_a_head_reads_a_message_at_its_destinations(drawn: Drawn, side: str) -> None:
    model, tokens = drawn
    check_destinations(model, tokens, side, ["embed", "L0H0"])


@pytest.mark.parametrize("side", [*"qkv"])
@pytest.mark.parametrize("changes", REAL, ids=str)
def test_destinations_on_what_real_models_have(changes: dict[str, Any], side: str) -> None:
    model, tokens = real_model(changes)
    check_destinations(model, tokens.repeat(2, 1), side, ["embed", "L0H1"])


@given(two_layers, st.data())
@settings(max_examples=15)
def test_a_message_is_exchanged_where_it_was_written(drawn: Drawn, data: st.DataObject) -> None:
    """The logits read where they are, and the value of a position is one of a sum."""
    model, tokens = drawn
    clean, other = model.trace(tokens), other_run(model, tokens)
    at = data.draw(st.integers(0, tokens.shape[1] - 1))
    whole = clean.patch({"L0H0→logits": other})
    for site in (f"L0H0@{at}→logits", f"L0H0→logits@{at}", f"L0H0@{at}→logits@{at}"):
        found = clean.patch({site: other})
        for place in range(tokens.shape[1]):
            truth = whole if place == at else clean
            assert close(found.logits[:, place], truth.logits[:, place])
    # Values of single positions: what a head moves is the sum of what each gives it.
    before = clean.z(1)[:, 0]
    whole = clean.patch({"L0H0→L1H0.v": other}).z(1)[:, 0] - before
    parts = [
        clean.patch({f"L0H0@{place}→L1H0.v": other}).z(1)[:, 0] - before
        for place in range(tokens.shape[1])
    ]
    assert close(torch.stack(parts).sum(0), whole)


@given(two_layers, st.sampled_from("qkv"))
@settings(max_examples=10)
def test_the_later_of_two_messages_wins(drawn: Drawn, side: str) -> None:
    model, tokens = drawn
    edge = Site.parse(f"embed→L1H0.{side}")
    first, second = (
        Edit(edge, model.trace((tokens + shift) % model.config.d_vocab).written(edge.writer))
        for shift in (1, 2)
    )
    assert close(
        trace_run(model, tokens, [first, second]).z(1), trace_run(model, tokens, [second]).z(1)
    )


@given(two_layers, st.sampled_from("qk"), st.booleans())
@settings(max_examples=15)
def test_frozen_patterns_stay_whatever_is_read(drawn: Drawn, side: str, attends: bool) -> None:
    """A pattern that is given to one head goes before those that are frozen."""
    model, tokens = drawn
    clean, other = model.trace(tokens), other_run(model, tokens)
    edge = Site.parse(f"embed→L1H0.{side}")
    edits = [*after_edits(clean, After.FREEZE_PATTERNS)]
    edits += [Edit(edge, other.written(edge.writer)), Edit(edge, other.written(edge.writer))]
    given = torch.ones_like(clean.patterns[1][:, 0]).tril()
    if attends:
        edits.append(Edit(Site(HeadId(1, 0), value="pattern"), given))
    found = trace_run(model, tokens, edits)
    assert torch.equal(found.patterns[0], clean.patterns[0])
    assert torch.equal(found.patterns[1][:, 1:], clean.patterns[1][:, 1:])
    assert torch.equal(found.patterns[1][:, 0], given if attends else clean.patterns[1][:, 0])


@given(models_with_tokens(min_layers=1, max_layers=3, max_heads=3), st.integers(2, 3), st.data())
@settings(max_examples=15)
def test_copies_of_a_run_share_the_layers_below_their_edits(
    drawn: Drawn, times: int, data: st.DataObject
) -> None:
    """Many edits of the same few sequences: layers below them are computed once."""
    model, tokens = drawn
    head = data.draw(st.sampled_from(model.heads)).id
    many = tokens.repeat(times, 1)
    shape = (len(many), tokens.shape[1], model.config.d_head)
    z = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    edit = Edit(Site(head, value="z"), z)
    edits = [Edit(edit.site, z[row : row + 1], row) for row in range(len(many))]
    found = run(model.weights, tokens, edits, copies=times)
    alone = trace_run(model, many, (edit,))
    assert close(found.recorded_logits, alone.logits)
    assert close(run_logits(model.weights, tokens, edits, copies=times), alone.logits)
    for layer in range(model.config.n_layers):
        assert close(found.streams[layer], alone.streams[layer])
        assert close(found.patterns[layer], alone.patterns[layer])
        assert close(found.z(layer), alone.z(layer))


@pytest.mark.parametrize("changes", [{}, *REAL], ids=str)
@pytest.mark.parametrize("head", [HeadId(0, 1), HeadId(1, 3)])
def test_a_table_takes_the_place_of_a_direct_effect(changes: dict[str, Any], head: HeadId) -> None:
    """An empty table: what the head wrote is missing, in the stream above and in the logits."""
    model, tokens = real_model(changes)
    # Before the cap, logits are sums.
    model = Model(Weights(model.config.replace(logit_cap=None), model.weights.store), model.name)
    clean = model.trace(tokens)
    layer = model.weights.layers[head.layer]
    bias = bias_in_z(layer, head.head, clean.patterns[head.layer][:, head.head])
    plain = clean.z(head.layer)[:, head.head] - bias
    written = plain @ layer.W_O[head.head] * clean.scales.write[head.layer][..., None]
    nothing = TopTokenTable(model.head(head), tokens, 1)
    nothing.values = torch.zeros_like(nothing.values)
    found = trace_run(model, tokens, nothing.edits())
    if head.layer == 0:
        assert close(found.streams[1], clean.streams[1] - written)
    else:
        direct = unembed_through(model.weights, written) * clean.scales.final[..., None]
        assert close(found.logits, clean.logits - direct)
        assert close(found.scales.final, clean.scales.final)
