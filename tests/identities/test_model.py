"""The model as properties: every variant, in float64, with one pass in float32."""

import tempfile

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.identities.configs import models_with_tokens, relative, rotates
from torch import Tensor

import pathsum as ps
from pathsum.model import Model, fold, transformer
from pathsum.model.folding import folded_unembedding, layer_reads, logit_bias
from pathsum.model.rotary import rotate
from pathsum.model.symmetries import scrambled


@given(models_with_tokens())
@settings(max_examples=100)
def test_trace_is_the_fused_forward(drawn: tuple[Model, Tensor]) -> None:
    model, tokens = drawn
    assert relative(model.trace(tokens).logits, model(tokens)) < 1e-12


@given(models_with_tokens(dtype=torch.float32))
@settings(max_examples=25)
def test_trace_is_the_fused_forward_in_float32(drawn: tuple[Model, Tensor]) -> None:
    model, tokens = drawn
    assert model(tokens).dtype == torch.float32
    assert relative(model.trace(tokens).logits, model(tokens)) < 1e-5


@given(models_with_tokens(), st.integers(0, 2**16))
@settings(max_examples=40)
def test_the_run_of_a_prefix_is_a_part_of_the_run(drawn: tuple[Model, Tensor], seed: int) -> None:
    model, tokens = drawn
    sequence, length = seed % len(tokens), 1 + seed % tokens.shape[1]
    part = model.trace(tokens).prefix(sequence, length)
    own = model.trace(tokens[sequence : sequence + 1, :length])
    assert bool((part.tokens == own.tokens).all()) and part.lengths.tolist() == [length]
    found, wanted = part.scales, own.scales
    pairs = [(part.logits, own.logits), (found.final, wanted.final)]
    for name in ("patterns", "streams", "mlp_outputs"):
        pairs += zip(getattr(part, name), getattr(own, name), strict=True)
    for name in ("attention", "mlp", "query", "key", "write"):
        pairs += zip(getattr(found, name), getattr(wanted, name), strict=True)
    for one, other in pairs:
        assert one.shape == other.shape
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@given(models_with_tokens(causal=(True,)))
@settings(max_examples=30)
def test_rows_of_patterns_sum_to_one_and_look_back_only(drawn: tuple[Model, Tensor]) -> None:
    model, tokens = drawn
    for pattern in model.trace(tokens).patterns:
        torch.testing.assert_close(pattern.sum(-1), torch.ones_like(pattern.sum(-1)))
        assert not bool(pattern.triu(1).any())


@given(models_with_tokens(causal=(True,)))
@settings(max_examples=30)
def test_the_future_does_not_matter(drawn: tuple[Model, Tensor]) -> None:
    model, tokens = drawn
    if tokens.shape[1] > 1:
        assert relative(model(tokens)[:, :-1], model(tokens[:, :-1])) < 1e-12


@given(models_with_tokens())
@settings(max_examples=30)
def test_what_heads_wrote_and_mlps_gave_makes_the_streams(drawn: tuple[Model, Tensor]) -> None:
    model, tokens = drawn
    trace = model.trace(tokens)
    for l in range(model.config.n_layers):
        heads = [trace.written((l, h)) for h in range(model.config.n_heads)]
        written = torch.stack(heads).sum(0)
        bias = model.weights.layers[l].b_O
        after = trace.streams[l] + written + (0 if bias is None else bias)
        if trace.mlp_outputs:
            after = after + trace.mlp_outputs[l]
        assert relative(after, trace.streams[l + 1]) < 1e-12


