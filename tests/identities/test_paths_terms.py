"""Term importance as properties: the one pass is the paper's repeated runs, and the path sum."""

import math

import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.identities.configs import Drawn, close, models_with_tokens
from tests.paths.multi_run import multi_run_losses
from torch import Tensor

from pathsum.model import Model, transformer
from pathsum.model.folding import attention_bias
from pathsum.model.symmetries import scrambled
from pathsum.paths import MlpOutputs, Scales, by_head, by_layer, by_virtual_head, term_importance
from pathsum.paths.order_sweep import Truncated, truncate


def logits_of(truncated: Truncated, order: int) -> Tensor:
    """The logits of all paths up to an order."""
    weights = truncated.frozen.run.weights
    logits = transformer.logits_of_read(weights, truncated.read(truncated.last[order]))
    return transformer.soft_cap(logits, weights.config.logit_cap)


@given(models_with_tokens(causal=(True,), norms=("none",), mlps=("none",)))
@settings(max_examples=45)
def test_one_pass_is_the_papers_repeated_runs(drawn: Drawn) -> None:
    model, tokens = drawn
    assume(tokens.shape[1] > 1 and not has_biases(model))
    found = term_importance(model, tokens)
    truth = multi_run_losses(model, tokens)
    assert len(found.loss) == model.config.n_layers + 1
    assert max(abs(a - b) for a, b in zip(found.loss, truth, strict=True)) < 1e-10


@given(models_with_tokens(causal=(True,), mlps=("none",)))
@settings(max_examples=45)
def test_with_scales_recomputed_it_is_the_repeated_runs_of_a_normalizing_model(
    drawn: Drawn,
) -> None:
    model, tokens = drawn
    assume(tokens.shape[1] > 1 and not has_biases(model))
    found = term_importance(model, tokens, scale=Scales.RECOMPUTED)
    truth = multi_run_losses(model, tokens)
    assert max(abs(a - b) for a, b in zip(found.loss, truth, strict=True)) < 1e-10


@given(models_with_tokens())
@settings(max_examples=45)
def test_truncated_logits_are_the_path_sum_up_to_that_order(drawn: Drawn) -> None:
    model, tokens = drawn
    assume(model.config.n_layers * model.config.n_heads <= 8)
    trace = model.trace(tokens)
    paths, truncated = trace.paths(), truncate(trace)
    total = torch.zeros_like(trace.logits)
    for order in range(model.config.n_layers + 1):
        for path in paths.order(order):
            total = total + paths.contribution(path)
        assert close(logits_of(truncated, order), total)


@given(models_with_tokens(), st.sampled_from(Scales), st.sampled_from(MlpOutputs))
@settings(max_examples=45)
def test_all_orders_together_are_the_model(drawn: Drawn, scale: Scales, mlps: MlpOutputs) -> None:
    model, tokens = drawn
    trace = model.trace(tokens)
    truncated = truncate(trace, scale, mlps)
    assert len(truncated.last) == truncated.frozen.orders(model.config.n_layers)
    assert close(logits_of(truncated, -1), trace.logits)


@given(models_with_tokens(mlps=("none", "gelu")))
@settings(max_examples=24)
def test_terms_of_an_order_add_up_to_it(drawn: Drawn) -> None:
    model, tokens = drawn
    trace = model.trace(tokens)
    truncated = truncate(trace)
    for order, sets in ((1, by_head(model)), (2, by_virtual_head(model))):
        if order > model.config.n_layers:
            continue
        chains = [chain for terms in sets for chain in terms.chains]
        written = sum((truncated.term(chain) for chain in chains), torch.zeros(()))
        assert close(truncated.last[order - 1] + written, truncated.last[order])


@given(
    models_with_tokens(
        causal=(True,), mlps=("none", "relu"), max_layers=2, max_heads=3, min_layers=1
    )
)
@settings(max_examples=60)
def test_a_set_of_all_terms_has_the_gain_of_its_order(drawn: Drawn) -> None:
    model, tokens = drawn
    assume(tokens.shape[1] > 1 and model.config.n_layers == 1)
    found = term_importance(model, tokens, sets=by_layer(model))
    for estimate in (found.sets[0].alone, found.sets[0].given_others):
        assert abs(estimate.value - found.gain[1]) < 1e-9


@given(
    models_with_tokens(
        causal=(True,), mlps=("none", "relu"), max_layers=2, max_heads=3, min_layers=2
    ),
    st.sampled_from(Scales),
)
@settings(max_examples=24)
def test_a_set_gains_the_same_with_the_rest_of_its_order_and_on_its_own(
    drawn: Drawn, scale: Scales
) -> None:
    model, tokens = drawn
    assume(tokens.shape[1] > 1)
    sets = by_layer(model)
    together = term_importance(model, tokens, sets=sets, scale=scale).sets
    for terms, found in zip(sets, together, strict=True):
        (alone,) = term_importance(model, tokens, sets=[terms], scale=scale).sets
        assert abs(found.alone.value - alone.alone.value) < 1e-9
        assert abs(found.given_others.value - alone.given_others.value) < 1e-9


@given(models_with_tokens(causal=(True,)))
@settings(max_examples=24)
def test_losses_survive_every_symmetry(drawn: Drawn) -> None:
    model, tokens = drawn
    assume(tokens.shape[1] > 1 and model.config.d_model > 1)
    found, again = (term_importance(m, tokens) for m in (model, scrambled(model, seed=3)))
    assert max(abs(a - b) for a, b in zip(found.loss, again.loss, strict=True)) < 1e-7
    # A mean of equal numbers, which a sum may round.
    assert math.isclose(found.uniform, math.log(model.config.d_vocab), rel_tol=1e-14)


@given(models_with_tokens(mlps=("relu", "silu_gated"), min_layers=1))
@settings(max_examples=24)
def test_recomputed_mlps_of_order_zero_are_a_run_without_heads(drawn: Drawn) -> None:
    model, tokens = drawn
    trace = model.trace(tokens)
    truncated = truncate(trace, Scales.RECOMPUTED, MlpOutputs.RECOMPUTED)
    config, stream = model.config, transformer.embed(model.weights, tokens)
    for index, layer in enumerate(model.weights.layers):
        attended = stream + attention_bias(model.weights, index)
        source = stream if config.block == "parallel" else attended
        stream = attended + transformer.mlp(config, layer, source)[0]
    assert close(logits_of(truncated, 0), transformer.unembed(model.weights, stream)[0])


def has_biases(model: Model) -> bool:
    return any(
        name.rsplit(".", 1)[-1].startswith(("b_V", "b_O", "ln1_b")) for name in model.weights.names
    )
