"""The model and the trace as a user meets them: text, generation, stacked weights, named values."""

import copy
import dataclasses
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import pathsum as ps
from pathsum.base.errors import (
    InputError,
    NotExactError,
    PathsumError,
    TokenError,
    WeightsError,
)

CONFIG = ps.Config(n_layers=2, n_heads=4, d_model=16, d_head=4, d_vocab=30, n_ctx=12)
VARIANTS = [
    CONFIG,
    CONFIG.replace(norm="rms", mlp="silu_gated", d_mlp=12, positions="rotary"),
    CONFIG.replace(norm="layer", mlp="gelu", d_mlp=12, positions="residual"),
    CONFIG.replace(norm="layer", mlp="gelu", d_mlp=12, block="parallel"),
]


def test_text_where_tokens_go() -> None:
    model = ps.construct.induction()
    ids = model.encode("a b c a")
    expected = model(torch.tensor(ids))
    assert expected.shape == (len(ids), model.config.d_vocab)
    for given in ("a b c a", ids):
        assert torch.equal(model(given), expected)
    assert torch.equal(model(["a b c a", "b c a b"])[0], expected)
    with pytest.raises(TokenError, match="not one tensor; pass them to model.trace"):
        model(["a b c a", "a"])


def test_generation_is_greedy_by_default() -> None:
    model = ps.construct.induction()
    assert model.generate("a b c a", 2) == "a b c a b c"
    assert model.generate("a b c a", 0) == "a b c a"
    assert model.generate(model.encode("a b c a"), 1) == "a b c a b"


def test_generation_at_a_temperature_follows_the_seed() -> None:
    model = ps.load("two-layer")
    first, again, other = (
        model.generate("def f(", 12, temperature=1.5, seed=seed) for seed in (0, 0, 1)
    )
    assert first == again != other
    assert first.startswith("def f(")
    # So little is close to 0, which is the most likely token.
    assert model.generate("def f(", 3, temperature=1e-320) == model.generate("def f(", 3)
    with pytest.raises(InputError, match="temperature=-1.0 is negative"):
        model.generate("def f(", 1, temperature=-1.0)
    with pytest.raises(InputError, match="n=-1 tokens"):
        model.generate("def f(", -1)


def test_generation_up_to_the_context_and_without_a_tokenizer() -> None:
    model = ps.random_model(CONFIG.replace(start_token=0))
    fits = model.config.n_ctx - 3
    text = model.generate([0, 3, 4], fits)
    assert text.split()[:3] == ["<0>", "<3>", "<4>"]
    assert len(text.split()) == model.config.n_ctx
    for n in (fits + 1, 10**9):
        with pytest.raises(InputError, match=f"after 3 exceed the context of .*; use n={fits} at"):
            model.generate([0, 3, 4], n)
    with pytest.raises(InputError, match="n=1 tokens after .* shorten the text"):
        model.generate([0] * model.config.n_ctx, 1)


@pytest.mark.parametrize("config", VARIANTS)
def test_weights_are_stacked(config: ps.Config) -> None:
    model = ps.random_model(config)
    assert model.W_Q.shape == (2, 4, 16, 4)
    assert model.W_O.shape == (2, 4, 4, 16)
    layer = model.weights.attention[1]
    for name in ("W_Q", "W_K", "W_V", "W_O"):
        assert torch.equal(getattr(model, name)[1], getattr(layer, name))
    empty = ps.random_model(config.replace(n_layers=0))
    assert empty.W_V.shape == (0, 4, 16, 4)
    assert empty.W_O.shape == (0, 4, 4, 16)


@pytest.mark.parametrize("config", VARIANTS)
def test_a_named_value_is_the_one_that_its_hook_sees(config: ps.Config) -> None:
    model = ps.random_model(config)
    tokens = torch.randint(30, (2, 7), generator=torch.manual_seed(0))
    names = ["L1H2.pattern", "L1H2.z", "L1H2.q", "L1H2.v", "embed", "logits"]
    names += [] if config.mlp == "none" else ["mlp1"]
    seen: dict[str, Tensor] = {}
    trace = model.trace(tokens, hooks={name: _keep_in(seen, name) for name in names})
    trace = model.trace(tokens)
    for name in names:
        torch.testing.assert_close(trace[name], seen[name])
    assert torch.equal(trace["residual1"], trace.streams[1])
    assert torch.equal(trace["L0H1@-1"], trace.written("L0H1")[:, -1])
    if config.mlp != "none":
        layer = model.weights.layers[1]
        read = trace["mlp1.in"]
        assert read.shape == trace["residual1"].shape
        if config.block == "serial":
            heads = sum(trace[f"L1H{head}"] for head in range(4))
            bias = 0 if layer.b_O is None else layer.b_O
            torch.testing.assert_close(read, trace["residual1"] + heads + bias)
        else:
            assert torch.equal(read, trace["residual1"])


def _keep_in(seen: dict[str, Tensor], name: str):
    def keep(value: Tensor) -> None:
        seen[name] = value.clone()

    return keep


