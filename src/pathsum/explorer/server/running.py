"""`explore` and `ExplorerServer`: open the explorer in a notebook, a script or a shell.

The server runs in the foreground for the command line, and in a thread for a script.

A notebook (Jupyter, marimo) shows a widget that communicates over the notebook's connection, which
needs the extra `notebook` (anywidget). Questions are messages `{id, name, params}`; an answer is
a message `{id}` with its bytes, an error a message `{id, error, kind}`.
"""

import atexit
import errno
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import uvicorn

from pathsum.base.errors import FailedError, InputError, PathsumError
from pathsum.base.options import checked
from pathsum.explorer import bundle
from pathsum.explorer.explorer import Explorer
from pathsum.explorer.server.app import make_app
from pathsum.explorer.server.guard import (
    ALL_INTERFACES,
    LOOPBACK,
    Access,
    Names,
    check_token,
    connections,
    make_token,
    names_of,
)
from pathsum.model import Model

HEIGHT = 760


def explorer_widget(explorer: Explorer, *, height: int = HEIGHT, place: str = "") -> Any:
    """A widget that shows the explorer, `height` pixels high.

    `place` is the view to open, as in the explorer's URL after the `#`.
    """
    try:
        import anywidget
        import traitlets
    except ModuleNotFoundError as error:
        raise FailedError(
            f"showing the explorer in a notebook needs {error.name}, which is not installed; "
            "pip install 'pathsum[notebook]'"
        ) from error

    class ExplorerWidget(anywidget.AnyWidget):
        """The explorer of one or several models."""

        _esm = bundle.read(bundle.SCRIPT).decode("utf-8")
        # Not `style`: Jupyter widgets have a trait of that name, which is itself a widget.
        page_style = traitlets.Unicode(bundle.read(bundle.STYLE).decode("utf-8")).tag(sync=True)
        height = traitlets.Int(HEIGHT).tag(sync=True)
        place = traitlets.Unicode("").tag(sync=True)

    widget = ExplorerWidget(height=height, place=place)

    widget.on_msg(lambda sender, content, _: reply(explorer, sender, content))
    return widget


def reply(explorer: Explorer, sender: Any, content: Any) -> None:
    """Answer one message; messages without an id are ignored."""
    if not isinstance(content, dict) or not isinstance(content.get("id"), int):
        return
    message, name, params = content["id"], content.get("name"), content.get("params", {})
    try:
        if not isinstance(name, str) or not isinstance(params, dict):
            raise InputError("a question has a name and an object of parameters")
        wire = explorer.ask(name, params)
    except PathsumError as error:
        sender.send({"id": message, "error": str(error), "kind": type(error).__name__})
    else:
        sender.send({"id": message}, buffers=[wire])


HOST, PORT = "127.0.0.1", 7321
# Timeouts for pending answers on closing, and for the start of the server.
SHUTDOWN_SECONDS = 2
START_SECONDS = 30
# The longest time between two progress reports of a computation, which can end only there.
STOP_SECONDS = 60.0
# The largest number of open connections and of connections not yet accepted; the time that an idle
# connection stays open; and the longest head of a request, in bytes.
MAX_CONNECTIONS, BACKLOG, KEEP_ALIVE_SECONDS, MAX_HEAD_BYTES = 128, 128, 15, 2**16


@checked
def explore(
    *models: str | Path | Model,
    place: str = "",
    port: int | None = None,
    token: str | None = None,
) -> "ExplorerServer | Any":
    """Open the explorer: as a widget in a notebook, as a server in a thread elsewhere.

    Args:
        models: Models, names or folders to open. They can be compared; the page opens with the
            first.
        place: The view to open, as in the explorer's URL after the `#`.
        port: The port of the server; by default 7321, or a free one if that is taken.
        token: The token in the URL, by default a random one; "" gives every user of this machine
            access without a token.

    Returns:
        The widget, or the server with its `url` and `close()`.

    Example:
        ```python
        ps.explore(model)  # at the end of a cell of Jupyter or marimo
        page = ps.explore("two-layer")  # in a script: page.url, and page.close()
        ```

    A server in a thread ends with the process; for a persistent server, use `pathsum explore`.
    """
    explorer = Explorer(models)
    if in_notebook():
        return explorer_widget(explorer, place=place)
    return ExplorerServer(explorer, HOST, port, token).start()


def in_notebook() -> bool:
    """Whether this runs in a marimo notebook or a Jupyter kernel, which can show widgets."""
    marimo, ipython = sys.modules.get("marimo"), sys.modules.get("IPython")
    if marimo is not None and marimo.running_in_notebook():
        return True
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")


