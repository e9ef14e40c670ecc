"""Offset profiles are the model's own scores, where no token says anything or on average.

The content part, from moments of the embeddings, is the spread over every pair of tokens.
"""

from dataclasses import replace

import torch
from hypothesis import given, settings
from tests.identities.configs import models, rotates

from pathsum.circuits.positional import _position_sides, offset_profile, positional
from pathsum.circuits.qk_ov import token_keys, token_qk, token_queries
from pathsum.circuits.token_basis import token_frequencies
from pathsum.model import Model
from pathsum.model.rotary import rotate
from pathsum.model.store import MemoryStore
from pathsum.model.weights import Weights


def without_tokens(model: Model) -> Model:
    flat = {name: t * 0 if name == "W_E" else t for name, t in model.weights.items()}
    return replace(model, weights=Weights(model.config, MemoryStore(flat)))


@settings(max_examples=36)
@given(models(causal=(True,), min_layers=1, max_layers=1, positions=("qk", "residual")))
def test_position_scores_are_the_scores_of_a_model_whose_tokens_are_zero(model: Model) -> None:
    if model.config.qk_norm != "none":
        return  # its scale is not a weight, and the result says so
    silent = without_tokens(model)
    length = model.config.n_ctx
    own = silent.trace(torch.zeros(1, length, dtype=torch.long)).attention_scores(0)[0]
    for head in silent.heads:
        queries, keys = _position_sides(head, None)
        ours, theirs = queries @ keys.T, own[head.id.head]
        # b_K's part is constant along a row.
        difference = (ours - ours[:, :1]) - (theirs - theirs[:, :1])
        assert float(difference.abs().max()) <= 1e-8 * max(1.0, float(theirs.abs().max()))
        pattern = theirs.masked_fill(torch.ones_like(theirs).triu(1) > 0, -torch.inf).softmax(-1)
        window = length // 2
        # Destinations that see the whole window: the end of each diagonal.
        diagonals = [pattern.diagonal(-n)[window - 1 - n :] for n in range(window)]
        found = offset_profile(head, window).attention
        assert found is not None
        assert torch.allclose(found, torch.stack(diagonals).mean(1), atol=1e-8)


@settings(max_examples=12)
@given(models(causal=(True,), min_layers=1, max_layers=1, max_heads=2, positions=("rotary",)))
def test_rotary_profile_is_the_mean_of_the_scores_of_all_pairs_of_tokens(model: Model) -> None:
    vocab, window = model.config.d_vocab, 3
    destinations = torch.arange(vocab).repeat_interleave(vocab)
    sources = torch.arange(vocab).repeat(vocab)
    found = positional(model, window=window)
    table = torch.empty(window, len(model.heads), vocab, vocab, dtype=torch.float64)
    for offset in range(window):
        # One filler in front, so that source and destination differ at offset 0 as well.
        tokens = torch.zeros(vocab * vocab, offset + 2, dtype=torch.long)
        tokens[:, 1], tokens[:, -1] = sources, destinations
        scores = model.trace(tokens).attention_scores(0)[:, :, -1, 1]
        table[offset] = scores.T.reshape(-1, vocab, vocab)
    for index, profile in enumerate(found.heads):
        # At offset 0 a token meets itself: that run cannot tell the two sides apart.
        mean = table[:, index].mean((1, 2))[1:]
        ours = profile.score[1:]
        assert torch.allclose(ours - ours[0], mean - mean[0], atol=1e-8)


@settings(max_examples=30)
@given(models(causal=(True,), min_layers=1, max_layers=2, positions=("qk", "residual", "rotary")))
def test_profiles_are_centered_and_content_is_what_pairs_of_tokens_spread(model: Model) -> None:
    found = positional(model, window=4)
    rotary = model.config.positions == "rotary"
    placed = [h for h in model.heads if not rotary or rotates(model.config, h.id.layer)]
    for profile, head in zip(found.heads, placed, strict=True):
        assert abs(float(profile.score.mean())) < 1e-9 * max(1.0, float(profile.score.abs().max()))
        assert bool((profile.sd >= 0).all())
        if profile.attention is not None:
            assert float(profile.attention.sum()) <= 1 + 1e-9
        if not rotary:
            dense = token_qk(model, head.id).dense()
            expected = float(dense.square().mean().sqrt())
            assert abs(profile.content - expected) <= 1e-8 * max(1.0, expected)


@settings(derandomize=True, deadline=None, max_examples=40)
@given(model=models(min_layers=1, max_layers=2, positions=("qk", "residual")))
def test_content_is_the_spread_of_scores_over_tokens(model: Model) -> None:
    """√(Σ p(a) p(b) (q_a · (k_b − k̄))²), over pairs of tokens."""
    p = token_frequencies(model)
    for head in model.heads:
        queries, keys = token_queries(head), token_keys(head)
        scores = queries @ (keys - p @ keys).T * model.config.score_scale
        expected = (p[:, None] * p[None] * scores.square()).sum().sqrt()
        found = torch.tensor(offset_profile(head, 2).content, dtype=torch.float64)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)


@settings(derandomize=True, deadline=None, max_examples=30)
@given(model=models(min_layers=1, max_layers=2, positions=("rotary",)))
def test_rotary_profiles_are_those_of_all_tokens(model: Model) -> None:
    """Mean and deviation over queries against the average key, and content over pairs of tokens."""
    p, window = token_frequencies(model), 3
    for head in model.heads:
        queries, keys = token_queries(head) * model.config.score_scale, token_keys(head)
        config = model.config.at(head.id.layer)
        rows, squares = list[torch.Tensor](), list[torch.Tensor]()
        for offset in range(window):
            turned = rotate(config, queries, torch.full((len(p),), offset))
            rows.append(turned @ (p @ keys))
            scores = turned @ (keys - p @ keys).T
            squares.append((p[:, None] * p * scores.square()).sum())
        centered = torch.stack(rows, -1)
        centered = centered - centered.mean(-1, keepdim=True)
        mean = p @ centered
        found = offset_profile(head, window)
        torch.testing.assert_close(found.score, mean, rtol=1e-6, atol=1e-7)
        sd = (p @ (centered - mean).square()).sqrt()
        torch.testing.assert_close(found.sd, sd, rtol=1e-6, atol=1e-7)
        content = torch.stack(squares).mean().sqrt()
        torch.testing.assert_close(torch.tensor(found.content).to(content), content)
