"""Random heads: products with frames, and the heads that they stand for."""

import threading
import time

import pytest
import torch
from tests.algebra.factors import gaussian
from torch import Tensor

from pathsum.algebra.rotations import random_frames, root
from pathsum.heads.layer_view import Framed, OwnOV, RandomFrames, RotatedOV, in_own_basis
from pathsum.model import Config, random_model


@pytest.mark.parametrize(("sequences", "length"), [(2, 3), (1, 7), (3, 5)])
def test_a_stream_in_its_own_basis_has_its_inner_products(sequences: int, length: int) -> None:
    x = gaussian(1, sequences, length, 8)
    own = in_own_basis(x)
    rows = own.flatten(0, 1)
    assert rows.shape == (sequences * length, min(sequences * length, 8))
    assert not bool(rows.triu(1).any())
    torch.testing.assert_close(rows @ rows.mT, x.flatten(0, 1) @ x.flatten(0, 1).mT)
    frames = random_frames(5, 8, 3, torch.Generator().manual_seed(2))
    expected = torch.einsum("bpq,cqr->bcpr", own, frames[:, : rows.shape[1]])
    torch.testing.assert_close(Framed(frames).of(own), expected)


def test_a_rotated_head_moves_what_its_matrices_do() -> None:
    d, k, vocab = 9, 4, 11
    W_V, W_O, W_U = gaussian(3, d, k), gaussian(4, k, d), gaussian(5, d, vocab)
    generator = torch.Generator().manual_seed(6)
    value, write = (random_frames(2, d, k, generator) for _ in range(2))
    tokens = torch.tensor([[1, 5, 10]])
    effects = torch.einsum("cdr,dbm->bcrm", write, W_U[:, tokens])
    core = root(W_V) @ root(W_O.mT).mT
    rotated = RotatedOV(Framed(value), Framed(write), core, lambda _: effects)
    # Two draws as two heads, their matrices made.
    own = OwnOV(value @ root(W_V), (write @ root(W_O.mT)).mT, W_U)
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
    frames = RandomFrames(random_model(config), 3, seed=0)
    begun = threading.Event()

    def slow(x: Tensor) -> Tensor:
        begun.set()
        time.sleep(0.2)
        return in_own_basis(x)

    monkeypatch.setattr("pathsum.heads.layer_view.in_own_basis", slow)
    first = threading.Thread(target=frames.effects, args=(torch.tensor([[1, 2]]),), daemon=True)
    first.start()
    assert begun.wait(10)
    second = threading.Thread(target=lambda: frames.of("value").frames, daemon=True)
    second.start()
    first.join(10)
    second.join(10)
    assert not first.is_alive() and not second.is_alive()
