"""Interventions as a tool: sites with positions, metrics, sweeps, hooks and gradients."""

import pytest
import torch
from torch import Tensor

import pathsum as ps
from pathsum.base import schema
from pathsum.base.errors import HeadError, InputError, NotExactError, PathError
from pathsum.model import Trace
from pathsum.paths import PatchSweep, causal_effects, patch_effect, patch_sweep

CLEAN, CORRUPTED = "a b c d a", "x b c d a"


def runs() -> tuple[Trace, Trace]:
    model = ps.construct.induction()
    return model.trace(CLEAN), model.trace(CORRUPTED)


def test_a_sweep_finds_the_two_heads_where_they_act() -> None:
    model = ps.construct.induction()
    for into in ("corrupted", "clean"):
        sweep = patch_sweep(model, CLEAN, CORRUPTED, token="b", versus="mean", into=into)
        assert {site for site, _ in sweep.top(2)} == {"L0H0@2", "L1H0@5"}
        assert float(sweep.share[0, 2]) == pytest.approx(1, abs=0.01)
        assert sweep["L0H0@2"].value == pytest.approx(10 if into == "corrupted" else -10, abs=0.01)
        assert sweep["L1H0@-1"].value == float(sweep.effect[2, 5])
        assert int((sweep.effect.abs() > 0.01).sum()) == 2


@pytest.mark.parametrize("reference", ["zero", "mean"])
def test_a_sweep_of_ablations_needs_no_corrupted_text(reference: str) -> None:
    model = ps.construct.induction()
    trace = model.trace(CLEAN)
    sweep = patch_sweep(model, CLEAN, reference=reference, token="b", versus="mean")
    assert {site for site, _ in sweep.top(2)} == {"L0H0@2", "L1H0@5"}
    for site in ("L0H0@2", "L1H0@5", "L0H0@4", "L0H1@1"):
        alone = patch_effect(trace, {site: reference}, -1, "b", "mean")
        assert sweep[site].value == pytest.approx(-alone.effect.value, abs=1e-4)
    assert float(sweep.share[0, 2]) == pytest.approx(
        -sweep["L0H0@2"].value / sweep.clean.value, abs=1e-5
    )
    assert sweep.reference == reference
    assert sweep.corrupted is None
    words = {"zero": "zero", "mean": "its mean"}[reference]
    assert f"replaced one at a time by {words}" in str(sweep)


def test_a_sweep_takes_a_mean_over_the_whole_text() -> None:
    """Also where the prediction is made in the middle of it."""
    model = ps.construct.induction()
    trace = model.trace("a b c a d d d")
    sweep = patch_sweep(model, "a b c a d d d", reference="mean", position=4, token="b")
    assert sweep.effect.shape == (4, 5)
    alone = patch_effect(trace, {"L1H0@4": "mean"}, 4, "b")
    assert sweep["L1H0@4"].value == pytest.approx(-alone.effect.value, abs=1e-4)


def test_a_sweep_needs_one_of_a_text_and_an_ablation() -> None:
    model = ps.construct.induction()
    for arguments in ({}, {"corrupted": CORRUPTED, "reference": "zero"}):
        with pytest.raises(InputError, match="give one of the two"):
            patch_sweep(model, CLEAN, **arguments)
    with pytest.raises(InputError, match="reference is 'men'"):
        patch_sweep(model, CLEAN, reference="men")
    with pytest.raises(InputError, match="into says which of two runs"):
        patch_sweep(model, CLEAN, reference="zero", into="corrupted")


def test_a_sweep_as_table_and_json() -> None:
    sweep = patch_sweep(ps.construct.induction(), CLEAN, CORRUPTED, nodes=["embed", "L0H0"])
    text = sweep.to_table().to_text(140)
    assert "·█····" in text  # the token that differs
    assert "··█···" in text
    assert set(schema(PatchSweep)["required"]) == set(sweep.to_dict())
    assert sweep.to_dict()["nodes"] == ["embed", "L0H0"]


def test_a_sweep_over_pairs_has_standard_errors() -> None:
    model = ps.construct.induction()
    sweep = patch_sweep(
        model, ["a b c d a", "b c d a b"], ["x b c d a", "x c d a b"], token=["b", "c"]
    )
    assert sweep.sequences == 2
    assert sweep["L0H0@2"].low is not None
    assert sweep["L0H0@2"].value == pytest.approx(10, abs=0.01)


