"""References: the text that means are taken over, and the positions that count."""

from dataclasses import replace

import pytest
import torch

import pathsum as ps
from pathsum.base.errors import InputError
from pathsum.base.site import Site
from pathsum.model import Config
from pathsum.model.reference import (
    LENGTH,
    SEQUENCES,
    mean_values,
    mean_writes,
    reference_text,
)
from pathsum.paths.faithfulness import LEAST_RANGE, check_range

CONFIG = Config(2, 2, 8, 4, 17, 12)
TOKENS = torch.randint(17, (3, 12), generator=torch.Generator().manual_seed(1))


def test_a_text_that_is_given_comes_first() -> None:
    model = ps.load("two-layer")
    over = reference_text(model, ["one two three", "four"])
    count = sum(len(model.encode(text)) - 1 for text in ("one two three", "four"))
    assert str(over) == f"mean over {count} tokens of the given text"


def test_held_out_text_is_the_default() -> None:
    model = ps.load("two-layer")
    assert model.held_out is not None
    over = reference_text(model, fallback=[torch.tensor([[1, 2]])])
    assert torch.equal(over.batches[0], model.held_out[:SEQUENCES, :LENGTH])
    assert str(over) == f"mean over {over.batches[0][:, 1:].numel():,} tokens of held-out text"


def test_a_model_that_reads_english_has_a_neutral_text() -> None:
    model = replace(ps.load("two-layer"), held_out=None)
    (tokens,) = reference_text(model).batches
    assert tokens.shape[1] == LENGTH and tokens.shape[0] >= 4
    assert (tokens[:, 0] == model.config.start_token).all()
    assert model.tokenizer is not None
    assert model.tokenizer.decode(tokens[0, 1:].tolist()).startswith("The ferry leaves the harbor")
    assert "of a neutral text" in repr(model.edited({"L0H1": "mean"}))


def test_otherwise_the_tokens_that_are_measured_or_random_ones() -> None:
    for model in (ps.random_model(CONFIG), ps.construct.induction()):
        assert reference_text(model, fallback=[TOKENS]).name == "of the text itself"
        assert reference_text(model).name == "drawn at random"


def test_the_first_position_is_left_out_everywhere() -> None:
    model = ps.random_model(CONFIG.replace(mlp="gelu", d_mlp=9), dtype=torch.float64)
    trace = model.trace(TOKENS)
    sites = {name: Site.parse(name) for name in ("L0H1", "mlp1", "embed")}
    truth = {
        "L0H1": trace.z(0)[:, 1, 1:].mean((0, 1)),
        "mlp1": trace.mlp_outputs[1][:, 1:].mean((0, 1)),
        "embed": model.weights.W_E[TOKENS[:, 1:]].mean((0, 1)),
    }
    means = mean_values(model, [TOKENS[:1], TOKENS[1:]], sites.values())
    writes = mean_writes(model, [TOKENS[:1], TOKENS[1:]])
    for name, mean in truth.items():
        torch.testing.assert_close(means[sites[name]], mean)
    torch.testing.assert_close(writes.z[0][0, 1, 0], truth["L0H1"])
    torch.testing.assert_close(writes.mlp_outputs[1][0, 0], truth["mlp1"])
    patched = trace.patch({"mlp1": "mean"})
    torch.testing.assert_close(patched.mlp_outputs[1], truth["mlp1"].expand(3, 12, -1))
    edited = model.edited({"mlp1": "mean"}, text=TOKENS)
    torch.testing.assert_close(edited(TOKENS), patched.logits)


def test_one_rule_for_all_interventions() -> None:
    """Ablation, edited models, patches, sweeps and circuits take the same mean."""
    model = ps.load("two-layer")
    text = "def f(self):\n    return self"
    ablated = ps.ablate(model, "L0H1", text, reference="mean").loss_without.value
    edited = ps.ablate(model.edited({"L0H1": "mean"}), "L1H0", text).loss.value
    assert edited == pytest.approx(ablated, abs=1e-5)
    trace = model.trace(text)
    patched = trace.patch({"L0H1": "mean"})
    torch.testing.assert_close(patched.logits, model.edited({"L0H1": "mean"}).trace(text).logits)
    swept = ps.patch_sweep(model, text, reference="mean", nodes=["L0H1"], token="(")
    alone = trace.patch({"L0H1@2": "mean"})
    effect = float((alone.logits - trace.logits)[0, -1, model.token_id("(")])
    assert swept["L0H1@2"].value == pytest.approx(effect, abs=1e-4)
    found = trace.circuit(effects=False).faithfulness(baselines=(), sizes=[3])
    assert found.reference == f"the {reference_text(model)}"


def test_a_mean_needs_a_second_position() -> None:
    model = ps.random_model(CONFIG)
    with pytest.raises(InputError, match="no sequence has more than one token; give a longer text"):
        model.trace([[3]]).patch({"L0H0": "mean"})
    with pytest.raises(InputError, match="give at least two tokens per sequence"):
        model.edited({"L0H0": "mean"}, text=[[3]])


def test_a_reference_that_predicts_as_much_leaves_nothing_to_keep() -> None:
    model = ps.construct.induction()
    circuit = model.trace("a b c d a").circuit(token="b")
    with pytest.raises(InputError, match=r"\+9.63 and the reference \(another prompt\) \+9.63"):
        circuit.faithfulness(model.trace("a b c d a"))
    # At a fifth of the prediction, and above it.
    check_range(10.0, 10.0 * (1 - 1.01 * LEAST_RANGE), "zero")
    check_range(-1.0, 3.0, "zero")
    for full, empty in ((10.0, 8.01), (8.01, 10.0), (0.0, 0.0), (-10.0, -9.0)):
        with pytest.raises(InputError, match="below 20% of the prediction"):
            check_range(full, empty, "zero")
