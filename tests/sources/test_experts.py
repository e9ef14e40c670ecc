"""gpt-oss: experts, clamped gates and sinks, against transformers and against plain sums."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.sources import tiny
from tests.sources.gguf_files import convert

import pathsum as ps
from pathsum.base.errors import ConfigError
from pathsum.model import activations, transformer
from pathsum.model.folding import fold
from pathsum.model.symmetries import random_rotation, rotate_stream

TOKENS = torch.randint(0, 61, (2, 30), generator=torch.Generator().manual_seed(1))
EXPERTS: dict[str, Any] = {
    "n_layers": 2,
    "n_heads": 2,
    "d_model": 12,
    "d_head": 4,
    "d_vocab": 20,
    "n_ctx": 16,
    "mlp": "clamped_gated",
    "d_mlp": 15,
    "n_experts": 5,
    "experts_per_token": 2,
}


def random(**changes: Any) -> ps.Model:
    return ps.random_model(
        ps.Config(**EXPERTS, **changes), dtype=torch.float64, biases=True, gains=True
    )


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> tuple[ps.Model, Any, Path]:
    """A checkpoint of gpt-oss whose gates reach their clamps, and transformers' own."""
    folder = tmp_path_factory.mktemp("gpt_oss")
    live = tiny.make("gpt_oss")
    with torch.no_grad():
        for name, parameter in live.named_parameters():
            if "gate_up_proj" in name:
                parameter.mul_(12)
    live.save_pretrained(folder)
    return ps.load(folder), live, folder


def test_gates_and_inputs_are_clamped(loaded: tuple[ps.Model, Any, Path]) -> None:
    model, live, folder = loaded
    theirs = live(TOKENS).logits.detach()
    layer, trace = model.weights.layers[0], model.trace(TOKENS)
    read = transformer.normalize(
        model.config, trace.streams[1] - trace.mlp_outputs[0], layer.ln2_w, None
    )[0]
    assert layer.W_in is not None and layer.b_in is not None
    assert float((read @ layer.W_in + layer.b_in).abs().max()) > activations.CLAMP
    for ours in (model, ps.from_hf(live), ps.load(convert("gpt_oss", folder))):
        torch.testing.assert_close(ours(TOKENS), theirs, atol=1e-4, rtol=1e-4)


def test_an_expert_writes_where_it_was_chosen() -> None:
    """The MLP is the sum of its experts' dense outputs times the router's weights."""
    model = random(norm="rms")
    config, layer = model.config, model.weights.layers[1]
    trace = model.trace(torch.arange(11))
    stream = trace.streams[2] - trace.mlp_outputs[1]
    read = transformer.normalize(config, stream, layer.ln2_w, None)[0]
    shares = activations.expert_weights(config, layer, read)
    assert layer.W_in is not None and layer.W_gate is not None and layer.W_out is not None
    assert layer.b_in is not None and layer.b_gate is not None and layer.b_experts is not None
    assert bool(((shares > 0).sum(-1) == 2).all())
    torch.testing.assert_close(shares.sum(-1), torch.ones(1, 11, dtype=torch.float64))
    gate = (read @ layer.W_gate + layer.b_gate).clamp(max=7)
    up = (read @ layer.W_in + layer.b_in).clamp(-7, 7)
    neurons = gate * torch.sigmoid(1.702 * gate) * (up + 1)
    written = torch.zeros_like(stream)
    for expert in range(5):
        own = slice(3 * expert, 3 * expert + 3)
        output = neurons[..., own] @ layer.W_out[own] + layer.b_experts[expert]
        written += shares[..., expert, None] * output
    assert layer.b_out is not None
    torch.testing.assert_close(trace.mlp_outputs[1], written + layer.b_out)
    assert trace.paths().remainder() < 1e-12