def test_a_metric_of_ones_own() -> None:
    model = ps.construct.induction()
    trace, other = model.trace(CLEAN), model.trace(CORRUPTED)
    b, c = model.token_id("b"), model.token_id("c")

    def difference(logits: Tensor) -> Tensor:
        return logits[:, -1, b] - logits[:, -1, c]

    by_target = patch_sweep(model, CLEAN, CORRUPTED, token="b", versus="c")
    for position in (None, -1):
        by_metric = patch_sweep(model, CLEAN, CORRUPTED, metric=difference, position=position)
        torch.testing.assert_close(by_metric.effect, by_target.effect)
        assert by_metric.metric == "the metric difference"
    effects = causal_effects(trace, other, metric=difference)
    named = causal_effects(trace, other, token="b", versus="c")
    for mine, theirs in zip(effects.effects, named.effects, strict=True):
        assert mine.effect.value == pytest.approx(theirs.effect.value, abs=1e-5)
    found = patch_effect(trace, {"L0H0@2": "zero"}, metric=difference)
    assert found.effect.value == pytest.approx(10, abs=0.01)
    assert found.other is None
    assert found.patched == ("L0H0@2 = zero",)


@pytest.mark.parametrize(
    ("metric", "says"),
    [
        (lambda logits: logits[:, -1].mean(), r"returned shape \[\]"),
        (lambda logits: logits[:, -1], "one number for each of the 2 sequences"),
        (lambda logits: logits[:, -1, 0] * torch.nan, "NaN or infinite"),
        (lambda _: 3.0, "the metric returned float"),
        (lambda logits: logits[:, -1].argmax(-1), "floating-point"),
        ("logit", "give a function"),
    ],
)
def test_metrics_that_are_no_numbers(metric: object, says: str) -> None:
    model = ps.construct.induction()
    with pytest.raises(InputError, match=says):
        patch_sweep(model, [CLEAN] * 2, [CORRUPTED] * 2, metric=metric)  # pyright: ignore[reportArgumentType]


def test_what_a_sweep_refuses() -> None:
    model = ps.construct.induction()
    with pytest.raises(InputError, match="6 and 5 tokens"):
        patch_sweep(model, CLEAN, "x b c d")
    with pytest.raises(InputError, match="into is 'both'"):
        patch_sweep(model, CLEAN, CORRUPTED, into="both")
    with pytest.raises(InputError, match="is not a node"):
        patch_sweep(model, CLEAN, CORRUPTED, nodes=["L0H0@3"])
    with pytest.raises(HeadError, match="L7H0"):
        patch_sweep(model, CLEAN, CORRUPTED, nodes=["L7H0"])
    with pytest.raises(InputError, match="give one of the two"):
        patch_sweep(model, CLEAN, CORRUPTED, metric=lambda logits: logits[:, 0, 0], token="b")
    sweep = patch_sweep(model, CLEAN, CORRUPTED)
    with pytest.raises(InputError, match="was not measured"):
        _ = sweep["L0H0"]
    with pytest.raises(InputError, match="out of range"):
        _ = sweep["L0H0@6"]
    assert float(patch_sweep(model, CLEAN, CLEAN).effect.abs().max()) == 0


def test_patches_at_positions() -> None:
    trace, other = runs()
    everywhere = trace.patch({"L0H0": other})
    by_position = trace.patch({f"L0H0@{at}": other for at in range(6)})
    torch.testing.assert_close(by_position.logits, everywhere.logits)
    # L1H0 attends to position 2 from the end, by what L0H0 wrote there.
    b = trace.model.token_id("b")
    for site, kept in (
        ("L0H0@2→L1H0@5.k", False),
        ("L0H0@2→L1H0@-1.k", False),
        ("L0H0@3→L1H0@5.k", True),
        ("L0H0@2→L1H0@4.k", True),
        ("L0H0@2→L1H0.k", False),
        ("L0H0→L1H0@5.k", False),
    ):
        assert (float(trace.patch({site: other}).logits[0, -1, b]) > 9) is kept, site
    both = trace.patch({"L0H0@2→L1H0@4.k": other, "L0H0@2→L1H0@5.k": "zero"})
    assert abs(float(both.logits[0, -1, b])) < 0.01
    with pytest.raises(InputError, match="position 6 is out of range"):
        trace.patch({"L0H0@6": other})
    with pytest.raises(InputError, match="cannot be taken from a int"):
        trace.patch({"L0H0": 3})
    with pytest.raises(InputError, match="choose 'zero' or 'mean'"):
        trace.patch({"L0H0": "resample"})
    with pytest.raises(InputError, match="broadcasts to"):
        trace.patch({"L0H0": torch.zeros(5)})