@given(models_with_tokens())
@settings(max_examples=50)
def test_folded_reads_and_frozen_scales_give_queries_keys_values_and_logits(
    drawn: tuple[Model, Tensor],
) -> None:
    model, tokens = drawn
    trace, config = model.trace(tokens), model.config
    for l in range(config.n_layers):
        reads, scales = layer_reads(model.weights, l), trace.scales
        x = trace.streams[l] * scales.attention[l][..., None]
        layer = model.weights.layers[l]
        query, key, _, _ = transformer.queries_and_keys(config, layer, trace.read(l))
        places = torch.arange(tokens.shape[1])
        for W, b, pos, scale, wanted in (
            (reads.W_Q, reads.b_Q, reads.pos_Q, scales.query[l], query),
            (reads.W_K, reads.b_K, reads.pos_K, scales.key[l], key),
        ):
            mine = transformer.project(x, W, b)
            if pos is not None:
                mine = mine + pos[:, : tokens.shape[1]]
            mine = mine * scale[..., None]
            if rotates(config, l):
                mine = rotate(config.replace(rotary_layers=()), mine, places)
            assert relative(mine, wanted) < 1e-10
        value = transformer.values(layer, trace.read(l))
        assert relative(transformer.project(x, reads.W_V, reads.b_V), value) < 1e-10
    W_U, b_U = folded_unembedding(model.weights), logit_bias(model.weights)
    logits = (trace.streams[-1] * trace.scales.final[..., None]) @ W_U + b_U
    assert relative(logits, trace.logits) < 1e-10


@given(models_with_tokens())
@settings(max_examples=30)
def test_save_and_load_is_bit_equal(drawn: tuple[Model, Tensor]) -> None:
    model, tokens = drawn
    with tempfile.TemporaryDirectory() as folder:
        model.save(folder)
        again = ps.load(folder)
        assert again.config == model.config
        stored, wanted = dict(again.weights.items()), dict(model.weights.items())
        assert stored.keys() == wanted.keys()
        assert all(torch.equal(stored[name], wanted[name]) for name in wanted)
        torch.testing.assert_close(again(tokens), model(tokens))


@given(models_with_tokens())
@settings(max_examples=50)
def test_folding_changes_nothing(drawn: tuple[Model, Tensor]) -> None:
    model, tokens = drawn
    folded = fold(model)
    assert relative(folded(tokens), model(tokens)) < 1e-10
    assert not any(name.rsplit(".", 1)[-1].startswith("ln") for name in folded.weights.names)


@given(models_with_tokens())
@settings(max_examples=50)
def test_symmetries_keep_probabilities_and_patterns(drawn: tuple[Model, Tensor]) -> None:
    model, tokens = drawn
    before, after = model.trace(tokens), scrambled(model, seed=3).trace(tokens)
    assert (before.logits.softmax(-1) - after.logits.softmax(-1)).abs().max() < 1e-8
    for one, other in zip(before.patterns, after.patterns, strict=True):
        assert (one - other).abs().max() < 1e-8


@given(models_with_tokens(min_layers=1))
@settings(max_examples=30)
def test_circuits_of_a_head_are_what_it_does(drawn: tuple[Model, Tensor]) -> None:
    """Content part of a score through qk_at(offset), and what is moved through ov."""
    model, tokens = drawn
    if model.config.qk_norm != "none":
        return  # its scale multiplies the whole query, so no single term stands alone
    trace = model.trace(tokens)
    config = model.config
    for head in model.heads[:: config.n_heads]:
        l, h = head.id.layer, head.id.head
        x = trace.streams[l] * trace.scales.attention[l][..., None]
        dest, src = tokens.shape[1] - 1, tokens.shape[1] // 2
        content = torch.einsum("bd,de,be->b", x[:, dest], head.qk_at(dest - src).dense(), x[:, src])
        reads = layer_reads(model.weights, l)
        query, key = x[:, dest] @ reads.W_Q[h], x[:, src] @ reads.W_K[head.kv]
        if rotates(config, l):
            alike = config.replace(rotary_layers=())
            query = rotate(alike, query[:, None], torch.tensor([dest]))[:, 0]
            key = rotate(alike, key[:, None], torch.tensor([src]))[:, 0]
        torch.testing.assert_close(content, (query * key).sum(-1) * config.score_scale)
        moved = trace.pattern(head.id) @ x @ head.ov.dense()
        bias = reads.b_V[head.kv] @ head.W_O
        torch.testing.assert_close(moved + bias, trace.written(head.id))
