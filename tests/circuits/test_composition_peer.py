"""Composition scores beside transformer-lens, which lives in an environment of its own."""

import json
import subprocess
from pathlib import Path

import pytest
import torch

import pathsum as ps
from pathsum.circuits.reads_and_writes import KINDS

PEER = Path(__file__).parents[2] / ".venv-peers-tl4" / "bin" / "python"
PROGRAM = """
import json, sys, torch
from transformer_lens import FactoredMatrix
from transformer_lens.utilities.matrix import composition_scores
W = torch.load(sys.argv[1])
OV = FactoredMatrix(W["W_V"], W["W_O"])
QK = FactoredMatrix(W["W_Q"], W["W_K"].transpose(-2, -1))
found = [composition_scores(OV, right, broadcast_dims=True) for right in (QK, QK.T, OV)]
print(json.dumps([scores.flatten(2, 3).flatten(0, 1).tolist() for scores in found]))
"""


@pytest.mark.peers
def test_scores_are_those_of_transformer_lens(tmp_path: Path) -> None:
    if not PEER.exists():
        pytest.skip("transformer-lens is not installed: make peers")
    config = ps.Config(n_layers=3, n_heads=3, d_model=20, d_head=4, d_vocab=7, n_ctx=5)
    model = ps.random_model(config, dtype=torch.float64)
    names = ("W_Q", "W_K", "W_V", "W_O")
    stacked = {n: torch.stack([getattr(x, n) for x in model.weights.layers]) for n in names}
    torch.save(stacked, tmp_path / "weights.pt")
    command = [str(PEER), "-c", PROGRAM, str(tmp_path / "weights.pt")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    theirs = json.loads(done.stdout.strip().splitlines()[-1])
    ours = ps.composition(model)
    for kind, scores in zip(KINDS, theirs, strict=True):
        found = ours.scores(kind).score
        there = ~found.isnan()
        torch.testing.assert_close(found[there], torch.tensor(scores, dtype=torch.float64)[there])
