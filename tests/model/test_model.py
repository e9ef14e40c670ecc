import math

import pytest
import torch

import pathsum as ps
from pathsum.base.errors import HeadError, NotExactError, PathError, TokenError, WeightsError
from pathsum.model import Config, HeadId, Path, Source, construct
from pathsum.model.activations import activation
from pathsum.model.sequences import check_tokens

CONFIG = Config(n_layers=2, n_heads=3, d_model=24, d_head=8, d_vocab=40, n_ctx=20)


def test_one_sequence_and_a_batch() -> None:
    model = ps.random_model(CONFIG)
    tokens = torch.randint(40, (2, 15))
    assert model(tokens).shape == (2, 15, 40)
    assert model(tokens[0]).shape == (15, 40)
    torch.testing.assert_close(model(tokens[0]), model(tokens)[0])
    assert not model(tokens).requires_grad


def test_results_carry_no_gradient_even_if_weights_ask_for_one() -> None:
    model = ps.random_model(CONFIG)
    tensors = {name: t.clone().requires_grad_() for name, t in stacked(model).items()}
    again = ps.from_tensors(CONFIG, tensors)
    tokens = torch.tensor([1, 2, 3])
    assert not again(tokens).requires_grad
    assert not again.trace(tokens).logits.requires_grad


def stacked(model: ps.Model) -> dict[str, torch.Tensor]:
    weights = model.weights
    names = ("W_Q", "W_K", "W_V", "W_O")
    layers = {name: torch.stack([getattr(l, name) for l in weights.layers]) for name in names}
    assert weights.W_pos is not None
    return {"W_E": weights.W_E, "W_U": weights.W_U, "W_pos": weights.W_pos, **layers}


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (torch.tensor([1, 40]), "token id 40 is out of range: the vocabulary has 40 tokens"),
        (torch.tensor([-1, 2]), "token id -1 is out of range"),
        (torch.zeros(21, dtype=torch.long), "has 21 tokens, but .* n_ctx=20; shorten it to 20"),
        (torch.zeros(0, dtype=torch.long), "the sequence is empty"),
        (torch.zeros(2, 0, dtype=torch.long), "the sequence is empty"),
        (torch.zeros(1, 2, 3, dtype=torch.long), r"use \[pos\] or \[batch, pos\]"),
    ],
)
def test_tokens_that_cannot_be_read(tokens: torch.Tensor, message: str) -> None:
    with pytest.raises(TokenError, match=message):
        ps.random_model(CONFIG).trace(tokens)


def test_tokens_that_are_no_ids() -> None:
    with pytest.raises(TokenError, match="ids are whole numbers"):
        check_tokens(CONFIG, torch.tensor([0.5]))


def test_text_without_a_tokenizer() -> None:
    with pytest.raises(
        TokenError, match="has no tokenizer, so it cannot read text; give token ids"
    ):
        ps.random_model(CONFIG).trace("hello")


def test_text_gets_the_start_token_and_ids_do_not() -> None:
    model = ps.construct.induction(["x", "y"])
    assert model.trace("x y").tokens.tolist() == [[0, 1, 2]]
    assert model.trace([1, 2]).tokens.tolist() == [[1, 2]]


def test_a_head_has_one_name_everywhere() -> None:
    model = ps.random_model(CONFIG)
    assert model.head("L1H2").id == model.head(1, 2).id == model.head((1, 2)).id == HeadId(1, 2)
    assert model.head(1, 2).label == "L1H2"
    assert [head.label for head in model.heads][:4] == ["L0H0", "L0H1", "L0H2", "L1H0"]


def test_heads_that_are_not_there() -> None:
    model = ps.random_model(CONFIG)
    with pytest.raises(
        HeadError, match="head L1H7 does not exist: .* layers 0 to 1 with heads 0 to 2 .* L1H2"
    ):
        model.head("L1H7")
    with pytest.raises(HeadError, match="'1.4' does not name a head"):
        model.head("1.4")
    empty = ps.random_model(CONFIG.replace(n_layers=0))
    with pytest.raises(HeadError, match="this model has no layers"):
        empty.head("L0H0")


def test_shapes_of_circuits() -> None:
    head = ps.random_model(CONFIG).head("L1H2")
    assert head.qk.shape == head.ov.shape == (24, 24)
    assert head.full_qk.shape == head.full_ov.shape == (40, 40)
    assert head.basis == ""


