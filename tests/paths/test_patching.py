"""Patching: on the hand-built induction model the patch finds what frozen paths do not."""

import pytest
import torch

import pathsum as ps
from pathsum.base import Site, schema
from pathsum.base.errors import HeadError, InputError, NotExactError, PathError
from pathsum.model import Trace
from pathsum.paths import CausalEffects, PatchEffect, causal_effects, patch_effect

EDGE = ("L0H0", "L1H0", "k")


def runs() -> tuple[Trace, Trace]:
    """`b` follows `a` in the first run; in the other one it follows something else."""
    model = ps.construct.induction()
    return model.trace("a b c d a"), model.trace("x b c d a")


def test_the_k_edge_kills_the_prediction_and_frozen_paths_do_not_see_it() -> None:
    trace, other = runs()
    token = trace.model.token_id("b")
    assert int(trace.logits[0, -1].argmax()) == token
    patched = trace.patch({EDGE: other})
    assert isinstance(patched, Trace)
    assert float(trace.logits[0, -1, token]) > 9
    assert abs(float(patched.logits[0, -1, token])) < 0.01
    # The head that is patched away has no credit in the frozen sum.
    frozen = trace.paths().toward(-1, token, versus="mean")
    assert abs(frozen.by_head["L0H0"]) < 0.01


def test_only_that_edge_does() -> None:
    trace, other = runs()
    for edge in (("L0H0", "L1H0", "q"), ("L0H0", "L1H0", "v"), ("L0H1", "L1H0", "k")):
        assert torch.allclose(trace.patch({edge: other}).logits, trace.logits, atol=1e-2)
    found = causal_effects(trace, other, token="b", versus="mean", into=["L1H0"])
    assert str(found.ranked()[0].edge) == "L0H0→L1H0.k"
    assert found["L0H0", "L1H0", "k"] == pytest.approx(10, abs=0.01)
    assert sum(abs(effect.effect.value) > 0.01 for effect in found.effects) == 1


def test_every_edge_of_a_model_is_measured() -> None:
    trace, other = runs()
    found = causal_effects(trace, other)
    assert len(found.effects) == 2 * 3 + 2 * 3 * 3 + 5
    strong = {str(effect.edge) for effect in found.effects if effect.effect.value > 1}
    assert strong == {"embed→L0H0.v", "L0H0→L1H0.k", "L1H0→logits"}
    assert found.value_other.value < 1 < found.value.value


def test_effects_over_a_batch_have_intervals() -> None:
    trace, other = runs()
    many = trace.model.trace(trace.tokens.expand(3, -1))
    found = causal_effects(many, other, token="b", into=["L1H0"])
    assert found["L0H0", "L1H0", "k"] == pytest.approx(10, abs=0.01)
    assert found.effects[0].effect.low <= found.effects[0].effect.high


def test_patches_add_to_patches() -> None:
    trace, other = runs()
    both = {EDGE: other, ("L1H0", "logits"): other}
    stepwise = trace.patch({EDGE: other}).patch({("L1H0", "logits"): other})
    torch.testing.assert_close(stepwise.logits, trace.patch(both).logits)


def test_effects_on_a_patched_run_keep_its_patches() -> None:
    trace, other = runs()
    patched = trace.patch({EDGE: other})
    found = causal_effects(patched, other, token="b", into=["L1H0"])
    assert abs(found.value.value) < 0.01
    assert all(abs(effect.effect.value) < 0.01 for effect in found.effects)
    many = trace.model.trace(other.tokens.expand(2, -1))
    again = causal_effects(patched, many, token="b", into=["L1H0"])
    assert abs(again.value.value) < 0.01


