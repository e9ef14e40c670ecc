"""Soft caps: what weights say is exact before the cap, and the cap of the sum is the model's."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.identities.configs import configs
from torch import Tensor

import pathsum as ps
from pathsum.circuits import positional, source_table
from pathsum.circuits.bigram import DirectPath
from pathsum.circuits.qk_ov import effect, token_attention, token_ov, token_qk
from pathsum.circuits.token_basis import Token
from pathsum.circuits.trigram_bugs import Bug, Cause, bug_cost
from pathsum.circuits.trigram_text import Pattern
from pathsum.model import HeadId, Model, Weights
from pathsum.model.transformer import soft_cap
from pathsum.paths import TopTokens

CAPS = st.fixed_dictionaries({"score_cap": st.floats(0.5, 5), "logit_cap": st.floats(0.5, 5)})
SMALL = {"n_layers": 2, "n_heads": 2, "d_model": 8, "d_head": 4, "d_vocab": 12, "n_ctx": 8}
TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6], [2, 7, 1, 8, 2, 8, 1, 8]])


def capped_model(seed: int = 0, **changes: Any) -> Model:
    config = ps.Config(**{**SMALL, "score_cap": 1.5, "logit_cap": 2.0, **changes})
    return ps.random_model(config, seed=seed, dtype=torch.float64, biases=True, gains=True)


def without_caps(model: Model) -> Model:
    plain = model.config.replace(score_cap=None, logit_cap=None)
    return Model(Weights(plain, model.weights.store), name=model.name)


@st.composite
def one_layer(draw: st.DrawFn, positions: tuple[str, ...]) -> Model:
    config = draw(configs(min_layers=1, max_layers=1, max_heads=3, positions=positions))
    return ps.random_model(
        config.replace(**draw(CAPS)),
        seed=draw(st.integers(0, 99)),
        dtype=torch.float64,
        biases=True,
        gains=True,
    )


@settings(max_examples=25)
@given(one_layer(("rotary", "none")))
def test_qk_is_the_score_before_the_cap(model: Model) -> None:
    """Two sources at one place under one query: their scores differ as QK says."""
    a, b, query = 0, 1, model.config.d_vocab - 1
    trace = model.trace(torch.tensor([[a, query], [b, query]]))
    scores = trace.attention_scores(0)
    offset = 1 if model.config.positions == "rotary" else None
    row = token_qk(model, "L0H0", offset=offset).dense()[query]
    size = float(row.abs().max() + scores.abs().max())
    difference = (row[a] - row[b]) - (scores[0, 0, 1, 0] - scores[1, 0, 1, 0])
    assert abs(float(difference)) < 1e-12 * (1 + size)
    bent = soft_cap(scores, model.config.score_cap)
    ahead = torch.ones(2, 2).triu(1).bool() & model.config.causal
    torch.testing.assert_close(bent.masked_fill(ahead, -torch.inf).softmax(-1), trace.patterns[0])


@settings(max_examples=25)
@given(one_layer(("qk", "rotary", "none")))
def test_ov_is_a_head_s_part_of_the_logits_before_the_cap(model: Model) -> None:
    tokens = TOKENS[:, :6] % model.config.d_vocab
    trace = model.trace(tokens)
    paths = trace.paths()
    part = paths.contribution(ps.Path("embed", ["L0H0"]))
    rows = token_ov(model, "L0H0").dense()[tokens]
    expected = trace.patterns[0][:, 0] @ rows * trace.scales.final[..., None]
    torch.testing.assert_close(part - part.mean(-1, keepdim=True), expected)
    capped = soft_cap(paths.total(), model.config.logit_cap)
    torch.testing.assert_close(capped, trace.logits)


@settings(max_examples=25)
@given(configs(max_layers=0, positions=("qk", "rotary", "none")), CAPS, st.integers(0, 99))
def test_without_layers_the_direct_path_is_the_model(
    config: ps.Config, caps: dict[str, float], seed: int
) -> None:
    model = ps.random_model(config.replace(**caps), seed, dtype=torch.float64, biases=True)
    every = torch.arange(config.d_vocab)
    torch.testing.assert_close(DirectPath(model).rows(every), model(every[:, None])[:, 0])


@pytest.mark.parametrize("extra", [{}, {"windows": (3, None)}, {"sinks": True}])
@pytest.mark.parametrize("positions", ["qk", "rotary"])
def test_attention_by_position_is_that_of_a_model_that_sees_only_positions(
    positions: str, extra: dict[str, Any]
) -> None:
    model = capped_model(positions=positions, **extra)
    flat = dict(model.weights.items()) | {"W_E": torch.zeros(12, 8, dtype=torch.float64)}
    blank = ps.from_tensors(model.config, {"W_E": flat["W_E"], **_stacked(flat)})
    profile = positional(blank, "L0H1", window=4).heads[0]
    assert profile.attention is not None
    pattern = blank.trace([0] * 8).patterns[0][0, 1]
    rows = torch.stack([pattern[i, i - torch.arange(4)] for i in range(3, 8)])
    expected = rows[-1] if positions == "rotary" else rows.mean(0)
    torch.testing.assert_close(profile.attention, expected)
    assert "scores before the cap (±1.5)" in profile.note


def _stacked(flat: dict[str, Tensor]) -> dict[str, Tensor]:
    names = {name.split(".")[-1] for name in flat if name.startswith("layers.")}
    both = {name: torch.stack([flat[f"layers.{i}.{name}"] for i in range(2)]) for name in names}
    return both | {name: flat[name] for name in flat if "." not in name and name != "W_E"}


def test_weights_alone_say_the_same_with_and_without_caps() -> None:
    model = capped_model(positions="rotary")
    plain = without_caps(model)
    for kind in ("q", "k", "v"):
        here, there = (ps.composition(each).scores(kind).score for each in (model, plain))
        torch.testing.assert_close(here, there, equal_nan=True)
    for mine, other in zip(ps.copying(model).heads, ps.copying(plain).heads, strict=True):
        assert (mine.ratio, mine.p, mine.top_1) == (other.ratio, other.p, other.top_1)
    assert ps.align_heads(model, plain, draws=1).score == pytest.approx(1)
    mine, other = ps.skip_trigrams(model, k=5), ps.skip_trigrams(plain, k=5)
    assert [str(each) for each in mine] == [str(each) for each in other]


def test_every_result_says_that_it_is_before_the_cap() -> None:
    model = capped_model(positions="rotary")
    scores, logits = "scores before the cap (±1.5)", "logits before the cap (±2)"
    assert scores in token_attention(model, "L0H0", 3).note
    assert logits in effect(model, "L0H0", 3).note
    assert logits in ps.copying(model).note and logits in ps.copying(model).heads[0].note
    assert any(scores in note for note in ps.composition(model).notes)
    for found in (ps.skip_trigrams(model, k=2), source_table(model, 3)):
        assert scores in found.note and logits in found.note
    found = ps.atlas(model, sequences=2, draws=99)
    assert scores in found.note and logits in found.note
    assert "capped at ±2" in ps.bigram(model, k=2).note
    for note in (
        token_attention(without_caps(model), "L0H0", 3).note,
        ps.atlas(without_caps(model), sequences=2, draws=99).note,
    ):
        assert "before the cap" not in note


def test_induction_is_verified_through_caps() -> None:
    plain = ps.construct.induction()
    weights = Weights(plain.config.replace(score_cap=200.0, logit_cap=60.0), plain.weights.store)
    model = Model(weights, name="capped", tokenizer=plain.tokenizer)
    few = {"sequences": 4, "draws": 99}
    found = ps.induction(model, **few)
    assert [(str(one.head), one.mechanism) for one in found.heads] == [("L1H0", "K-composition")]
    assert ps.atlas(model, **few)["L1H0"].kind == "induction"


def test_a_whole_table_in_place_of_a_head_changes_nothing() -> None:
    model = capped_model(n_layers=1, norm="rms")
    found = ps.replace(model, "L0H1", TOKENS, ov=TopTokens(12))
    assert found.loss_replaced.value == pytest.approx(found.loss.value, abs=1e-12)
    assert found.loss_ablated.value != pytest.approx(found.loss.value, abs=1e-6)


def test_a_bug_is_removed_before_the_cap() -> None:
    model = capped_model(n_layers=1)
    trace = model.trace(TOKENS)
    source, destination, out = (Token(each, str(each)) for each in (1, 8, 4))
    cause = Cause(source, destination, out)
    bug = Bug(
        HeadId(0, 0), source, destination, out, 1.0, 1.0, 1.0, Pattern.OTHER, (cause, cause), "list"
    )
    seen = (TOKENS == 1)[:, None] & (TOKENS == 8)[..., None]
    pattern = trace.patterns[0][:, 0].masked_fill(~seen, 0).sum(-1)
    logits = trace.uncapped_logits.clone()
    logits[..., 4] -= pattern * token_ov(model, "L0H0").dense()[1, 4]
    cleaned = soft_cap(logits, 2.0)[:, :-1].log_softmax(-1)
    before = trace.logits[:, :-1].log_softmax(-1)
    rise = (cleaned - before).gather(-1, TOKENS[:, 1:, None]).mean()
    assert bug_cost(model, [bug], [TOKENS]).cost == pytest.approx(float(rise), abs=1e-12)