def test_names_that_are_not_values() -> None:
    trace = ps.construct.induction().trace("a b c a")
    with pytest.raises(InputError, match="L0H0→L1H0.k is an edge.*use 'L0H0' for the output"):
        trace["L0H0>L1H0.k"]
    for wrong in ("nonsense", "L9H0.pattern", "L1H0@99", "mlp0", "residual7"):
        with pytest.raises(PathsumError):
            trace[wrong]
    with pytest.raises(NotExactError, match=r"changed the read L1H0\.k"):
        trace.patch({"L0H0": "zero"})["L1H0.k"]


def test_a_head_by_two_numbers() -> None:
    trace = ps.construct.induction().trace("a b c a")
    assert torch.equal(trace.pattern(1, 0), trace.pattern("L1H0"))
    one: Any = np.int64(1)
    assert torch.equal(trace.pattern(one, one - 1), trace.pattern("L1H0"))
    assert (
        ps.construct.induction().trace("a b", keep=ps.Keep(patterns=[one])).pattern(1, 0).ndim == 3
    )


def test_token_texts_without_padding() -> None:
    trace = ps.construct.induction().trace(["a b c a", "a b"])
    assert [len(row) for row in trace.token_texts] == trace.lengths.tolist()
    assert trace.token_texts[1][-2:] == ("a", "b")


def test_one_line_reprs() -> None:
    model = ps.load("two-layer")
    trace = model.trace("def f(self):\n" * 30)
    objects = (trace, model, model.head("L1H0"), model.head("L1H0").ov, trace.paths())
    for value in (*objects, trace.patch({"L0H0": "zero"})):
        assert "\n" not in repr(value)
        assert 15 < len(repr(value)) < 200
    assert "'two-layer'" in repr(trace)


def test_bytes_are_not_ids() -> None:
    model = ps.construct.induction(["x", "y"])
    with pytest.raises(ps.PathsumError, match="b'abc' is bytes; decode it to text, or give token"):
        model.trace(b"abc")
    with pytest.raises(ps.PathsumError, match="is bytes; decode it"):
        model.trace(memoryview(b"\x01\x02"))
    with pytest.raises(ps.PathsumError, match="neither text nor token ids"):
        model.trace({"x": 1})  # pyright: ignore[reportArgumentType]
    with pytest.raises(ps.PathsumError, match=r"an iterable \(each item an object\)"):
        model.trace(None)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ps.PathsumError, match="is not a word") as error:
        model.trace("z" * 100_000)
    assert len(str(error.value)) < 300


@pytest.mark.parametrize("twice", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])  # noqa: S301
def test_models_and_traces_are_copied_and_pickled(
    twice: Callable[[Any], Any], tmp_path: Path
) -> None:
    made = ps.construct.induction(["x", "y", "z"])
    made.save(tmp_path)
    for model in (made, ps.load(tmp_path)):
        model.trace("x y x")  # which makes the layers and their lock
        again = twice(model)
        assert torch.equal(again("x y x"), model("x y x")) and again.name == model.name
        trace = twice(model.trace("x y x"))
        assert torch.equal(trace.patterns[1], model.trace("x y x").patterns[1])
        assert trace.paths().remainder() < 1e-4


def test_names_that_are_not_text_are_shown() -> None:
    model = dataclasses.replace(ps.construct.induction(["x"]), name=os.fsdecode(b"caf\xe9"))
    assert model.name == "caf\ufffd"


def test_ids_from_numpy_and_weights_of_whole_numbers() -> None:
    model = ps.construct.induction(["x", "y", "z"])
    ids = [1, 2, 1]
    for given in (np.array(ids), np.array([ids], dtype=np.uint16)):
        assert model.trace(given).tokens.tolist() == [ids]
    for wrong in (torch.int32, torch.float8_e4m3fn):
        with pytest.raises(
            InputError, match=rf"weights cannot be {wrong}; use torch.float64, .* or"
        ):
            model.to(wrong)
        with pytest.raises(
            WeightsError, match=rf"W_E is {wrong}; weights are torch.float64, .* or"
        ):
            ps.from_tensors(model.config, {"W_E": torch.ones(2, 2).to(wrong)})


def test_a_vocabulary_of_one_token() -> None:
    config = ps.Config(n_layers=1, n_heads=1, d_model=8, d_head=4, d_vocab=1, n_ctx=6)
    with pytest.raises(InputError, match="the vocabulary has one token"):
        ps.decompile(ps.random_model(config, seed=0), torch.zeros(10, 6, dtype=torch.long))


def test_a_number_that_is_no_integer_is_named_in_plain_words() -> None:
    model = ps.construct.induction()
    wrong: Any = 1.5
    with pytest.raises(ps.PathsumError, match="token is 1.5; give a string or an integer$"):
        model.token_id(wrong)
    with pytest.raises(ps.PathsumError, match="a HeadId or an integer$"):
        model.head(wrong)
