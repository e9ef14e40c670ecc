"""Direct attribution and virtual heads as properties, on every variant of a model, in float64."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.identities.configs import models_with_tokens
from torch import Tensor

from pathsum.model import HeadId, Model
from pathsum.paths import direct_attribution, logit_effects, virtual_head


@given(models_with_tokens(max_layers=3, max_heads=3), st.integers(0, 2**16))
@settings(max_examples=45)
def test_components_add_up_and_are_those_of_toward(drawn: tuple[Model, Tensor], seed: int) -> None:
    model, tokens = drawn
    trace = model.trace(tokens)
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(model.config.d_vocab, tokens.shape, generator=generator)
    found = direct_attribution(trace, targets)
    own = trace.logits.gather(-1, targets[..., None])[..., 0] - trace.logits.mean(-1)
    torch.testing.assert_close(found.total, own, rtol=1e-8, atol=1e-9)
    assert found.remainder < 1e-9
    position = seed % tokens.shape[1]
    why = trace.paths().toward(position, targets[:, position], "mean")
    torch.testing.assert_close(
        found.values[:, :, position].mean(0), why.by_last.values, rtol=1e-8, atol=1e-9
    )


@given(models_with_tokens(min_layers=1, max_layers=3, max_heads=3), st.integers(0, 2**16))
@settings(max_examples=45)
def test_effects_sum_to_the_heads_attribution(drawn: tuple[Model, Tensor], seed: int) -> None:
    model, tokens = drawn
    trace = model.trace(tokens)
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(model.config.d_vocab, tokens.shape, generator=generator)
    head = model.heads[seed % len(model.heads)].id
    effects = logit_effects(trace, head, targets)
    direct = direct_attribution(trace, targets)[head]
    torch.testing.assert_close(effects.total.sum(-1), direct, rtol=1e-8, atol=1e-9)
    # Single: the source itself, through this head alone.
    paths = trace.paths()
    single = torch.zeros_like(direct)
    for path in paths.order(1):
        if path.heads == (head,):
            logits = paths.contribution(path)
            single += logits.gather(-1, targets[..., None])[..., 0] - logits.mean(-1)
    torch.testing.assert_close(effects.single.sum(-1), single, rtol=1e-8, atol=1e-9)
    if head.layer == 0:
        assert not bool(effects.composed.any())


@given(models_with_tokens(min_layers=2, max_layers=3, max_heads=2), st.integers(0, 2**16))
@settings(max_examples=36)
def test_a_virtual_head_is_the_paths_through_its_heads(
    drawn: tuple[Model, Tensor], seed: int
) -> None:
    model, tokens = drawn
    trace = model.trace(tokens)
    heads = HeadId(0, seed % model.config.n_heads), HeadId(model.config.n_layers - 1, 0)
    pair = virtual_head(model, *heads)
    paths = trace.paths()
    wanted = sum(paths.contribution(path) for path in paths.order(2) if path.heads == heads)
    torch.testing.assert_close(pair.contribution(trace), wanted, rtol=1e-8, atol=1e-9)
    dense = pair.ov.dense()
    product = model.head(heads[0]).ov.dense() @ model.head(heads[1]).ov.dense()
    torch.testing.assert_close(dense, product, rtol=1e-8, atol=1e-9)
