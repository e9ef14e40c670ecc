import pytest
from tests.explorer.variants import ALL

from pathsum.explorer.explorer import Explorer


@pytest.fixture(scope="session")
def explorer() -> Explorer:
    """The explorer of a small model, for tests that ask little of it."""
    return Explorer([ALL["two layers"]()])
