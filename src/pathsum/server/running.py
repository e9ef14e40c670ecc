"""A server that runs: in the foreground for the command line, in a thread for a script."""

import atexit
import errno
import socket
import threading

import uvicorn

from pathsum.errors import FailedError, InputError
from pathsum.explorer.explorer import Explorer
from pathsum.server.app import make_app
from pathsum.server.guard import EVERYWHERE, Names, names_of

HOST, PORT = "127.0.0.1", 7321
# How long to wait for answers under way when the server is closed, and for it to begin.
PATIENCE_SECONDS = 2
START_SECONDS = 30
# How long a computation may take to its next step in Python, where it can be given up.
STOP_SECONDS = 60.0


class ExplorerServer:
    """The explorer at `url`.

    `run` serves in this thread until it is interrupted; `start` serves in another, and `close` ends
    it. The port is the default one, or a free one where that is taken; a port that was asked for
    and is taken is an error.
    """

    def __init__(self, explorer: Explorer, host: str = HOST, port: int | None = None) -> None:
        self.explorer = explorer
        self._socket = _listen(host, port)
        self.names: Names = names_of(host, self._socket.getsockname()[1])
        shown = HOST if host in EVERYWHERE else host
        self.url = f"http://{f'[{shown}]' if ':' in shown else shown}:{self.names.port}/"
        self._server = uvicorn.Server(
            uvicorn.Config(
                make_app(explorer, self.names),
                # What goes wrong in an answer the application itself logs; what is cut off by an
                # interrupt is no error.
                log_level="critical",
                access_log=False,
                lifespan="off",
                server_header=False,
                ws="none",
                timeout_graceful_shutdown=PATIENCE_SECONDS,
            )
        )
        self._thread: threading.Thread | None = None

    def run(self) -> None:
        """Serve until interrupted; an interrupt ends it cleanly.

        The server has a thread of its own here too. Threads that it makes end with the process, so
        an interrupt need not wait for an answer that takes minutes.
        """
        try:
            self.start()
            while self._thread is not None and self._thread.is_alive():
                self._thread.join(1.0)
        except KeyboardInterrupt:
            pass
        finally:
            self.close()

    def start(self) -> "ExplorerServer":
        """Serve in a thread of its own, until it is closed or the process ends."""
        # An interpreter that ends under a computation aborts.
        atexit.register(self.close)
        self._thread = threading.Thread(
            target=self._server.run,
            kwargs={"sockets": [self._socket]},
            name="pathsum explorer",
            daemon=True,
        )
        self._thread.start()
        waited = threading.Event()
        for _ in range(START_SECONDS * 100):
            if self._server.started:
                return self
            if not self._thread.is_alive():
                break
            waited.wait(0.01)
        raise FailedError(f"the explorer at {self.url} did not begin to serve")

    def close(self) -> None:
        """End it; answers that are under way are given up."""
        atexit.unregister(self.close)
        self._server.should_exit = True
        self.explorer.stop(STOP_SECONDS)
        if self._thread is not None:
            self._thread.join(PATIENCE_SECONDS + 5)
            # Questions may have come until it was gone.
            self.explorer.stop(STOP_SECONDS)
        self._socket.close()

    def __repr__(self) -> str:
        return f"ExplorerServer({self.explorer.name!r} at {self.url})"


def _listen(host: str, port: int | None) -> socket.socket:
    """A socket at the port; at a free one where none was asked for and the default is taken."""
    if port is not None and not 0 <= port < 2**16:
        raise InputError(f"{port} is no port; a number from 1 to 65535, or 0 for a free one, is")
    try:
        return _bound(host, PORT if port is None else port)
    except socket.gaierror as error:
        raise InputError(f"{host!r} is no address of this machine: {error.strerror}") from error
    except OSError as error:
        if port is None and error.errno == errno.EADDRINUSE:
            return _bound(host, 0)
        raise FailedError(
            f"nothing can listen at {host}, port {PORT if port is None else port}: "
            f"{error.strerror}; another port (--port), or none, would do"
        ) from error


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        # Listening from here on: whoever else wants this port is told that it is taken.
        listening.listen()
    except OSError:
        listening.close()
        raise
    return listening
