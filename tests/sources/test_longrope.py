"""LongRoPE: the factors of short and of long texts, each as transformers uses them."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.sources import tiny
from tests.sources.gguf_files import convert

import pathsum as ps
from pathsum.base.errors import ConfigError, InputError

CASE = "phi3-longrope"
LONG = torch.randint(0, 61, (1, 100), generator=torch.Generator().manual_seed(2))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("longrope")
    return folder, tiny.write(CASE, folder)


@pytest.fixture(params=["folder", "gguf", "live"])
def load(request: pytest.FixtureRequest, checkpoint: tuple[Path, Any]) -> Any:
    if request.param == "live":
        return lambda **options: ps.from_hf(tiny.make(CASE), **options)
    path = convert(CASE, checkpoint[0]) if request.param == "gguf" else checkpoint[0]
    return lambda **options: ps.load(path, **options)


def test_texts_up_to_the_trained_length(load: Any, checkpoint: tuple[Path, Any]) -> None:
    model = load()
    assert model.config.n_ctx == 32
    for length in (5, 32):
        theirs = checkpoint[1](LONG[:, :length])
        torch.testing.assert_close(model(LONG[:, :length]), theirs, atol=1e-4, rtol=1e-4)
    with pytest.raises(InputError, match="n_ctx=32"):
        model(LONG)


def test_longer_texts(load: Any, checkpoint: tuple[Path, Any]) -> None:
    model = load(context="extended")
    assert model.config.n_ctx == 128
    for length in (33, 100):
        theirs = checkpoint[1](LONG[:, :length])
        torch.testing.assert_close(model(LONG[:, :length]), theirs, atol=1e-4, rtol=1e-4)
    # The two sets of factors are two models.
    short = checkpoint[1](LONG[:, :32])
    assert float((model(LONG[:, :32]) - short).abs().max()) > 0.01
    trace = model.to(dtype=torch.float64).trace(LONG[:, :40])
    assert trace.paths().remainder() < 1e-12


def test_the_attention_factor_of_the_file_counts(tmp_path: Path) -> None:
    theirs = tiny.make(CASE)
    for scale in (1.0, 1.5):
        theirs.config.rope_parameters["attention_factor"] = scale
        live = type(theirs)(theirs.config).eval()
        live.load_state_dict(theirs.state_dict())
        folder = tmp_path / str(scale)
        live.save_pretrained(folder)
        tokens = LONG[:, :20]
        expected = live(tokens).logits.detach()
        torch.testing.assert_close(ps.load(folder)(tokens), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["two-layer", "llama"])
def test_other_checkpoints_have_one_context(name: str, tmp_path: Path) -> None:
    if name == "llama":
        tiny.write(name, tmp_path)
    source = tmp_path if name == "llama" else name
    with pytest.raises(InputError, match="context='extended' goes with .* LongRoPE"):
        ps.load(source, context="extended")


def test_a_context_that_does_not_exist(checkpoint: tuple[Path, Any]) -> None:
    with pytest.raises(InputError, match="context is 'longer'; choose 'original' or 'ext"):
        ps.load(checkpoint[0], context="longer")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"short_factor": [1.0]}, "rotary_factors has 1 entries, but 4 planes"),
        ({"short_factor": "many"}, "short_factor='many', which is not a list"),
        ({"short_factor": None}, "has no short_factor"),
        ({"short_factor": [1.0, 1.0, -2.0, 1.0]}, "must be finite and above 0"),
    ],
)
def test_factors_that_make_no_rotation(
    changes: dict[str, Any], message: str, checkpoint: tuple[Path, Any], tmp_path: Path
) -> None:
    folder = tmp_path / "broken"
    shutil.copytree(checkpoint[0], folder)
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"] |= changes
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=message):
        ps.load(folder)
