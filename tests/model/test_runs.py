"""What a run refuses, in words: batches, hooks and offsets that do not fit, and overflow."""

from typing import Any

import pytest
import torch

import pathsum as ps
from pathsum.base import Site
from pathsum.base.errors import ConfigError, InputError
from pathsum.model import HeadId, Weights, trace_run
from pathsum.model.config import check_offset
from pathsum.model.edit import Edit
from pathsum.model.rotary import angular_frequencies
from pathsum.model.store import MemoryStore

SIZES = {"n_layers": 2, "n_heads": 2, "d_model": 6, "d_head": 4, "d_vocab": 9, "n_ctx": 8}
TOKENS = torch.tensor([[3, 1, 4], [1, 5, 8]])


def made(**changes: Any) -> ps.Model:
    return ps.random_model(ps.Config(**SIZES, **changes), seed=1, dtype=torch.float64)


def test_batches_of_different_sizes() -> None:
    edits = [
        Edit(Site(HeadId(0, head), value="z"), torch.zeros(3, 3, 4).double()) for head in (0, 1)
    ]
    with pytest.raises(InputError, match="have 2 and 3 sequences; use batches of the same size"):
        trace_run(made(), TOKENS, edits[:1])
    repeated = trace_run(made(), TOKENS[:1], edits)
    assert repeated.logits.shape == (3, 3, 9)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (torch.zeros(2, 3, 5), r"returned \[2, 3, 5\]; return a tensor of shape \[2, 3, 4\]"),
        (torch.zeros(2, 3), r"returned \[2, 3\]; return a tensor of shape \[2, 3, 4\]"),
        ("x", r"returned str; return a tensor of shape \[2, 3, 4\], like the one .*, or None"),
    ],
)
def test_what_a_hook_may_return(given: object, said: str) -> None:
    with pytest.raises(InputError, match=f"the hook on L1H0.z {said}"):
        made().trace(TOKENS, hooks={"L1H0.z": lambda _: given})


def test_a_hook_may_return_nothing_or_another_precision() -> None:
    model = made()
    plain = model.trace(TOKENS)
    seen = list[torch.Tensor]()
    assert torch.equal(model.trace(TOKENS, hooks={"L1H0.z": seen.append}).logits, plain.logits)
    assert torch.equal(seen[0], plain.z(1)[:, 0])
    low = model.trace(TOKENS, hooks={"L1H0.z": lambda z: z.float()})
    assert low.logits.dtype == torch.float64
    torch.testing.assert_close(low.logits, plain.logits, rtol=1e-5, atol=1e-5)
    assert not torch.equal(low.logits, plain.logits)


def test_offsets() -> None:
    rotary = made(positions="rotary").config
    check_offset(made().config, None)
    for offset in (0, 7):
        check_offset(rotary, offset)
    for offset in (-1, 8):
        with pytest.raises(
            InputError,
            match=f"offset={offset} is out of range: .* from 0 to 7 in a context of 8",
        ):
            check_offset(rotary, offset)
    with pytest.raises(InputError, match="offset=0 was given, but with positions='qk' QK is the"):
        check_offset(made().config, 0)


def test_frequencies_fall_by_the_base_and_their_factors() -> None:
    config = made(positions="rotary", rotary_base=100.0).config
    expected = torch.tensor([1.0, 0.1], dtype=torch.float64)
    torch.testing.assert_close(angular_frequencies(config), expected)
    slower = config.replace(rotary_factors=(2.0, 8.0))
    torch.testing.assert_close(
        angular_frequencies(slower), expected / torch.tensor([2.0, 8.0]).double()
    )
    local = config.replace(rotary_local_base=10.0, windows=(2, None))
    with pytest.raises(ConfigError, match=r"layers rotate differently: pass config.at\(layer\)"):
        angular_frequencies(local)


def test_a_run_that_overflows() -> None:
    tensors = {name: tensor.float() * 1e30 for name, tensor in made().weights.items()}
    model = ps.Model(Weights(made().config, MemoryStore(tensors)), "huge")
    with pytest.raises(InputError, match="the run overflowed torch.float32: .* or use float64"):
        model.trace(TOKENS)