def test_the_token_basis_says_what_it_leaves_out() -> None:
    model = ps.random_model(CONFIG.replace(norm="rms"))
    assert model.head("L0H0").basis == ""
    assert model.head("L1H0").basis == "direct path, scale omitted"


def test_a_rotary_model_has_no_single_qk() -> None:
    model = ps.random_model(CONFIG.replace(positions="rotary"))
    with pytest.raises(NotExactError, match=r"qk_at\(offset\) gives it for one offset"):
        _ = model.head("L0H0").qk
    assert model.head("L0H0").qk_at(3).shape == (CONFIG.d_model, CONFIG.d_model)


def test_full_ov_of_layer_zero_is_what_a_one_token_run_moves() -> None:
    config = CONFIG.replace(n_layers=1, n_heads=1, norm="rms", tied=False)
    model = ps.random_model(config, dtype=torch.float64, gains=True)
    trace = model.trace(torch.arange(20)[:, None])
    moved = trace.written("L0H0")[:, 0]
    assert model.weights.ln_f_w is not None
    W_U = model.weights.ln_f_w[:, None] * model.weights.W_U
    raised = moved @ (W_U - W_U.mean(-1, keepdim=True))
    torch.testing.assert_close(model.head("L0H0").full_ov.dense()[:20], raised)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"W_E": (39, 24)}, r"W_E has shape \[39, 24\], but this config needs \[40, 24\]"),
        (
            {"W_Q": (1, 3, 24, 8)},
            r"W_Q has shape \[1, 3, 24, 8\], but the first axis counts layers",
        ),
        ({"W_Z": (3,)}, "W_Z is not a tensor's name"),
        ({"W_in": (2, 24, 9)}, "W_in is given, but a model with .* mlp='none' does not have it"),
        ({"W_pos": (3, 20, 24)}, "first axis counts layers"),
    ],
)
def test_tensors_that_do_not_fit(tensors: dict[str, tuple[int, ...]], message: str) -> None:
    given = stacked(ps.random_model(CONFIG)) | {n: torch.randn(s) for n, s in tensors.items()}
    with pytest.raises(WeightsError, match=message):
        ps.from_tensors(CONFIG, given)


def test_a_missing_tensor_is_named() -> None:
    given = stacked(ps.random_model(CONFIG))
    del given["W_V"]
    with pytest.raises(WeightsError, match=r"layers.0.W_V is missing: .* shape \[3, 24, 8\]"):
        ps.from_tensors(CONFIG, given)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite(bad: float) -> None:
    given = stacked(ps.random_model(CONFIG))
    given["W_O"][1, 2, 3, 4] = bad
    model = ps.from_tensors(CONFIG, given)
    with pytest.raises(WeightsError, match="layers.1.W_O holds 1 numbers that are NaN or infinite"):
        model(torch.tensor([1]))


def test_mixed_dtypes_are_refused() -> None:
    given = stacked(ps.random_model(CONFIG))
    with pytest.raises(WeightsError, match="of different dtypes"):
        ps.from_tensors(CONFIG, given | {"W_U": given["W_U"].double()})


def test_dtype_is_kept_and_can_be_changed() -> None:
    model = ps.random_model(CONFIG, dtype=torch.float64)
    assert model(torch.tensor([1])).dtype == torch.float64
    single = model.to(torch.float32)
    assert single(torch.tensor([1])).dtype == torch.float32
    assert single.trace(torch.tensor([1])).logits.dtype == torch.float32
    torch.testing.assert_close(single(torch.tensor([1])), model(torch.tensor([1])).float())


def test_a_layer_each_has_its_positions() -> None:
    each = ps.random_model(CONFIG, position_tables="each")
    first, second = (layer.W_pos for layer in each.weights.layers)
    assert first is not None and second is not None and not torch.equal(first, second)
    shared = ps.random_model(CONFIG)
    assert shared.weights.layers[0].W_pos is shared.weights.layers[1].W_pos


