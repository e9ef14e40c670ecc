"""Runs with parts exchanged, as properties over every variant of model."""

from dataclasses import replace
from typing import get_args

import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.identities.configs import Drawn, close, models_with_tokens
from torch import Tensor

from pathsum.base import Site
from pathsum.base.site import HEAD_SIDES
from pathsum.model import HeadId, Model, Source, trace_run, transformer
from pathsum.model.edit import Edit, Writes
from pathsum.model.reference import AblationReference
from pathsum.model.store import MemoryStore
from pathsum.model.weights import Weights
from pathsum.paths import After, IdealPattern, Reference, Side, ablate
from pathsum.paths.ablation import AblatedOutputs, after_edits
from pathsum.paths.causal import edges_of
from pathsum.paths.descriptions import keep_copying_part
from pathsum.paths.patching import patched_pattern


def other_tokens(model: Model, tokens: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(int(tokens.sum()))
    return torch.randint(model.config.d_vocab, tokens.shape, generator=generator)


def some_head(model: Model, tokens: Tensor) -> HeadId:
    choice = int(tokens.sum()) % len(model.heads)
    return model.heads[choice].id


def writers(model: Model) -> list[HeadId | Source]:
    mlps = range(model.config.n_layers if model.config.mlp != "none" else 0)
    return [Source("embed"), *(h.id for h in model.heads), *(Source("mlp", l) for l in mlps)]


@given(models_with_tokens())
@settings(max_examples=24)
def test_a_run_without_edits_is_the_run(drawn: Drawn) -> None:
    model, tokens = drawn
    trace, again = model.trace(tokens), trace_run(model, tokens, ())
    assert close(again.logits, trace.logits)
    for mine, theirs in (
        *zip(again.patterns, trace.patterns, strict=True),
        *zip(again.streams, trace.streams, strict=True),
        *zip(again.mlp_outputs, trace.mlp_outputs, strict=True),
        *zip(again.scales.attention, trace.scales.attention, strict=True),
        *zip(again.scales.mlp, trace.scales.mlp, strict=True),
        *zip(again.scales.query, trace.scales.query, strict=True),
        *zip(again.scales.key, trace.scales.key, strict=True),
        (again.scales.final, trace.scales.final),
    ):
        assert close(mine, theirs)
    for layer in range(model.config.n_layers):
        assert close(again.z(layer), trace.z(layer))


@given(models_with_tokens(min_layers=1))
@settings(max_examples=24)
def test_what_the_run_did_anyway_changes_nothing(drawn: Drawn) -> None:
    model, tokens = drawn
    trace = model.trace(tokens)
    head = some_head(model, tokens)
    edges = list(edges_of(model))
    eye = torch.eye(model.config.d_head, dtype=torch.float64)
    edits: list[Edit] = [
        Edit(Site(head, value="pattern"), trace.pattern(head)),
        Edit(Site(head, value="z"), trace.z(head.layer)[:, head.head]),
        *after_edits(trace, After.FREEZE_PATTERNS),
        Edit(Site(Source("embed")), model.weights.W_E[tokens]),
        Edit(Site(head), trace.written(head)),
        *(Edit(edge, trace.written(edge.writer)) for edge in edges[:: max(1, len(edges) // 3)]),
    ]
    for edit in edits:
        assert close(trace_run(model, tokens, [edit]).logits, trace.logits)
    project = keep_copying_part(model.head(head), eye)
    assert close(trace_run(model, tokens, project).logits, trace.logits)
    assert close(trace_run(model, tokens, edits).logits, trace.logits)


@given(models_with_tokens(min_layers=1, max_layers=2, max_heads=3))
@settings(max_examples=24)
def test_a_node_is_all_its_edges(drawn: Drawn) -> None:
    """Every reader told the same is the writer exchanged, normalization and all."""
    model, tokens = drawn
    trace, other = model.trace(tokens), model.trace(other_tokens(model, tokens))
    every = writers(model)
    for writer in every[int(tokens.sum()) % 3 :: 3]:
        edges = [edge for edge in edges_of(model) if edge.writer == writer]
        by_edges = trace.patch(dict.fromkeys(edges, other))
        by_node = trace.patch({writer: other})
        assert close(by_edges.logits, by_node.logits)


@given(models_with_tokens())
@settings(max_examples=18)
def test_the_embedding_of_another_run_is_the_other_run(drawn: Drawn) -> None:
    model, tokens = drawn
    trace, other = model.trace(tokens), model.trace(other_tokens(model, tokens))
    patched = trace.patch({"embed": other})
    assert close(patched.logits, other.logits)
    for mine, theirs in zip(patched.patterns, other.patterns, strict=True):
        assert close(mine, theirs)


@given(models_with_tokens(min_layers=2, max_layers=2, max_heads=4), st.sampled_from(HEAD_SIDES))
@settings(max_examples=45)
def test_an_edge_reaches_one_read_of_its_reader_alone(drawn: Drawn, side: Side) -> None:
    model, tokens = drawn
    trace, other = model.trace(tokens), model.trace(other_tokens(model, tokens))
    reader = HeadId(1, int(tokens.sum()) % model.config.n_heads)
    patched = trace.patch({("L0H0", reader, side): other})
    # What the whole layer would do if all its heads read the message on that side.
    config, layer = model.config, model.weights.layers[1]
    told = trace.streams[1] - trace.written("L0H0") + other.written("L0H0")
    reads = dict.fromkeys(Side, trace.read(1))
    reads[side] = transformer.attention_read(config, layer, told)[0]
    query = transformer.queries_and_keys(config, layer, reads[Side.Q])[0]
    key = transformer.queries_and_keys(config, layer, reads[Side.K])[1]
    scores = transformer.attention_scores(config, query, key)
    pattern = transformer.attention_pattern(config, layer, scores)
    mixed = transformer.mix(pattern, transformer.values(layer, reads[Side.V]))
    for head in range(config.n_heads):
        reached = head == reader.head
        expected = pattern[:, head] if reached else trace.patterns[1][:, head]
        assert close(patched.patterns[1][:, head], expected)
        expected = mixed[:, head] if reached else trace.z(1)[:, head]
        assert close(patched.z(1)[:, head], expected)
    assert close(patched.streams[1], trace.streams[1])


@given(models_with_tokens(min_layers=1, max_layers=2, max_heads=3))
@settings(max_examples=24)
def test_an_edge_takes_its_part_of_all_writes(drawn: Drawn) -> None:
    model, tokens = drawn
    other = model.trace(other_tokens(model, tokens))
    edges = list(edges_of(model))
    for edge in edges[:: max(1, len(edges) // 4)]:
        plain = trace_run(model, tokens, [Edit(edge, other.written(edge.writer))])
        whole = trace_run(model, tokens, [Edit(edge, Writes.of(other))])
        assert close(whole.logits, plain.logits)
        for mine, theirs in zip(whole.patterns, plain.patterns, strict=True):
            assert close(mine, theirs)
        for layer in range(model.config.n_layers):
            assert close(whole.z(layer), plain.z(layer))


@given(models_with_tokens(min_layers=2, max_heads=3))
@settings(max_examples=24)
def test_batches_of_one_are_repeated(drawn: Drawn) -> None:
    model, tokens = drawn
    one, many = model.trace(tokens[:1]), model.trace(other_tokens(model, tokens))
    edge = ("L0H0", "L1H0", "k")
    here, there = one.patch({edge: many}), many.patch({edge: one})
    assert here.logits.shape == there.logits.shape == many.logits.shape
    for row in range(len(tokens)):
        alone = model.trace(many.tokens[row : row + 1])
        assert close(here.logits[row], one.patch({edge: alone}).logits[0])
        assert close(there.logits[row], alone.patch({edge: one}).logits[0])


@given(models_with_tokens(min_layers=1))
@settings(max_examples=24)
def test_zero_ablation_is_a_model_without_the_heads_weights(drawn: Drawn) -> None:
    model, tokens = drawn
    assume(tokens.shape[1] > 1)
    head = some_head(model, tokens)
    name = f"layers.{head.layer}.W_O"
    flat = dict(model.weights.items())
    flat[name] = flat[name].clone()
    flat[name][head.head] = 0.0
    without = replace(model, weights=Weights(model.config, MemoryStore(flat)))
    edits = AblatedOutputs(model, (head,), Reference.ZERO, [tokens]).edits(
        model.trace(tokens), tokens
    )
    assert close(trace_run(model, tokens, edits).logits, without(tokens))


@given(models_with_tokens(min_layers=1, max_layers=3, max_heads=2, norms=("none",), mlps=("none",)))
@settings(max_examples=24)
def test_patterns_preserved_zero_ablation_is_the_path_sum_without_the_head(drawn: Drawn) -> None:
    model, tokens = drawn
    trace, head = model.trace(tokens), some_head(model, tokens)
    stand_in = AblatedOutputs(model, (head,), Reference.ZERO, [tokens])
    edits = (*stand_in.edits(trace, tokens), *after_edits(trace, After.FREEZE_PATTERNS))
    # What the head's own value bias writes goes with the head; the path sum keeps it in a source.
    assume("layers.0.b_V" not in model.weights.names)
    paths = trace.paths()
    total = sum(
        (paths.contribution(path) for path in paths if head not in path.heads), torch.zeros(())
    )
    assert close(trace_run(model, tokens, edits).logits, total)


@given(
    models_with_tokens(causal=(True,), min_layers=1),
    st.sampled_from(get_args(AblationReference)),
    st.sampled_from(After),
)
@settings(max_examples=18)
def test_every_ablation_runs_on_every_model(
    drawn: Drawn, reference: AblationReference, after: After
) -> None:
    model, tokens = drawn
    assume(tokens.shape[0] > 1 and tokens.shape[1] > 1)
    found = ablate(model, [h.id for h in model.heads], tokens, reference=reference, after=after)
    assert found.loss.low <= found.loss.value <= found.loss.high
    assert abs(found.loss_without.value - found.loss.value - found.cost.value) < 1e-9


@given(models_with_tokens(), st.sampled_from(IdealPattern))
@settings(max_examples=18)
def test_ideal_patterns_are_patterns(drawn: Drawn, ideal: IdealPattern) -> None:
    _, tokens = drawn
    pattern = ideal.of(tokens, torch.float64)
    assert close(pattern.sum(-1), torch.ones_like(pattern[..., 0]))
    assert not bool(pattern.triu(1).any())
    assert bool((pattern >= 0).all())


@given(models_with_tokens(min_layers=1))
@settings(max_examples=24)
def test_the_pattern_of_a_patched_edge_needs_no_run(drawn: Drawn) -> None:
    model, tokens = drawn
    trace, other = model.trace(tokens), model.trace(other_tokens(model, tokens))
    edges = [edge for edge in edges_of(model) if edge.side in (Side.Q, Side.K)]
    for edge in edges[:: 1 + len(edges) // 24]:
        expected = trace.patch({edge: other}).pattern(edge.reader)
        assert close(patched_pattern(trace, edge, other), expected)
