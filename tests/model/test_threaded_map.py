"""Pieces of an analysis shared among threads: the list of a loop, and settings as before."""

import threading
from collections.abc import Generator

import pytest
import torch

from pathsum.model import Config, layers, random_model
from pathsum.model.processes import threaded_map


@pytest.fixture
def three_threads() -> Generator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("three_threads")
def test_results_are_in_order_and_threads_are_shared() -> None:
    together = threading.Barrier(3, timeout=60)
    seen: list[tuple[int, int, str]] = []

    def compute(piece: int) -> tuple[int, int, bool]:
        together.wait()  # passes only if three pieces are computed at a time
        return piece, torch.get_num_threads(), torch.is_grad_enabled()

    with torch.no_grad():
        found = threaded_map(range(6), compute, lambda *at: seen.append(at), "pieces")
    assert found == [(piece, 1, False) for piece in range(6)]
    assert seen == [(at, 6, "pieces") for at in range(7)]
    assert torch.get_num_threads() == 3
    # Threads that start later have the setting of the process too.
    later: list[int] = []
    thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert later == [3]


@pytest.mark.usefixtures("three_threads")
def test_an_error_ends_it_before_all_pieces_are_computed() -> None:
    computed: list[int] = []
    release = threading.Event()

    def compute(piece: int) -> int:
        computed.append(piece)
        if piece == 0:
            raise ValueError("the first piece")
        release.wait(timeout=60)
        return piece

    def progress(at: int, total: int, what: str) -> None:
        if at == 0:
            threading.Timer(0.2, release.set).start()

    with pytest.raises(ValueError, match="the first piece"):
        threaded_map(range(100), compute, progress)
    assert len(computed) < 20
    assert torch.get_num_threads() == 3


@pytest.mark.usefixtures("three_threads")
def test_a_canceled_map_computes_no_more() -> None:
    computed: list[int] = []

    def progress(at: int, total: int, what: str) -> None:
        if at == 2:
            raise InterruptedError

    def compute(piece: int) -> int:
        computed.append(piece)
        threading.Event().wait(0.01)
        return piece

    with pytest.raises(InterruptedError):
        threaded_map(range(1000), compute, progress)
    assert len(computed) < 100
    count = len(computed)
    threading.Event().wait(0.1)
    assert len(computed) == count


def test_layers_may_be_read_by_several_threads_while_others_drop_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each reading drops what another thread has just read."""
    monkeypatch.setattr(layers, "CONVERTED_HEADS_KEPT", 1)
    model = random_model(Config(4, 2, 8, 4, 11, 16)).to(torch.float64)
    expected = [model.weights.store.get(f"layers.{layer}.W_Q").double() for layer in range(4)]

    def read(piece: int) -> bool:
        return all(
            torch.equal(model.weights.attention[at % 4].W_Q, expected[at % 4])
            for at in range(piece, piece + 200)
        )

    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        assert all(threaded_map(range(4), read))
    finally:
        torch.set_num_threads(before)
