"""Head scores beside transformer-lens's head detector, which lives in an environment of its own.

Its score is the share of *all* attention that falls on the wanted places, the first row and the
first copy included, where nothing can be wanted. So it is ours times the share of rows that count:
(n − 1)/n for previous tokens, and (repeats − 1)·length/n for duplicates and prefix matching, which
is 25/51 = 0.49 at best on a block of 25 tokens shown twice.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

import pathsum as ps
from pathsum.heads.probe import DUPLICATE_TOKEN, PREFIX_MATCHING, PREVIOUS_TOKEN
from pathsum.heads.score import layer_views
from pathsum.model import Model
from pathsum.text.token_pool import RepeatedTokens, random_repeats

PEER = Path(__file__).parents[2] / ".venv-peers-tl3" / "bin" / "python"
PROGRAM = """
import json, sys, torch
from transformer_lens import HookedTransformer, HookedTransformerConfig
from transformer_lens.head_detector import detect_head

def told(given):
    config = HookedTransformerConfig(
        **given["sizes"], attn_only=True, positional_embedding_type="shortformer",
        normalization_type=None, dtype=torch.float64, device="cpu",
    )
    model = HookedTransformer(config)
    state = {
        name: value if name.endswith(("mask", "IGNORE")) else torch.zeros_like(value)
        for name, value in model.state_dict().items()
    }
    state["embed.W_E"], state["pos_embed.W_pos"] = given["W_E"], given["W_pos"]
    state["unembed.W_U"] = given["W_U"]
    for layer in range(config.n_layers):
        for name in ("W_Q", "W_K", "W_V", "W_O"):
            state[f"blocks.{layer}.attn.{name}"] = given[name][layer]
    model.load_state_dict(state)
    model.to_tokens = lambda row: given["tokens"][int(row)][None]
    found = {"logits": model(given["tokens"][:1])[0, -1].tolist()}
    for name in ("previous_token_head", "duplicate_token_head", "induction_head"):
        rows = [detect_head(model, str(row), name) for row in range(len(given["tokens"]))]
        found[name] = torch.stack(rows).mean(0).flatten().tolist()
    return found

print(json.dumps([told(given) for given in torch.load(sys.argv[1])]))
"""


def case(model: Model, length: int, repeats: int) -> tuple[Model, RepeatedTokens]:
    """A model and a probe for it."""
    return model, random_repeats(
        model.token_pool().ids(), length, repeats, sequences=3, start_token=0
    )


def given(model: Model, probe: RepeatedTokens) -> dict[str, Any]:
    """The same weights and tokens for the other side."""
    names = ("W_Q", "W_K", "W_V", "W_O")
    layers, sizes = model.weights.layers, ("n_layers", "n_heads", "d_model", "d_head", "d_vocab")
    return {
        **{name: torch.stack([getattr(layer, name) for layer in layers]) for name in names},
        "W_E": model.weights.W_E,
        "W_U": model.weights.W_U,
        "W_pos": layers[0].W_pos,
        "sizes": {name: getattr(model.config, name) for name in (*sizes, "n_ctx")},
        "tokens": probe.tokens,
    }


@pytest.mark.peers
def test_scores_are_those_of_transformer_lens_but_for_the_rows_that_count(tmp_path: Path) -> None:
    if not PEER.exists():
        pytest.skip("transformer-lens 3.9 is not installed: make peers")
    built = ps.construct.induction(n_ctx=64, dtype=torch.float64)
    config = ps.Config(2, 3, 24, 8, 60, 64, start_token=0)
    random = ps.random_model(config, dtype=torch.float64)
    cases = [case(built, 25, 2), case(built, 15, 4), case(random, 25, 2), case(random, 15, 4)]
    torch.save([given(*one) for one in cases], tmp_path / "given.pt")
    command = [str(PEER), "-c", PROGRAM, str(tmp_path / "given.pt")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    peers = json.loads(done.stdout.strip().splitlines()[-1])
    for (model, probe), peer in zip(cases, peers, strict=True):
        trace = model.trace(probe.tokens)
        logits = torch.tensor(peer["logits"], dtype=torch.float64)
        torch.testing.assert_close(trace.logits[0, -1], logits)  # the same model
        size, later = probe.tokens.shape[1], (probe.repeats - 1) * probe.length
        for name, measure, rows in (
            ("previous_token_head", PREVIOUS_TOKEN.measure, size - 1),
            ("duplicate_token_head", DUPLICATE_TOKEN.measure, later),
            ("induction_head", PREFIX_MATCHING.measure, later),
        ):
            ours = torch.cat([measure(view).mean(0) for view in layer_views(trace, probe)])
            found = torch.tensor(peer[name], dtype=torch.float64)
            torch.testing.assert_close(found, ours * rows / size)
    # A perfect induction head, on a block shown twice.
    assert max(peers[0]["induction_head"]) == pytest.approx(25 / 51, abs=1e-3)