@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_transformations_leave_the_predictions_alone(norm: str) -> None:
    """Gains and biases fold into the router too, and experts' biases are written to the stream."""
    model = random(norm=norm)
    tokens = torch.arange(11)
    expected = model(tokens).log_softmax(-1)
    folded = fold(model)
    torch.testing.assert_close(folded(tokens).log_softmax(-1), expected)
    rotated = rotate_stream(folded, random_rotation(folded.config, seed=0).double())
    torch.testing.assert_close(rotated(tokens).log_softmax(-1), expected)


@pytest.mark.parametrize("value", ["zero", "mean"])
def test_an_mlp_with_experts_can_be_switched_off(value: str) -> None:
    model = random()
    tokens = torch.arange(11)
    off = model.edited({"mlp0": value}, text=tokens if value == "mean" else None)
    written = off.trace(tokens).mlp_outputs[0]
    mean = model.trace(tokens).mlp_outputs[0][:, 1:].mean((0, 1))
    expected = torch.zeros_like(mean) if value == "zero" else mean
    torch.testing.assert_close(written, expected.expand_as(written))


def test_shared_experts_are_used_everywhere_and_are_not_in_the_softmax() -> None:
    model = random(shared_experts=2, router="all")
    layer = model.weights.layers[0]
    assert layer.W_router is not None and layer.b_router is not None
    read = torch.randn(3, 7, model.config.d_model, dtype=torch.float64)
    logits = read @ layer.W_router + layer.b_router
    found = activations.expert_weights(model.config, layer, read)
    torch.testing.assert_close(found[..., 3:], torch.sigmoid(logits[..., 3:]))
    routed = logits[..., :3].softmax(-1)
    worst = routed.argmin(-1, keepdim=True)
    torch.testing.assert_close(found[..., :3], routed.scatter(-1, worst, 0.0))


def test_a_saved_model_has_its_experts(tmp_path: Path) -> None:
    model = random()
    model.save(tmp_path / "model")
    again = ps.load(tmp_path / "model")
    assert again.config == model.config
    torch.testing.assert_close(again(torch.arange(11)), model(torch.arange(11)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_experts": 4}, "n_experts=4 does not divide the d_mlp=15 neurons"),
        ({"experts_per_token": 6}, "experts_per_token=6 is out of range for n_experts=5"),
        ({"experts_per_token": 0}, "experts_per_token=0 is out of range for n_experts=5"),
        ({"n_experts": 0}, "experts_per_token=2 is out of range for n_experts=0"),
        ({"shared_experts": 4}, "n_experts=5 and shared_experts=4; use 1 to n_experts − shared_"),
        ({"mlp": "none", "d_mlp": 0}, "n_experts=5 does not divide the d_mlp=0 neurons"),
    ],
)
def test_experts_that_do_not_fit(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ps.Config(**{**EXPERTS, **changes})


def test_blocks_of_four_bits_are_read_from_gguf(tmp_path: Path) -> None:
    """MXFP4, in which gpt-oss is published: 32 numbers of 4 bits and a power of two."""
    gguf: Any = pytest.importorskip("gguf")
    from pathsum.sources.gguf_file import GgufFile

    file = tmp_path / "blocks.gguf"
    writer = gguf.GGUFWriter(file, "gpt-oss")
    kind = gguf.GGMLQuantizationType.MXFP4
    packed = np.random.default_rng(0).integers(0, 128, (3, 4, 2 * 17), dtype=np.uint8)
    # Exponents near 1: a scale of 2^(e − 127).
    packed[..., ::17] = 127
    writer.add_tensor("ffn_up_exps.weight", packed, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = GgufFile(file).get("ffn_up_exps.weight")
    assert found.shape == (3, 4, 64)
    assert set(found.unique().tolist()) <= {0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0} | {
        *(-0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
    }
    first = packed[0, 0, 1]
    values = (
        0.0,
        0.5,
        1.0,
        1.5,
        2.0,
        3.0,
        4.0,
        6.0,
        -0.0,
        -0.5,
        -1.0,
        -1.5,
        -2.0,
        -3.0,
        -4.0,
        -6.0,
    )
    assert float(found[0, 0, 0]) == values[first & 15]
    assert float(found[0, 0, 16]) == values[first >> 4]
