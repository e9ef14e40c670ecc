"""Ctrl-C and SIGTERM as a wish to stop: heard between steps, where a run can be saved whole."""

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass
class StopRequest:
    """Whether somebody has asked the run to stop."""

    asked: bool = False


@contextmanager
def listening() -> Generator[StopRequest]:
    """Note the first signal; a second one ends the process the usual way, at once."""
    wish = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield wish  # signals are only delivered to the main thread
        return
    signals = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in signals}

    def note(number: int, _: FrameType | None) -> None:
        wish.asked = True
        signal.signal(number, before[signal.Signals(number)])

    for number in signals:
        signal.signal(number, note)
    try:
        yield wish
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
