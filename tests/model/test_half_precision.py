"""Half precision is a way to store weights: every function computes from them in float32."""

import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import pathsum as ps
from pathsum.model import Config, Trace

HALF = [torch.float16, torch.bfloat16]
CONFIG = Config(2, 2, 24, 8, 17, 16, norm="rms", mlp="silu_gated", d_mlp=20)
TOKENS = torch.randint(17, (6, 14), generator=torch.Generator().manual_seed(3))
PAIR = [ps.Prompt(TOKENS[at].tolist(), corrupted=TOKENS[at + 1].tolist()) for at in (0, 2)]
NOT_HERE = {"from_hf", "from_transformer_lens", "report"}
"""Functions whose `model` is of another library, and one that writes the answers of the others."""


def trace(model: ps.Model) -> Trace:
    return model.trace(TOKENS[:1])


ANSWERS: dict[str, Callable[[ps.Model], Any]] = {
    "ablate": lambda m: ps.ablate(m, "L1H0", TOKENS),
    "attention": lambda m: ps.attention(trace(m), "L1H0"),
    "align_heads": lambda m: ps.align_heads(m, ps.random_model(CONFIG, seed=1)),
    "atlas": lambda m: ps.atlas(m, sequences=2),
    "bandwidth": ps.bandwidth,
    "bigram": lambda m: ps.bigram(m, TOKENS),
    "causal_effects": lambda m: ps.causal_effects(trace(m), m.trace(TOKENS[1:2]), token=3),
    "composition": ps.composition,
    "copying": ps.copying,
    "decompile": lambda m: ps.decompile(m, TOKENS, budget=40),
    "edge_curve": lambda m: ps.edge_curve(m, PAIR, token=3),
    "in_context_learning": lambda m: ps.in_context_learning(m, TOKENS, early=2, late=10),
    "induction": lambda m: ps.induction(m, sequences=2),
    "mean_circuit": lambda m: ps.mean_circuit(m, [[1, 2, 3], [4, 5, 6]], token=3),
    "mean_lens": lambda m: ps.mean_lens(m, TOKENS, positions=8),
    "neuron": lambda m: ps.neuron(m, "mlp1.n2", TOKENS),
    "neurons": lambda m: ps.neurons(m, "mlp1", TOKENS),
    "paper": lambda m: ps.paper(m, claims=["two-composition"]),
    "patch_sweep": lambda m: ps.patch_sweep(m, TOKENS[0], TOKENS[1], token=3),
    "replace": lambda m: ps.replace(m, "L1H0", TOKENS, pattern="previous"),
    "rule_agreement": lambda m: ps.rule_agreement(m, PAIR, token=3),
    "score": lambda m: ps.score(trace(m), 3, threshold=0.1),
    "skip_trigrams": lambda m: ps.skip_trigrams(m, "L0H1", 5),
    "term_importance": lambda m: ps.term_importance(m, TOKENS),
    "virtual_head": lambda m: ps.virtual_head(m, "L0H0", "L1H1").full_ov.dense(),
    "Model.__call__": lambda m: m(TOKENS),
    "Model.edited": lambda m: m.edited({"L0H1": "mean"})(TOKENS),
    "Model.generate": lambda m: m.generate([1, 2, 3], 5),
    "Model.head": lambda m: (m.head("L1H0").ov.dense(), m.head("L1H0").full_qk.eigenvalues()),
    "Trace.circuit": lambda m: trace(m).circuit(token=3),
    "Graph.faithfulness": lambda m: trace(m).circuit(token=3).faithfulness("zero", draws=2),
    "Trace.paths": lambda m: trace(m).paths().toward(token=3).top(k=4),
    "Trace.scores": lambda m: trace(m).scores("L1H1").total(),
    "Trace.patch": lambda m: trace(m).patch({"L0H1": m.trace(TOKENS[1:2])}).logits,
}


def numbers(answer: Any) -> Any:
    """An answer as plain numbers and words."""
    if isinstance(answer, torch.Tensor):
        assert answer.dtype in (torch.float32, torch.float64, torch.complex64, torch.complex128)
        return answer.tolist()
    if isinstance(answer, tuple):
        return [numbers(one) for one in answer]
    return answer.to_dict() if hasattr(answer, "to_dict") else repr(answer)


def same(found: Any, truth: Any) -> bool:
    if isinstance(found, dict):
        return found.keys() == truth.keys() and all(same(found[key], truth[key]) for key in found)
    if isinstance(found, list | tuple):
        return len(found) == len(truth) and all(map(same, found, truth))
    both_missing = isinstance(found, float) and math.isnan(found) and math.isnan(truth)
    return both_missing or found == truth


def in_float32(model: ps.Model, dtype: torch.dtype) -> ps.Model:
    """The float32 model made from weights that were rounded by hand."""
    rounded = {name: tensor.to(dtype).float() for name, tensor in model.weights.items()}
    return ps.Model(ps.Weights(model.config, type(model.weights.store)(rounded)), model.name)


def test_all_functions_that_take_a_model_are_tested() -> None:
    functions = {name for name in ps.__all__ if inspect.isfunction(getattr(ps, name))}
    takes = {
        name
        for name in functions
        if {"model", "left", "trace"} & set(inspect.signature(getattr(ps, name)).parameters)
    }
    assert takes - NOT_HERE <= ANSWERS.keys()


@pytest.mark.parametrize(
    "dtype", [pytest.param(torch.float16, marks=pytest.mark.slow), torch.bfloat16]
)
@pytest.mark.parametrize("name", ANSWERS)
def test_answers_equal_those_of_rounded_weights_in_float32(name: str, dtype: torch.dtype) -> None:
    model = ps.random_model(CONFIG, biases=True, gains=True)
    answer = ANSWERS[name]
    assert same(numbers(answer(model.to(dtype))), numbers(answer(in_float32(model, dtype))))


@pytest.mark.parametrize("dtype", HALF)
def test_trained_heads_copy_as_in_float32(dtype: torch.dtype) -> None:
    model = ps.load("two-layer")
    found, truth = (ps.copying(one, measures="eigenvalues") for one in (model.to(dtype), model))
    # A ratio of eigenvalues moves by about the condition number times the rounding of weights.
    for half, whole in zip(found.heads, truth.heads, strict=True):
        assert half.ratio == pytest.approx(whole.ratio, abs=0.01) and not half.note


def test_faithfulness_of_a_trained_model_in_half_precision() -> None:
    text = "Mr. and Mrs. Tillerman kept the lighthouse. Mr. Tiller"
    found = ps.load("two-layer").to(torch.float16).trace(text).circuit().faithfulness(draws=2)
    assert 0.5 < found.kept.value < 1.2


@pytest.mark.parametrize("dtype", HALF)
def test_files_keep_half_precision(dtype: torch.dtype, tmp_path: Path) -> None:
    half = ps.random_model(CONFIG).to(dtype)
    half.save(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {dtype}
    again = ps.load(tmp_path)
    assert torch.equal(again(TOKENS), half(TOKENS)) and half(TOKENS).dtype == torch.float32
    wide = half.to(torch.float64)
    wide.save(tmp_path)
    assert torch.equal(ps.load(tmp_path)(TOKENS), wide(TOKENS))
    edited = half.edited({"L0H1": "mean"})
    edited.save(tmp_path)
    assert torch.equal(ps.load(tmp_path)(TOKENS), edited(TOKENS))
