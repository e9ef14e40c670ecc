from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.training.tiny import write_text


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus that all tests of training share."""
    return write_text(tmp_path_factory.mktemp("text") / "words.jsonl")


@pytest.fixture(autouse=True, scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache folder of the tests' own."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("PATHSUM_CACHE", str(folder))
        yield folder


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs here save every few milliseconds; waiting for a disk each time would be most of them."""
    monkeypatch.setattr("pathsum.base.files._flush_to_disk", lambda file: None)