class ExplorerServer:
    """The explorer at `address`; `url` is the link that opens it, with its token.

    `run` serves until it is interrupted; `start` serves in another thread until `close`. Without a
    port, the default port is used, or a free one if it is taken; a port that is given and taken is
    an error. The token is random by default. `token=""` disables it, which requires `allow_anyone`
    if other machines can reach the address.
    """

    def __init__(
        self,
        explorer: Explorer,
        host: str = HOST,
        port: int | None = None,
        token: str | None = None,
        allow_anyone: bool = False,
    ) -> None:
        _check_host(host, token, allow_anyone)
        self.explorer = explorer
        self.token = make_token() if token is None else check_token(token)
        self._socket = _listen(host, port)
        self.names: Names = names_of(host, self._socket.getsockname()[1])
        name = HOST if host in ALL_INTERFACES else host
        self.address = f"http://{f'[{name}]' if ':' in name else name}:{self.names.port}/"
        self.url = f"{self.address}?token={self.token}" if self.token else self.address
        access = Access(self.token, self.names.port)
        self._server = uvicorn.Server(
            uvicorn.Config(
                make_app(explorer, self.names, access),
                http=connections(access, MAX_CONNECTIONS),
                loop="asyncio",
                backlog=BACKLOG,
                # Reached only by clients with the token: other connections are closed earlier.
                limit_concurrency=2 * MAX_CONNECTIONS,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                h11_max_incomplete_event_size=MAX_HEAD_BYTES,
                # The application logs errors of answers; requests that an interrupt ends are not
                # errors.
                log_level="critical",
                access_log=False,
                lifespan="off",
                server_header=False,
                ws="none",
                timeout_graceful_shutdown=SHUTDOWN_SECONDS,
            )
        )
        self._thread: threading.Thread | None = None

    def run(self) -> None:
        """Serve until interrupted.

        The server runs in a daemon thread, so that an interrupt does not wait for an answer that
        takes minutes.
        """
        try:
            self.start()
            # Not `join`: after an interrupt, `join` of Python 3.11 believes that the thread ended.
            timer = threading.Event()
            while self._thread is not None and self._thread.is_alive():
                timer.wait(1.0)
        except KeyboardInterrupt:
            pass
        finally:
            self.close()

    def start(self) -> "ExplorerServer":
        """Serve in a thread until `close`, or until the process ends."""
        # An interpreter that exits during a computation crashes.
        atexit.register(self.close)
        self._thread = threading.Thread(
            target=self._server.run,
            kwargs={"sockets": [self._socket]},
            name="pathsum explorer",
            daemon=True,
        )
        self._thread.start()
        timer = threading.Event()
        for _ in range(START_SECONDS * 100):
            if self._server.started:
                return self
            if not self._thread.is_alive():
                break
            timer.wait(0.01)
        raise FailedError(f"the explorer at {self.address} did not start")

    def close(self) -> None:
        """Stop serving and cancel pending answers."""
        atexit.unregister(self.close)
        self._server.should_exit = True
        self.explorer.stop(STOP_SECONDS)
        if self._thread is not None:
            self._thread.join(SHUTDOWN_SECONDS + 5)
            # Questions may have arrived before the thread ended.
            self.explorer.stop(STOP_SECONDS)
        self._socket.close()

    def __repr__(self) -> str:
        return f"ExplorerServer({self.explorer.name!r} at {self.url})"


def _check_host(host: str, token: str | None, allow_anyone: bool) -> None:
    if not host.strip():
        raise InputError(
            "the host is empty, which would listen on all interfaces; use 127.0.0.1 for this "
            "machine only, or 0.0.0.0 for all interfaces"
        )
    if token == "" and host not in LOOPBACK and not allow_anyone:
        raise InputError(
            f"without a token, everyone who can reach {host} could use the explorer; leave out "
            "--token '', or add --allow-anyone-on-the-network"
        )


def _listen(host: str, port: int | None) -> socket.socket:
    """A listening socket at `port`; by default at 7321, or at a free port if that is taken."""
    if port is not None and not 0 <= port < 2**16:
        raise InputError(f"{port} is not a port; use 1 to 65535, or 0 for a free one")
    try:
        return _bind(host, PORT if port is None else port)
    except (socket.gaierror, TypeError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, socket.gaierror) else error
        raise InputError(f"{host!r} is not an address of this machine: {reason}") from error
    except OSError as error:
        if port is None and error.errno == errno.EADDRINUSE:
            return _bind(host, 0)
        raise FailedError(
            f"cannot listen at {host}, port {PORT if port is None else port}: "
            f"{error.strerror}; choose another port (--port), or none for a free one"
        ) from error


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        # Listen at once, so that other processes find the port taken.
        listener.listen(BACKLOG)
    except (OSError, TypeError, UnicodeError):
        listener.close()
        raise
    return listener
