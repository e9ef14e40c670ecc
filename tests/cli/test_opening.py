"""How commands open a model: revision, device, and one GPU per process of torchrun."""

import importlib
from typing import Any

import pytest

from pathsum.cli import inputs
from pathsum.cli.main import main
from pathsum.model import Model
from pathsum.model.processes import pack, unpack


def test_revision_reaches_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str | None]] = []

    def download(hub_id: str, revision: str | None, token: Any) -> Any:
        asked.append((hub_id, revision))
        raise KeyboardInterrupt

    # The module: the package has a function of the same name.
    monkeypatch.setattr(importlib.import_module("pathsum.sources.load"), "download", download)
    assert main(["composition", "owner/name", "--revision", "step3000"]) == 130
    assert asked == [("owner/name", "step3000")]


def test_a_revision_of_a_model_that_is_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bandwidth", "hand-built-induction", "--revision", "main"]) == 2
    assert "--revision 'main' goes with a hub id" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("world", "device", "expected"),
    [
        ("2", "cuda", "cuda:1"),
        ("2", "cuda:0", "cuda:0"),
        ("1", "cuda", "cuda"),
        ("2", "cpu", "cpu"),
    ],
)
def test_under_torchrun_each_process_has_its_own_gpu(
    monkeypatch: pytest.MonkeyPatch, world: str, device: str, expected: str
) -> None:
    monkeypatch.setenv("WORLD_SIZE", world)
    monkeypatch.setenv("LOCAL_RANK", "1")
    places: list[object] = []

    def to(model: Model, dtype: object = None, device: object = None) -> Model:
        places.append(device)
        return model

    monkeypatch.setattr(Model, "to", to)
    inputs.load_model("hand-built-induction", device, None, as_json=True)
    assert places == [expected]


def test_what_another_process_computed_arrives_as_it_was() -> None:
    import torch

    found = {3: (torch.arange(4.0), "text"), 5: (torch.ones(2, dtype=torch.float64), None)}
    again = unpack(pack(found))
    assert list(again) == [3, 5]
    assert torch.equal(again[3][0], found[3][0])
    assert again[5][0].dtype == torch.float64
