"""Drops by removing edges are the effects of cutting them, where everything above is linear."""

from dataclasses import replace

import pytest
import torch

from pathsum.base.site import MLP_SIDES, Side, Site
from pathsum.model import Config, Source, from_tensors, random_model
from pathsum.model.store import MemoryStore
from pathsum.model.weights import Weights
from pathsum.paths.cuts import cut_effects
from pathsum.paths.edges import side_of
from pathsum.paths.growth import Growth
from pathsum.paths.target import PredictionRun, find_target

MLPS = ["silu_gated", "gelu", "relu", "relu2", "bilinear", "clamped_gated"]


def removal(config: Config) -> tuple[PredictionRun, Growth]:
    model = random_model(config, seed=5, dtype=torch.float64, biases=True)
    # A cut head loses its b_V too, which is a part of its own in sums.
    tensors = {
        name: torch.zeros_like(tensor) if name.endswith("b_V") else tensor
        for name, tensor in model.weights.items()
    }
    model = replace(model, weights=Weights(config, MemoryStore(tensors), torch.float64))
    trace = model.trace([[3, 1, 4, 1, 5, 9]])
    of = PredictionRun(trace, find_target(trace, -1, 6, "mean"), 0, None)
    return of, Growth(of, 1e-9, removal=True).grow()


@pytest.mark.parametrize("mlp", MLPS)
def test_a_writer_removed_from_an_mlp(mlp: str) -> None:
    config = Config(*(1, 2, 12, 6, 17, 8)).replace(mlp=mlp, d_mlp=10, positions="residual")
    of, found = removal(config)
    drops: dict[Site, float] = {}
    groups: dict[Site, list[Site]] = {}
    for one in found.edges:
        if one.kind in MLP_SIDES and isinstance(one.edge.reader, Source):
            drops[one.edge.start] = drops.get(one.edge.start, 0.0) + one.share
            both = [replace(one.edge, side=side) for side in MLP_SIDES]
            groups[one.edge.start] = both
    cuts = cut_effects(of, list(groups.values()))
    written = {node: cut for node, cut in zip(groups, cuts, strict=True) if cut is not None}
    assert len(written) == 3
    assert {node: drops[node] for node in written} == pytest.approx(written, abs=1e-9)


@pytest.mark.parametrize("positions", ["qk", "residual", "rotary"])
@pytest.mark.parametrize("score_cap", [None, 2.0])
def test_a_writer_removed_from_scores(positions: str, score_cap: float | None) -> None:
    config = Config(*(2, 2, 12, 6, 17, 8)).replace(positions=positions, score_cap=score_cap)
    of, found = removal(config)
    top = [one for one in found.edges if str(one.edge.reader).startswith("L1")]
    cuts = cut_effects(of, [[one.edge] for one in top])
    assert {side_of(one.edge) for one in top} == {Side.Q, Side.K, Side.V}
    for one, cut in zip(top, cuts, strict=True):
        assert cut is None or one.share == pytest.approx(cut, abs=1e-9), one.name


def test_a_step_is_found_although_its_neurons_cancel() -> None:
    """φ(10 x − 3) − φ(10 x − 4) is a step: at x = 1 the two slopes cancel, and shares are 0."""
    config = Config(1, 1, 2, 1, 2, 4, mlp="relu", d_mlp=2, positions="none")
    zeros = {name: torch.zeros(1, 1, 2, 1) for name in ("W_Q", "W_K", "W_V")}
    tensors = {
        **zeros,
        "W_O": torch.zeros(1, 1, 1, 2),
        "W_E": torch.tensor([[0.0, 0.0], [1.0, 0.0]]),
        "W_in": torch.tensor([[[10.0, 10.0], [0.0, 0.0]]]),
        "b_in": torch.tensor([[-3.0, -4.0]]),
        "W_out": torch.tensor([[[0.0, 1.0], [0.0, -1.0]]]),
        "W_U": torch.tensor([[0.0, 0.0], [0.0, 8.0]]),
    }
    found = from_tensors(config, tensors).trace([[0, 1]]).circuit(token=1)
    edge = found["embed@1→mlp0@1.g"]
    assert edge.share == 0
    assert edge.estimate("removal").value == pytest.approx(4.0)
    assert edge.strength > found.floor
