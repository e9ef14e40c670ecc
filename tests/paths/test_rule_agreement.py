"""Rules for MLPs: identities of their shares, and their agreement with effects."""

import pytest
import torch
from hypothesis import given, settings
from tests.identities.configs import Drawn, close, models_with_tokens
from tests.identities.test_component_edges import drawn_runs

import pathsum as ps
from pathsum.base.errors import InputError
from pathsum.model import Config, construct, random_model
from pathsum.paths.component_edges import ComponentRuns
from pathsum.paths.cuts import cut_effects
from pathsum.paths.rule_agreement import (
    RULES,
    Agreement,
    _agreement,  # pyright: ignore[reportPrivateUsage]
    rule_agreement,
    rule_shares,
)
from pathsum.paths.target import PredictionRun, find_target


@given(
    models_with_tokens(
        min_layers=1,
        max_layers=2,
        max_heads=2,
        norms=("none",),
        mlps=("relu", "gelu", "silu_gated"),
    )
)
@settings(max_examples=25, deadline=None)
def test_integrated_shares_add_up_to_the_mlps_difference(drawn: Drawn) -> None:
    runs = ComponentRuns(*drawn_runs(drawn))
    graph, shares, gradients = runs.graph, rule_shares(runs)["integrated"], runs.gradients()
    for reader in graph.into_mlps.nonzero()[:, 0].tolist():
        writer = graph.writers.index(graph.readers[reader].reader)
        at_output = gradients[graph.exists[:, writer]].sum(0)
        moved = (at_output * (runs.outputs - runs.reference)[writer]).sum()
        assert close(shares[reader].sum(), moved)


@given(models_with_tokens(min_layers=1, max_layers=2, max_heads=2, mlps=("relu", "silu_gated")))
@settings(max_examples=25, deadline=None)
def test_shares_are_those_of_gradients(drawn: Drawn) -> None:
    """Attribution patching is EAP, and ReLU with gates held is its gradient but for the norm."""
    model = drawn[0]
    runs = ComponentRuns(*drawn_runs(drawn))
    shares, mlps = rule_shares(runs), runs.graph.into_mlps
    assert close(shares["attribution patching"][mlps], runs.eap()[mlps])
    if model.config.norm == "none" and model.config.mlp == "relu":
        assert close(shares["gates held"][mlps], runs.eap()[mlps])
    both = shares["gates held"] + shares["values held"]
    assert close(2 * shares["half of each"], both)


@pytest.mark.parametrize("tokens", [[4, 2, 5], [1, 4, 5], [1, 2, 5]], ids=str)
def test_effects_are_those_of_patches(tokens: list[int]) -> None:
    """Also with a reference whose first tokens are the same, which are not run again."""
    model = random_model(Config(2, 2, 8, 4, 11, 8, mlp="gelu"), seed=1, dtype=torch.float64)
    runs = ComponentRuns(
        *(trace := model.trace([1, 2, 3]), other := model.trace(tokens)),
        find_target(trace, -1, 1, "mean"),
    )
    edges = [runs.graph.edge(*edge) for edge in runs.graph.exists.nonzero().tolist()]
    into = [edge for edge in edges if "→mlp" in str(edge)]
    effects = cut_effects(PredictionRun(trace, runs.target), [[edge] for edge in into], other)
    for edge, effect in zip(into, effects, strict=True):
        patched = trace.patch({edge: other})
        lost = runs.target.of(trace.logits) - runs.target.of(patched.logits)
        assert effect == pytest.approx(float(lost[0]), abs=1e-9)


def test_a_memory_is_explained_by_every_rule_that_sees_its_gate() -> None:
    pairs = [ps.Prompt(f"{a} b", corrupted=f"{b} b") for a, b in ("ac", "ce", "eg", "gi")]
    found = rule_agreement(construct.memory(), pairs)
    assert found["integrated"].correlation.value == pytest.approx(1.0, abs=1e-3)
    assert found["integrated"].same_sign.value == pytest.approx(1.0, abs=1e-3)
    assert len(found.agreements) == 2 * len(RULES)
    assert found["integrated"].edges == 4 * 2  # the embedding and L0H0, in each prompt
    assert found["integrated"].correlation.low is not None
    assert "95% intervals over 4 prompts" in str(found.to_table().note)


def test_texts_are_paired_with_the_next_of_their_length() -> None:
    model, texts = construct.memory(), ["a b", "c e a", "c b", "e b", "g i a"]
    other = {"a b": "c b", "c b": "e b", "e b": "a b", "c e a": "g i a", "g i a": "c e a"}
    pairs = [ps.Prompt(text, corrupted=other[text]) for text in texts]
    assert rule_agreement(model, texts).dumps() == rule_agreement(model, pairs).dumps()
    ids = [model.encode(text) for text in texts]
    assert rule_agreement(model, ids).dumps() == rule_agreement(model, pairs).dumps()


def test_messages() -> None:
    pairs = [ps.Prompt("a b", corrupted="c b")] * 2
    with pytest.raises(InputError, match="has no MLPs, so there are no rules to compare"):
        rule_agreement(construct.induction(), pairs)
    with pytest.raises(InputError, match="1 prompts have no intervals; give at least two"):
        rule_agreement(construct.memory(), pairs[:1])
    with pytest.raises(InputError, match="prompt 0: it has no corrupted partner"):
        rule_agreement(construct.memory(), [ps.Prompt("a b"), ps.Prompt("b a c")])
    with pytest.raises(InputError, match="there is no rule 'best'; the rules are gates held"):
        _ = rule_agreement(construct.memory(), pairs)["best"]


@pytest.mark.parametrize("count", [3, 8])
def test_intervals_over_few_prompts_cover_the_truth(count: int) -> None:
    """Prompts differ in size and in how well their shares follow the effects."""
    generator = torch.Generator().manual_seed(0)

    def drawn(prompts: int) -> tuple[torch.Tensor, torch.Tensor]:
        normal = torch.randn(4, prompts, 20, generator=generator, dtype=torch.float64)
        size, follows = (0.5 * normal[0, :, :1]).exp(), 0.7 + 0.3 * normal[0, :, 1:2]
        effects = normal[1].sign() * normal[2].exp()
        return (follows * effects + 0.8 * normal[3]) * size, effects * size

    def measured(prompts: int) -> Agreement:
        kept = torch.cat((torch.ones(1, prompts), 1 - torch.eye(min(8, prompts), prompts))).bool()
        pair = drawn(prompts)
        return _agreement("any", None, *pair, torch.ones_like(pair[0]).bool(), kept)

    truth, found = measured(50_000), [measured(count) for _ in range(300)]
    for name in ("correlation", "same_sign"):
        true = getattr(truth, name).value
        inside = [one.low <= true <= one.high for one in (getattr(each, name) for each in found)]
        assert sum(inside) > 0.88 * len(found)
