"""Low precision against float32: the distance is measured in the model's own numbers."""

import json
from pathlib import Path

import pytest
import torch

import pathsum as ps
from pathsum.base.errors import InputError
from pathsum.cli.main import main
from pathsum.model import Model, Weights
from pathsum.model.precision import precision_gap
from pathsum.model.store import MemoryStore

CONFIG = ps.Config(2, 2, 16, 8, 50, 16, positions="rotary", norm="rms", mlp="gelu")
TOKENS = torch.randint(0, 50, (3, 16), generator=torch.Generator().manual_seed(0))


def stored_in(dtype: torch.dtype) -> Model:
    tensors = dict(ps.random_model(CONFIG, gains=True).weights.items())
    return Model(Weights(CONFIG, MemoryStore({n: t.to(dtype) for n, t in tensors.items()})), "half")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_distance_is_that_of_the_two_forward_passes(dtype: torch.dtype) -> None:
    model = stored_in(dtype)
    assert model.weights.dtype == torch.float32
    found = precision_gap(model, TOKENS)
    full, low = model(TOKENS), model.to(dtype)(TOKENS).float()
    gap = low - low.mean(-1, keepdim=True) - (full - full.mean(-1, keepdim=True))
    assert found.largest == pytest.approx(float(gap.abs().max()), rel=1e-5)
    assert found.rms == pytest.approx(float(gap.square().mean().sqrt()), rel=1e-5)
    kl = torch.nn.functional.kl_div(
        low.log_softmax(-1), full.log_softmax(-1), log_target=True, reduction="sum"
    )
    assert found.kl == pytest.approx(float(kl) / TOKENS.numel(), rel=1e-3, abs=1e-6)
    same = (full.argmax(-1) == low.argmax(-1)).float().mean()
    assert found.agreement == pytest.approx(float(same)) and found.positions == 48
    assert found.largest > 0 and found.stored == str(dtype).removeprefix("torch.")
    assert found.loss != found.loss_low


def test_bfloat16_is_coarser_than_float16() -> None:
    model = ps.random_model(CONFIG)
    coarse, fine = (precision_gap(model, TOKENS, name).rms for name in ("bfloat16", "float16"))
    assert coarse > 2 * fine


def test_float32_has_nothing_to_compare_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ps.random_model(CONFIG)
    with pytest.raises(InputError, match="stored in float32.*'bfloat16' or 'float16'"):
        precision_gap(model, TOKENS)
    model.save(tmp_path)
    assert main(["precision", str(tmp_path)]) == 2
    assert "name a lower precision" in capsys.readouterr().err.replace("\n", " ")
    assert main(["precision", str(tmp_path), "--low", "bfloat16", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["computed"] == "bfloat16"
    assert main(["precision", str(tmp_path), "--low", "bfloat16"]) == 0
    assert "bfloat16 against float32" in capsys.readouterr().out
