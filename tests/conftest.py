"""How every test runs.

Identities are tested in float64, where a wrong formula cannot hide behind rounding, and once more
in float32, where a promotion that should not happen shows. The default dtype stays torch's own
(float32): changing it here would hide a tensor that the library makes without saying which dtype it
means. Say `dtype=torch.float64` where a test makes its tensors.

Randomness is named: a seed or a `torch.Generator` drawn or written in the test. The global
generator is seeded before each test only so that an oversight does not make a test depend on the
ones before it.
"""

import dataclasses
import functools
import os
import signal
import sys
from collections import Counter
from typing import Any

import jaxtyping
import pytest
import torch
from hypothesis import HealthCheck, settings

# The same examples on every run and every machine, however slow. To search further:
# pytest --hypothesis-profile=search
settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "search", settings.get_profile("repeatable"), derandomize=False, max_examples=2000
)
settings.load_profile("repeatable")


def pytest_configure() -> None:
    """One thread each: the tensors are small, and threads would only wait for each other.

    A shell starts background jobs with interrupts ignored, which would pass on to every process
    that a test starts and interrupts.
    """
    torch.set_num_threads(1)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


CHECKED_CALLS = 8
"""In each test, run-time type checks apply to this many calls of each function."""
_calls: Counter[object] = Counter()
_check_all_calls = jaxtyping.jaxtyped


def _check_first_calls(*context: Any, typechecker: Any = None) -> Any:
    """`jaxtyping.jaxtyped` for the first calls of a function in each test.

    A check takes longer than most small functions, and functions that are called often are called
    with the same types. With a `context`, it is jaxtyping's own context manager.
    """
    if context:
        return _check_all_calls(*context)

    def decorate(target: Any) -> Any:
        if isinstance(target, type):
            made = vars(target).get("__init__")
            if dataclasses.is_dataclass(target) and not hasattr(made, "__wrapped__"):
                target.__init__ = decorate(target.__init__)
            return target
        checked = _check_all_calls(target, typechecker=typechecker)
        # Its code, because a function that was made in another one keeps that one's values alive.
        code = getattr(target, "__code__", target)

        @functools.wraps(target)
        def call(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            _calls[code] += 1
            return (checked if _calls[code] <= CHECKED_CALLS else target)(*args, **kwargs)

        return call

    return decorate


# The import hook of jaxtyping decorates pathsum's functions with this name.
jaxtyping.jaxtyped = _check_first_calls


@pytest.fixture(autouse=True)
def _same_start_for_every_test() -> None:
    _calls.clear()
    torch.manual_seed(0)
    torch.set_num_threads(1)  # work that is shared among threads leaves the number it found


def pytest_sessionfinish() -> None:
    """Under `make coverage`, save what was measured: a worker that ends late is killed."""
    if "coverage" in sys.modules:
        measuring = sys.modules["coverage"].Coverage.current()
        if measuring is not None:
            measuring.save()


# Run-time type checks triple the time of most tests, and a few examples meet every signature.
EXAMPLES_WITH_TYPE_CHECKS = 4


def _most_examples(config: pytest.Config) -> int:
    """How many examples of each property are tested at most; 0 for all of them.

    PATHSUM_EXAMPLES decides if it is set. Otherwise a run with type checks (`make test-types`) is
    limited to a few, unless it has another profile.
    """
    if "PATHSUM_EXAMPLES" in os.environ:
        return int(os.environ["PATHSUM_EXAMPLES"])
    checked = config.getoption("--jaxtyping-packages", default=None)
    profile = config.getoption("--hypothesis-profile", default=None)
    return EXAMPLES_WITH_TYPE_CHECKS if checked and not profile else 0


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Limit the examples of properties, see `_most_examples`."""
    most = _most_examples(config)
    for item in items if most else ():
        test = getattr(item, "obj", None)
        test = getattr(test, "__func__", test)
        if getattr(test, "is_hypothesis_test", False):
            drawn = getattr(test, "_hypothesis_internal_use_settings", None) or settings()
            few = settings(drawn, max_examples=min(most, drawn.max_examples))
            test._hypothesis_internal_use_settings = few  # pyright: ignore[reportOptionalMemberAccess]
