"""Replacement: descriptions of heads put in their place."""

import pytest
import torch
from hypothesis import given, settings
from tests.identities.configs import models_with_tokens

import pathsum as ps
from pathsum.base import schema
from pathsum.base.errors import InputError
from pathsum.model import Model, trace_run
from pathsum.model.symmetries import scrambled
from pathsum.paths import (
    CopyingPart,
    IdealPattern,
    Replacement,
    ScoreTerm,
    TopTokens,
    replace,
)
from pathsum.paths.descriptions import TopTokenTable, copying_projector
from pathsum.text.token_pool import random_repeats

PROBE = random_repeats(range(27), 10, 4, 5, start_token=0)


@pytest.mark.parametrize(("head", "pattern"), [("L0H0", "previous"), ("L1H0", "induction")])
@pytest.mark.parametrize("first", [0, 20])
def test_ideal_patterns_are_the_hand_built_heads(head: str, pattern: str, first: int) -> None:
    found = replace(
        ps.construct.induction(), head, PROBE.tokens, pattern=pattern, from_position=first
    )
    assert found.share is not None
    assert 0.99 <= found.share.value <= 1.01
    assert found.overlap == pytest.approx(1.0, abs=1e-3)


def test_a_wrong_pattern_recovers_little() -> None:
    for pattern in ("previous", "first", "uniform", "duplicate"):
        found = replace(
            ps.construct.induction(), "L1H0", PROBE.tokens, pattern=pattern, from_position=20
        )
        assert found.share is not None
        assert found.share.value < 0.3


def test_the_k_term_with_the_previous_token_head_is_the_score() -> None:
    model = ps.construct.induction()
    right = replace(
        model,
        "L1H0",
        PROBE.tokens,
        pattern=ScoreTerm("embed", "embed→L0H0"),
        from_position=20,
    )
    wrong = replace(
        model, "L1H0", PROBE.tokens, pattern=ScoreTerm("embed", "embed"), from_position=20
    )
    assert right.share is not None and right.share.value > 0.99
    assert wrong.share is not None and wrong.share.value < 0.1
    assert "embed × embed→L0H0" in right.description


def test_the_copying_part_is_all_of_a_head_that_copies() -> None:
    found = replace(
        ps.construct.induction(),
        "L1H0",
        PROBE.tokens,
        pattern=IdealPattern.INDUCTION,
        ov=CopyingPart(),
        from_position=20,
    )
    assert found.share is not None and found.share.value > 0.99
    assert "of 64 eigenvalues" in found.kept


def test_a_table_of_one_token_is_all_of_a_head_that_copies_to_the_logits() -> None:
    model = ps.construct.induction()
    table = replace(model, "L1H0", PROBE.tokens, ov=TopTokens(1), from_position=20)
    below = replace(model, "L0H0", PROBE.tokens, ov=TopTokens(1), from_position=20)
    assert table.share is not None and table.share.value > 0.99
    # What L0H0 writes is read by a head, and a table holds nothing to read.
    assert below.share is not None and below.share.value < 0.01


def test_no_share_of_nothing() -> None:
    found = replace(ps.construct.induction(), "L1H1", PROBE.tokens, pattern="uniform")
    assert found.share is None
    assert "no cost that a description could recover" in found.why_no_share
    assert "share of the cost recovered" not in [row[0] for row in found.to_table().rows]
    noisy = ps.random_model(ps.Config(2, 2, 16, 8, 40, 12), seed=5)
    tokens = torch.randint(40, (3, 12), generator=torch.Generator().manual_seed(0))
    whys = [replace(noisy, head.id, tokens, pattern="uniform").why_no_share for head in noisy.heads]
    assert any("not clearly above zero" in why for why in whys)


@given(models_with_tokens(causal=(True,), min_layers=1, max_heads=3, max_layers=2))
@settings(max_examples=24)
def test_the_copying_projector_is_a_spectral_projector(drawn: tuple[Model, torch.Tensor]) -> None:
    head = drawn[0].heads[-1]
    found = copying_projector(head)
    P = found.matrix
    size = max(1.0, float(P.norm()))
    assert float((P @ P - P).norm()) < 1e-6 * size
    assert float(P.trace()) == pytest.approx(found.kept, abs=1e-6 * size)
    again = copying_projector(scrambled(drawn[0], seed=1).head(head.id))
    assert again.kept == found.kept
    assert again.share == pytest.approx(found.share, abs=1e-5)


@given(
    models_with_tokens(
        positions=("qk", "rotary", "none"), mlps=("none",), min_layers=1, max_layers=1, max_heads=3
    )
)
@settings(max_examples=30)
def test_a_full_table_is_a_one_layer_head(drawn: tuple[Model, torch.Tensor]) -> None:
    model, tokens = drawn
    table = TopTokenTable(model.heads[0], tokens, model.config.d_vocab)
    found = trace_run(model, tokens, table.edits()).logits.log_softmax(-1)
    torch.testing.assert_close(found, model(tokens).log_softmax(-1), rtol=1e-8, atol=1e-8)


def test_table_and_json() -> None:
    found = ps.replace(ps.construct.induction(), "L1H0", PROBE.tokens, pattern="induction")
    assert found.to_dict()["description"] == "induction attention"
    assert set(schema(Replacement)["required"]) == set(found.to_dict())
    assert "recovered" in found.to_table().to_text()


def test_bad_input() -> None:
    model = ps.construct.induction()
    with pytest.raises(InputError, match="no description is given"):
        replace(model, "L1H0", PROBE.tokens)
    with pytest.raises(InputError, match="did you mean 'induction'"):
        replace(model, "L1H0", PROBE.tokens, pattern="inductive")
    with pytest.raises(InputError, match="keeps no tokens"):
        TopTokens(0)
    with pytest.raises(InputError, match="vocabulary of 27"):
        replace(model, "L1H0", PROBE.tokens, ov=TopTokens(28))


def test_a_head_that_writes_nothing_has_no_copying_part() -> None:
    config = ps.Config(n_layers=1, n_heads=1, d_model=8, d_head=4, d_vocab=10, n_ctx=8)
    silent = ps.random_model(config, seed=0).edited({"L0H0": "zero"})
    found = copying_projector(silent.head("L0H0"))
    assert (found.kept, found.eigenvalues, found.share) == (0, 4, 0.0)
    said = replace(silent, "L0H0", torch.arange(8)[None], ov=CopyingPart()).kept
    assert said == "copying part: 0 of 4 eigenvalues, 0.000 of their magnitude"