def test_a_patched_trace_refuses_what_is_no_longer_true() -> None:
    trace, other = runs()
    by_key = trace.patch({EDGE: other})
    assert by_key.paths().remainder() < 1e-4
    with pytest.raises(NotExactError, match="scores of L1H0"):
        by_key.scores("L1H0")
    with pytest.raises(NotExactError, match="scores of L1H0"):
        by_key.attention_scores(1)
    by_node = trace.patch({"L0H0": other})
    torch.testing.assert_close(by_node.written("L0H0"), other.written("L0H0"))
    with pytest.raises(NotExactError, match="not a sum over its paths"):
        by_node.paths()


def test_patch_effect_tables_and_json() -> None:
    trace, other = runs()
    found = patch_effect(trace, {EDGE: other}, token="b")
    assert found.predicted_before[0] == "b"
    assert found.patched == ("L0H0→L1H0.k",)
    assert found.effect.value == pytest.approx(10, abs=0.01)
    assert set(schema(PatchEffect)["required"]) == set(found.to_dict())
    effects = causal_effects(trace, other, into=["L1H0"])
    assert effects.to_dict()["effects"][0]["edge"] == "embed→L1H0.q"
    assert set(schema(CausalEffects)["required"]) == set(effects.to_dict())
    assert "L0H0→L1H0.k" in effects.to_table().to_text()


@pytest.mark.parametrize(
    ("name", "error", "says"),
    [
        (("L1H0", "L0H0", "k"), PathError, "data flows upwards"),
        (("L1H0", "L1H1", "k"), PathError, "data flows upwards"),
        (("L0H9", "L1H0", "k"), HeadError, "L0H9"),
        (("L0H0", "L1H0", "x"), InputError, "'q', 'k' and 'v'"),
        (("L0H0", "L1H0"), PathError, "three reads"),
        (("L0H0", "logits", "k"), PathError, "one read only"),
        (("L0H0", "mlp0"), PathError, "has no MLPs"),
        (("pos", "L1H0", "k"), PathError, "same in every run"),
        ("mlp0", PathError, "has no MLPs"),
        (3.5, PathError, "is not a site of a run"),
        (("L0H0",), PathError, "is not a site of a run"),
    ],
)
def test_names_that_mean_no_patch(name: object, error: type[Exception], says: str) -> None:
    trace, other = runs()
    with pytest.raises(error, match=says):
        trace.patch({name: other})


def test_runs_that_do_not_fit() -> None:
    trace, _ = runs()
    model = trace.model
    with pytest.raises(InputError, match="6 and 4 tokens"):
        trace.patch({EDGE: model.trace("x b c")})
    with pytest.raises(InputError, match="of another model"):
        trace.patch({EDGE: ps.construct.induction().trace("x b c d a")})
    two, three = (model.trace(trace.tokens.expand(n, -1)) for n in (2, 3))
    with pytest.raises(InputError, match="2 and 3 sequences"):
        two.patch({EDGE: three})
    with pytest.raises(InputError, match="nothing is patched"):
        patch_effect(trace, {})
    with pytest.raises(InputError, match="no effect of"):
        causal_effects(trace, trace, into=["L1H0"])["L0H0", "L0H1", "k"]


def test_an_edge_is_a_name_too() -> None:
    trace, other = runs()
    found = causal_effects(trace, other, into=["L1H0"]).ranked()[0].edge
    assert isinstance(found, Site)
    torch.testing.assert_close(
        trace.patch({found: other}).logits, trace.patch({EDGE: other}).logits
    )


@pytest.mark.parametrize(
    "edge",
    ["L0H0@3→L1H0@2.k", "L0H0@-1→L1H0@-2.v", "L0H0@1→L1H0@2.q", "L0H0@1→logits@2"],
)
def test_an_edge_between_positions_that_are_not_connected_is_an_error(edge: str) -> None:
    trace, other = runs()
    with pytest.raises(PathError, match="does not exist: keys and values are read"):
        trace.patch({edge: other})
    # Which of two positions comes first is not known if one counts from the end.
    assert trace.patch({"L0H0@2→L1H0@-1.k": other}).edits
