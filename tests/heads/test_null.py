"""Random heads: products with frames, and the heads that they stand for."""

import threading
import time

import pytest
import torch
from tests.algebra.factors import gaussian
from torch import Tensor

from pathsum.algebra.rotations import random_frames, root
from pathsum.heads.null import FrameProjector, RandomHeads, random_ov, to_triangular
from pathsum.heads.score import layer_ov, layer_views
from pathsum.model import Config, Model, from_tensors, random_model
from pathsum.text.token_pool import random_repeats


@pytest.mark.parametrize(("sequences", "length"), [(2, 3), (1, 7), (3, 5)])
def test_a_stream_in_its_own_basis_has_its_inner_products(sequences: int, length: int) -> None:
    x = gaussian(1, sequences, length, 8)
    own = to_triangular(x)
    rows = own.flatten(0, 1)
    assert rows.shape == (sequences * length, min(sequences * length, 8))
    assert not bool(rows.triu(1).any())
    torch.testing.assert_close(rows @ rows.mT, x.flatten(0, 1) @ x.flatten(0, 1).mT)
    frames = random_frames(5, 8, 3, torch.Generator().manual_seed(2))
    expected = torch.einsum("bpq,cqr->bcpr", own, frames[:, : rows.shape[1]])
    torch.testing.assert_close(FrameProjector(lambda: frames).project(own), expected)


def test_a_rotated_head_moves_what_its_matrices_do() -> None:
    d, k, vocab = 9, 4, 11
    W_V, W_O, W_U = gaussian(3, d, k), gaussian(4, k, d), gaussian(5, d, vocab)
    generator = torch.Generator().manual_seed(6)
    value, write = (random_frames(2, d, k, generator) for _ in range(2))
    tokens = torch.tensor([[1, 5, 10]])
    effects = torch.einsum("cdr,dbm->bcrm", write, W_U[:, tokens])
    core = root(W_V) @ root(W_O.mT).mT
    rotated = random_ov(
        FrameProjector(lambda: value), FrameProjector(lambda: write), core, lambda _: effects
    )
    # Two draws as two heads, their matrices made.
    own = layer_ov(value @ root(W_V), (write @ root(W_O.mT)).mT, W_U)
    read, stream = (gaussian(seed, 1, d, d).tril() for seed in (7, 8))
    pattern = gaussian(9, 1, 2, d, d).softmax(-1)
    found, expected = rotated.values(read), own.values(read)
    torch.testing.assert_close(rotated.logits(found, tokens), own.logits(expected, tokens))
    torch.testing.assert_close(
        rotated.overlaps(pattern @ found, stream), own.overlaps(pattern @ expected, stream)
    )


def test_threads_that_share_frames_do_not_wait_for_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = Config(n_layers=2, n_heads=1, d_model=8, d_head=2, d_vocab=9, n_ctx=5)
    null = RandomHeads(random_model(config), 3, seed=0)
    begun = threading.Event()

    def slow(x: Tensor) -> Tensor:
        begun.set()
        time.sleep(0.2)
        return to_triangular(x)

    monkeypatch.setattr("pathsum.heads.null.to_triangular", slow)
    first = threading.Thread(target=null.effects, args=(torch.tensor([[1, 2]]),), daemon=True)
    first.start()
    assert begun.wait(10)
    second = threading.Thread(target=lambda: null.frames("value"), daemon=True)
    second.start()
    first.join(10)
    second.join(10)
    assert not first.is_alive() and not second.is_alive()


def test_random_heads_without_biases_are_those_with_biases_of_zero() -> None:
    config = Config(1, 4, 12, 4, 20, 16, n_kv_heads=2)
    plain = random_model(config, seed=3, dtype=torch.float64)
    zero = torch.zeros(1, 4, 4, dtype=torch.float64)
    biased = from_tensors(config, {**stacked(plain), "b_Q": zero, "b_K": zero[:, :2]})
    probe = random_repeats(range(20), 5, 3, 2, start_token=0)
    found: list[Tensor] = []
    for model in (plain, biased):
        (view,) = layer_views(model.trace(probe.tokens), probe)
        drawn = RandomHeads(model, 6, seed=1).views(0, view, last=9)
        found.append(torch.stack([one.pattern for _, one in drawn]))
    assert found[0].shape == (4, 2, 6, 9, 16)
    torch.testing.assert_close(found[0], found[1])


def stacked(model: Model) -> dict[str, Tensor]:
    """A model's tensors as `from_tensors` takes them, of a single layer."""
    layer, weights = model.weights.layers[0], model.weights
    names = ("W_pos", "W_Q", "W_K", "W_V", "W_O")
    heads = {name: getattr(layer, name)[None] for name in names}
    return {"W_E": weights.W_E, "W_U": weights.W_U, **heads}