def test_soft_caps_run_and_agree() -> None:
    config = CONFIG.replace(score_cap=2.0, logit_cap=3.0)
    model = ps.random_model(config, dtype=torch.float64)
    tokens = torch.randint(40, (2, 9))
    torch.testing.assert_close(model(tokens), model.trace(tokens).logits)
    assert model(tokens).abs().max() < 3


def test_paths_print_their_heads_and_have_the_papers_formula() -> None:
    path = Path("embed", ["L0H7", "L1H4"])
    assert str(path) == path.to_json() == "embed→L0H7→L1H4"
    assert path.formula == "A[L1H4]·A[L0H7] ⊗ W_E·OV[L0H7]·OV[L1H4]·W_U"
    assert Path("embed").formula == "Id ⊗ W_E·W_U"
    assert Path("mlp0", ["L1H4"]).formula == "A[L1H4] ⊗ MLP[0]·OV[L1H4]·W_U"
    assert Path("bias_U").formula == "Id ⊗ b_U"
    assert path.order == 2
    assert path == Path(Source("embed"), [(0, 7), (1, 4)])


@pytest.mark.parametrize(
    ("source", "heads", "message"),
    [
        ("embed", ["L1H0", "L0H0"], "L1H0 and then L0H0 is out of order"),
        ("embed", ["L1H0", "L1H0"], "names a head twice"),
        ("embed", ["L1H0", "L1H1"], "is out of order"),
        ("mlp1", ["L1H0"], "L1H0 cannot read mlp1, which is written by its own layer"),
        ("bias_U", ["L1H0"], "no head reads it"),
        ("token", [], "'token' is not a source of paths"),
    ],
)
def test_paths_that_no_run_takes(source: str, heads: list[str], message: str) -> None:
    with pytest.raises(PathError, match=message):
        Path(source, heads)


def test_paths_that_this_model_does_not_have() -> None:
    model = ps.random_model(CONFIG)
    with pytest.raises(HeadError, match="head L2H0 does not exist"):
        Path("embed", ["L2H0"]).ov(model)
    with pytest.raises(PathError, match="positions='qk', so they are never in the residual stream"):
        Path("pos", ["L0H0"]).full_ov(model)
    with pytest.raises(PathError, match="has no MLPs"):
        Path("mlp0", ["L1H0"]).check_in(model)
    with pytest.raises(PathError, match="goes through no head"):
        Path("embed").ov(model)


def test_a_virtual_heads_circuits_are_products() -> None:
    model = ps.random_model(CONFIG, dtype=torch.float64)
    path = Path("embed", ["L0H1", "L1H2"])
    product = model.head("L0H1").ov.dense() @ model.head("L1H2").ov.dense()
    torch.testing.assert_close(path.ov(model).dense(), product)
    W_U = model.weights.W_U
    full = model.weights.W_E @ product @ (W_U - W_U.mean(-1, keepdim=True))
    torch.testing.assert_close(path.full_ov(model).dense(), full)
    trace = model.trace(torch.randint(40, (2, 9)))
    patterns = trace.pattern("L1H2") @ trace.pattern("L0H1")
    torch.testing.assert_close(path.pattern(trace), patterns)


def test_nonlinearities_are_their_formulas() -> None:
    x = torch.linspace(-6, 6, 101, dtype=torch.float64)
    erf = x / 2 * (1 + torch.erf(x / math.sqrt(2)))
    tanh = x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    formulas = {"relu": x.clamp(min=0), "gelu": erf, "gelu_tanh": tanh}
    formulas["silu"] = x / (1 + (-x).exp())
    formulas |= {"gelu_gated": erf, "gelu_tanh_gated": tanh, "silu_gated": x / (1 + (-x).exp())}
    formulas["bilinear"] = x
    assert not torch.allclose(erf, tanh, rtol=0, atol=1e-4)
    for mlp, expected in formulas.items():
        config = Config(1, 1, 4, 4, 5, 6, mlp=mlp)  # pyright: ignore[reportArgumentType]
        torch.testing.assert_close(activation(config, x), expected)


@pytest.mark.parametrize("text", ["", ["a b", ""]], ids=["alone", "of two"])
def test_an_empty_text_is_named_if_no_start_token_is_added(text: str | list[str]) -> None:
    model = construct.induction()
    object.__setattr__(model.config, "start_token", None)
    with pytest.raises(TokenError, match="the sequence is empty"):
        model.trace(text)
