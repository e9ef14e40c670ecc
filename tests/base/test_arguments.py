"""Errors about arguments of the wrong type."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from jaxtyping import Float, Int, jaxtyped
from torch import Tensor

import pathsum as ps
from pathsum.base import Progress, silent
from pathsum.base.errors import ArgumentError, InputError, LayerError, TokenError
from pathsum.base.options import checked, fits
from pathsum.model.reference import AblationReference


@pytest.mark.parametrize(
    ("value", "hint", "right"),
    [
        (3, int, True),
        (np.int64(3), int, True),
        (torch.tensor(3), int, True),
        (True, int, False),
        (2**63, int, False),
        (1.5, int, False),
        ("3", int, False),
        (3, float, True),
        (np.float32(1.5), float, True),
        (float("nan"), float, False),
        ("1.5", float, False),
        (3 + 4j, float, False),
        (1, bool, False),
        (np.bool_(True), bool, True),
        (None, int | None, True),
        ("a", int | None, False),
        ("q", Literal["q", "k"], True),
        (torch.zeros(2), Literal["q", "k"], False),
        (["a", "b"], Sequence[str], True),
        ("ab", Sequence[str], True),
        ("ab", Sequence[int], False),
        ([1, "b"], Sequence[int], False),
        ((1, 2), tuple[int, int], True),
        ((1, 2, 3), tuple[int, int], False),
        ((1, 2, 3), tuple[int, ...], True),
        ({"a": 1}, Mapping[str, int], True),
        ({"a": "b"}, Mapping[str, int], False),
        (len, Callable[..., int], True),
        (3, Callable[..., int], False),
        (torch.zeros(2, 3), Float[Tensor, "a b"], True),
        (torch.zeros(2), Float[Tensor, "a b"], False),
        (torch.zeros(2, 3), Int[Tensor, "a b"], False),
        (object(), Any, True),
    ],
)
def test_what_fits(value: object, hint: Any, right: bool) -> None:
    assert fits(value, hint) is right


@pytest.mark.parametrize(
    ("hint", "value", "said"),
    [
        (int, "2", "x is '2'; give an integer of at most 64 bits"),
        (float | None, np.zeros(3), "x is ndarray of shape (3,); give a finite number or None"),
        (str | Path, object(), "x is a object; give a string or a path"),
        (
            AblationReference | str,
            3,
            "give 'zero', 'mean', 'resample' or 'first_token' or a string",
        ),
        (Literal["q", "k"], 3, "give 'q' or 'k'"),
        (Int[Tensor, "batch pos"], torch.zeros(2), "x is Tensor of shape (2,); give a tensor"),
        (ps.Model, "two-layer", "x is 'two-layer'; give a Model"),
        (Sequence[str], 3, "give a sequence (each item a string)"),
        (tuple[int, str], 3, "give a tuple (an integer of at most 64 bits, a string)"),
        (Mapping[str, int], 3, "give a mapping from a string to an integer"),
        (Callable[..., int], 3, "give a function"),
    ],
)
def test_the_sentence(hint: Any, value: object, said: str) -> None:
    def call(x: Any) -> None:
        raise AssertionError("the argument was not checked")

    call.__annotations__["x"] = hint
    with pytest.raises(ArgumentError) as found:
        checked(call)(value)
    assert said in str(found.value)
    assert isinstance(found.value, TypeError)


def test_sizes_in_the_shapes_of_a_caller_do_not_apply() -> None:
    @checked
    def call(x: Float[Tensor, "batch pos"], y: Float[Tensor, "batch pos"]) -> bool:
        return True

    with jaxtyped("context"):
        shape: Any = Float[Tensor, "batch pos"]
        assert isinstance(torch.zeros(1, 2), shape)
        assert call(torch.zeros(1, 3), torch.zeros(1, 4))


@pytest.mark.parametrize("sign", [1, -1])
def test_an_integer_that_python_does_not_print(sign: int) -> None:
    def call(x: int) -> None:
        raise AssertionError("the argument was not checked")

    with pytest.raises(ArgumentError, match="x is a number that is too long to print; give an int"):
        checked(call)(sign * 10**5000)


def test_other_errors_stay() -> None:
    """An argument that fits, too many arguments and errors on purpose are left alone."""

    @checked
    def call(x: int, error: Exception) -> None:
        raise error

    for error in (RuntimeError("a bug"), InputError("on purpose"), KeyError("a bug")):
        with pytest.raises(type(error)) as found:
            call(3, error)
        assert found.value is error
    with pytest.raises(TypeError, match="positional arguments but 3 were given"):
        call(3, KeyError(), 4)  # pyright: ignore[reportCallIssue]


def test_arguments_of_every_kind() -> None:
    @checked
    def call(first: int, *others: int, last: int = 3) -> tuple[object, ...]:
        return (first, *others, last)

    assert call(1, 2, np.int64(3), last=4) == (1, 2, 3, 4)
    for args, given, name in (
        (("a",), {}, "first"),
        ((1, 2, "a"), {}, "others"),
        ((1,), {"last": "a"}, "last"),
    ):
        with pytest.raises(ArgumentError, match=f"call: {name} is 'a'; give an integer"):
            call(*args, **given)  # pyright: ignore[reportArgumentType]


def test_progress_may_be_none() -> None:
    @checked
    def call(x: int, *, progress: Progress = silent) -> int:
        progress(0, x, "a step")
        return x

    assert call(3) == call(3, progress=None) == 3  # pyright: ignore[reportArgumentType]
    assert "silent" not in str(inspect.signature(call))
    assert inspect.signature(call).parameters["progress"].default is None
    with pytest.raises(ArgumentError, match="progress is 3; give a function"):
        call(3, progress=3)  # pyright: ignore[reportArgumentType]


def test_help_shows_types() -> None:
    # Models and configs of other libraries, settings of a recipe by name, names of nodes in any
    # form.
    anything = {"load", "from_hf", "from_transformer_lens", "train", "patch_sweep"}
    for name in ps.__all__:
        function = getattr(ps, name)
        if inspect.isfunction(function):
            shown = str(inspect.signature(function)).partition(" -> ")[0]
            assert "<function" not in shown, name
            assert "Any" not in shown or name in anything, name


def test_an_annotation_for_type_checkers_only_is_not_checked() -> None:
    @checked
    def call(x: "NotImported", y: "int") -> object:  # pyright: ignore[reportUndefinedVariable]
        return x

    assert call("text", 3) == "text"
    with pytest.raises(ArgumentError, match="y is 'a'"):
        call("text", "a")  # pyright: ignore[reportArgumentType]


def test_the_outer_call_is_named() -> None:
    @checked
    def inner(number: int) -> int:
        return number + 1

    @checked
    def outer(x: int) -> int:
        return inner(x)

    with pytest.raises(ArgumentError, match="outer: x is 'a'"):
        outer("a")  # pyright: ignore[reportArgumentType]


class TestOddValues:
    """Values of the right type that once raised an error from inside torch or tokenizers."""

    MODEL = ps.construct.induction()

    def test_seeds(self) -> None:
        config = self.MODEL.config
        with pytest.raises(InputError, match="seed is 1000000.*at most 6[34] bits"):
            ps.random_model(config, 10**30)

    def test_layers(self) -> None:
        trace = self.MODEL.trace("a b")
        for layer in (2, -3):
            with pytest.raises(LayerError, match=f"layer {layer} does not exist: .* 2 layers"):
                trace.z(layer)
        assert torch.equal(trace.z(-1), trace.z(1))
        assert torch.equal(trace.read(-1), trace.read(1))
        assert torch.equal(trace.attention_scores(-1), trace.attention_scores(1))
        with pytest.raises(IndexError):
            self.MODEL.weights.layers[2]

    def test_tokens(self) -> None:
        with pytest.raises(TokenError, match="is not a word of this tokenizer"):
            self.MODEL.token_id("\udc80")
        with pytest.raises(TokenError, match="half of a surrogate pair"):
            ps.load("two-layer").token_id("\udc80")
        bare = ps.random_model(self.MODEL.config)
        with pytest.raises(TokenError, match="cannot look up"):
            bare.token_id("9" * 5000)
        for wrong in (True, 1.5):
            with pytest.raises((TokenError, TypeError)):
                bare.token_id(wrong)  # pyright: ignore[reportArgumentType]
        assert self.MODEL.token_text(-1) == "<-1>"

    def test_tensors_without_numbers(self) -> None:
        tokens = torch.zeros(1, 4, dtype=torch.long)
        with pytest.raises(InputError, match="tokens are without values"):
            self.MODEL.trace(tokens.to("meta"))
        with pytest.raises(InputError, match="tokens are a sparse tensor"):
            self.MODEL.trace(tokens.to_sparse())
        with pytest.raises(InputError, match="is neither text nor token ids"):
            self.MODEL.trace([10**30])

    def test_names_of_tensors(self) -> None:
        with pytest.raises(InputError, match="there is no tensor 'W_X'; there are W_E"):
            self.MODEL.weights.read("W_X")

    def test_shares(self) -> None:
        why = self.MODEL.trace("a b a").paths().toward(position=-1)
        with pytest.raises(InputError, match="k=-1 shares were requested"):
            why.source_table(-1)
        with pytest.raises(InputError, match="position is 100000.*give an integer"):
            self.MODEL.trace("a b a").paths().toward(position=10**30)
