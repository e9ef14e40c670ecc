"""Experts in blocks of four bits, as gpt-oss is published, against gguf and transformers."""

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.sources import tiny

import pathsum as ps
from pathsum.base.errors import FileError, WeightsError
from pathsum.model.store import MemoryStore
from pathsum.sources.checkpoint_folder import Mxfp4Store, dequantize

TOKENS = torch.randint(0, 61, (2, 30), generator=torch.Generator().manual_seed(1))
UP = "model.layers.1.mlp.experts.gate_up_proj"


def random_bytes(shape: tuple[int, ...], low: int = 0, high: int = 256) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(low, high, shape, dtype=torch.uint8, generator=generator)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny gpt-oss whose experts are random blocks."""
    folder = tmp_path_factory.mktemp("mxfp4")
    case = copy.deepcopy(tiny.CASES["gpt_oss"])
    case[2].update(hidden_size=64, intermediate_size=32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(tiny.CASES, "gpt_oss-64", case)
        tiny.write("gpt_oss-64", folder)
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if name.endswith("_proj") and "experts" in name]:
        experts, inside, out = tensors.pop(name).shape
        tensors[f"{name}_blocks"] = random_bytes((experts, out, inside // 32, 16))
        # Weights of about 0.3, some of them 16 times smaller.
        tensors[f"{name}_scales"] = random_bytes((experts, out, inside // 32), 119, 125)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    edit_config(folder, quantization_config={"quant_method": "mxfp4"})
    return folder


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    return shutil.copytree(written, tmp_path / "copy")


def edit_config(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def edit_tensors(folder: Path, **changes: torch.Tensor | None) -> None:
    file = folder / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    for ending, tensor in changes.items():
        tensors.pop(f"{UP}_{ending}")
        tensors |= {} if tensor is None else {f"{UP}_{ending}": tensor}
    save_file(tensors, file)


def test_numbers_are_those_of_gguf() -> None:
    """GGUF stores a block as its exponent, then 16 bytes: first half low bits, second half high."""
    gguf: Any = pytest.importorskip("gguf")
    from gguf.quants import dequantize as from_gguf

    blocks, scales = random_bytes((3, 6, 2, 16)), random_bytes((3, 6, 2), 0, 254)
    numbers = torch.stack((blocks & 15, blocks >> 4), -1).flatten(-2)
    halves = numbers[..., :16] | (numbers[..., 16:] << 4)
    packed = torch.cat((scales[..., None], halves), -1).flatten(-2)
    theirs = from_gguf(packed.numpy(), gguf.GGMLQuantizationType.MXFP4)
    ours = dequantize(blocks, scales)
    assert ours.shape == (3, 64, 6) and ours.dtype == torch.bfloat16
    np.testing.assert_array_equal(ours.mT.float().numpy(), theirs)


def test_the_first_number_of_a_byte_is_in_its_low_bits() -> None:
    blocks = torch.zeros((1, 1, 1, 16), dtype=torch.uint8)
    blocks[..., 3] = 0xE7  # 6 in the low bits, −4 in the high ones
    found = dequantize(blocks, torch.full((1, 1, 1), 126, dtype=torch.uint8))
    assert found[0, :, 0].nonzero().flatten().tolist() == [6, 7]
    assert found[0, 6:8, 0].tolist() == [3.0, -2.0]


def test_a_checkpoint_is_that_of_transformers(written: Path) -> None:
    """transformers dequantizes experts to bfloat16 too, and would compute them so."""
    transformers: Any = pytest.importorskip("transformers")
    live = transformers.AutoModelForCausalLM.from_pretrained(
        written,
        dtype=torch.float32,
        attn_implementation="eager",
        quantization_config=transformers.Mxfp4Config(dequantize=True),
    )
    theirs = live.float()(TOKENS).logits.detach()
    model = ps.load(written)
    for ours in (model, ps.from_hf(live)):
        torch.testing.assert_close(ours(TOKENS), theirs, atol=1e-4, rtol=1e-4)
    assert model.trace(TOKENS).paths().remainder() < 1e-5


def test_blocks_stay_on_disk_until_they_are_read(written: Path) -> None:
    tensors = load_file(written / "model.safetensors")
    store = Mxfp4Store(MemoryStore(tensors), "here")
    assert store.shapes[UP] == (5, 64, 64) and store.dtypes[UP] == torch.bfloat16
    assert store.copies(UP) and not store.copies(f"{UP}_bias")
    assert f"{UP}_blocks" not in store.shapes and f"{UP}_scales" not in store.shapes
    assert store.get(f"{UP}_bias") is tensors[f"{UP}_bias"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scales": None}, "has .*gate_up_proj_blocks without .*gate_up_proj_scales"),
        ({"scales": random_bytes((5, 64, 1))}, r"shape \[5, 64, 1\]; MXFP4 has bytes of shapes"),
        ({"blocks": random_bytes((5, 64, 2, 8))}, r"shape \[5, 64, 2, 8\] and .*MXFP4 has bytes"),
        ({"blocks": torch.zeros(5, 64, 2, 16)}, "as torch.float32 of shape .*MXFP4 has bytes"),
    ],
)
def test_blocks_that_do_not_fit(
    folder: Path, changes: dict[str, torch.Tensor | None], message: str
) -> None:
    edit_tensors(folder, **changes)
    with pytest.raises(FileError, match=message):
        ps.load(folder)


def test_blocks_of_another_size(folder: Path) -> None:
    edit_tensors(
        folder, blocks=random_bytes((5, 64, 1, 16)), scales=random_bytes((5, 64, 1), 119, 125)
    )
    with pytest.raises(WeightsError, match=r"gate_up_proj of .* has shape \[5, 32, 64\], but"):
        ps.load(folder)


def test_an_exponent_that_means_nan(folder: Path) -> None:
    scales = load_file(folder / "model.safetensors")[f"{UP}_scales"].clone()
    scales[2, 3, 1] = 255
    edit_tensors(folder, scales=scales)
    with pytest.raises(WeightsError, match="NaN or infinite"):
        ps.load(folder)(TOKENS)


def test_blocks_that_the_config_does_not_declare(folder: Path) -> None:
    edit_config(folder, quantization_config=None)
    with pytest.raises(FileError, match="has no tensor .*down_proj.*from which"):
        ps.load(folder)


def test_a_config_that_declares_blocks_that_are_not_there(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    store = Mxfp4Store(MemoryStore(tensors), "here")
    save_file({name: store.get(name).contiguous() for name in store.shapes}, folder / "plain")
    (folder / "plain").replace(folder / "model.safetensors")
    with pytest.raises(FileError, match="says that experts are stored in MXFP4, but no tensor's"):
        ps.load(folder)
    edit_config(folder, quantization_config=None)
    assert ps.load(folder).config.n_experts == 5
