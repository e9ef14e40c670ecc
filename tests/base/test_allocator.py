"""Settings of glibc's allocator are accepted, and other systems are left alone."""

import ctypes
import sys

import pytest
import torch

from pathsum.base import allocator


def test_settings_are_those_that_glibc_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[int, int]] = []

    class Library:
        @staticmethod
        def mallopt(number: int, value: int) -> int:
            given.append((number, value))
            return 1

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Library)
    monkeypatch.setattr(sys, "platform", "linux")
    allocator.keep_freed_memory()
    allocator.return_freed_memory()
    # malloc.h: M_TRIM_THRESHOLD −1, M_TOP_PAD −2, M_MMAP_THRESHOLD −3, M_ARENA_MAX −8.
    assert [number for number, _ in given] == [-3, -1, -2, -8, -3]
    assert all(0 < value < 1 << 31 for _, value in given)  # the parameter is a C int
    given.clear()
    monkeypatch.setattr(sys, "platform", "darwin")
    allocator.keep_freed_memory()
    assert not given


def test_the_trimmer_waits_between_two_trims() -> None:
    trimmer = allocator.Trimmer()
    assert trimmer.due()
    assert not trimmer.due()
    torch.zeros(1000)
    trimmer.trim()