def test_messages_at_several_destinations_do_not_mix() -> None:
    """Two edges into one head at different destinations act each at its own."""
    model = ps.random_model(
        ps.Config(n_layers=2, n_heads=2, d_model=12, d_head=6, d_vocab=9, n_ctx=8, norm="rms"),
        seed=1,
    ).to(torch.float64)
    tokens = torch.randint(9, (2, 6), generator=torch.Generator().manual_seed(0))
    trace, other = model.trace(tokens), model.trace(tokens.flip(1))
    first, second = ("L0H0→L1H0@3.k", "L0H1→L1H0@5.v")
    both = trace.patch({first: other, second: other})
    for site, at in ((first, 3), (second, 5)):
        alone = trace.patch({site: other})
        torch.testing.assert_close(both.z(1)[:, 0, at], alone.z(1)[:, 0, at])
        assert not torch.allclose(alone.z(1)[:, 0, at], trace.z(1)[:, 0, at])


def test_hooks_see_and_replace_values() -> None:
    trace, _ = runs()
    model, seen = trace.model, dict[str, tuple[int, ...]]()

    def look(name: str) -> "Trace":
        return model.trace(CLEAN, hooks={name: lambda x: seen.update({name: tuple(x.shape)})})

    for name in ("L1H0.pattern", "L0H1.z", "L1H0.k", "residual2", "embed", "logits"):
        torch.testing.assert_close(look(name).logits, trace.logits)
    d, k = model.config.d_model, model.config.d_head
    assert seen["L1H0.pattern"] == (1, 6, 6)
    assert seen["L0H1.z"] == (1, 6, k)
    assert seen["L1H0.k"] == seen["residual2"] == seen["embed"] == (1, 6, d)
    assert look("L1H0.z").paths().remainder() < 1e-5  # a hook that returns None edits nothing
    uniform = torch.ones(6, 6).tril() / torch.arange(1, 7)[:, None]
    hooked = model.trace(CLEAN, hooks={"L1H0.pattern": uniform.expand_as})
    torch.testing.assert_close(hooked.pattern("L1H0")[0], uniform)
    assert hooked.paths().remainder() < 1e-5
    with pytest.raises(NotExactError, match="scores of L1H0"):
        hooked.scores("L1H0")
    zeroed = model.trace(CLEAN, hooks={"L1H0.z": torch.zeros_like})
    torch.testing.assert_close(zeroed.logits, trace.patch({"L1H0": "zero"}).logits)
    with pytest.raises(NotExactError, match="not a sum over its paths"):
        zeroed.paths()


def test_hooks_that_are_wrong() -> None:
    model = ps.construct.induction()
    with pytest.raises(InputError, match=r"hook on L0H0.z returned \[2\]"):
        model.trace(CLEAN, hooks={"L0H0.z": lambda _: torch.zeros(2)})
    with pytest.raises(PathError, match="is not a"):
        model.trace(CLEAN, hooks={"L0H0.foo": lambda _: None})
    with pytest.raises(HeadError, match="L5H0"):
        model.trace(CLEAN, hooks={"L5H0.z": lambda _: None})
    with pytest.raises(PathError, match="residual2"):
        model.trace(CLEAN, hooks={"residual3": lambda _: None})
    with pytest.raises(PathError, match="no MLPs"):
        model.trace(CLEAN, hooks={"mlp0": lambda _: None})
    with pytest.raises(InputError, match="give a mapping from a string to a function"):
        model.trace(CLEAN, hooks={"L0H0.z": "zero"})  # pyright: ignore[reportArgumentType]


def test_gradients_only_where_asked() -> None:
    model = ps.construct.induction()
    assert not model.trace(CLEAN).logits.requires_grad
    trace = model.trace(CLEAN, requires_grad=True)
    (slope,) = torch.autograd.grad(trace.logits[0, -1, 3], [trace.z(1)])
    head = trace.model.head("L1H0")
    expected = head.W_O @ model.weights.W_U[:, 3]
    torch.testing.assert_close(slope[0, 0, -1], expected)
    assert float(slope[0, :, :-1].abs().max()) == 0
