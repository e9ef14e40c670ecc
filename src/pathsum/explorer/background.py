"""Background: slow answers about the open models, computed while no question is asked."""

import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pathsum.errors import PathsumError
from pathsum.explorer.in_flight import CanceledError, StoppedError

if TYPE_CHECKING:
    from pathsum.explorer.explorer import Explorer

# How long nothing must have been asked before a computation begins, how often it looks whether
# something is being asked, and how long it waits on closing.
IDLE_SECONDS, LOOK_SECONDS, STOP_SECONDS = 2.0, 0.05, 5.0


class Background:
    """One thread that asks the slow questions of the open models, one after another.

    It waits at every progress report while other questions are being computed, unless those wait
    for what it computes.
    """

    def __init__(self, explorer: "Explorer") -> None:
        self._explorer = explorer
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin, once."""
        if self._thread is None:
            self._stopped.clear()
            self._thread = threading.Thread(
                target=self._run, name="pathsum background", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """End at the next progress report; `Explorer.stop` aborts what reports none."""
        self._stopped.set()
        self._thread = None

    def _run(self) -> None:
        try:
            for name, params in self._questions():
                self._wait_until_idle()
                try:
                    self._explorer.ask_in_background(name, params, self._report)
                except PathsumError:
                    continue  # raised again for the one who asks it
        except StoppedError:
            return

    def _questions(self) -> Iterator[tuple[str, dict[str, object]]]:
        models = self._explorer.workbench.models
        for place, one in enumerate(models):
            params: dict[str, object] = {} if place == 0 else {"model": one.name}
            if one.model.config.n_layers:
                yield "composition", params
                yield "atlas", params
            if one.run is not None:
                yield "training", params

    def _wait_until_idle(self) -> None:
        since = time.monotonic()
        while time.monotonic() - since < IDLE_SECONDS:
            if self._explorer.asked:
                since = time.monotonic()
            self._look()

    def _report(self, done: int, total: int, what: str) -> None:  # noqa: ARG002
        while self._explorer.asked and not self._explorer.waiting:
            self._look()
        self._look(0.0)

    def _look(self, seconds: float = LOOK_SECONDS) -> None:
        if self._stopped.wait(seconds):
            raise CanceledError
