"""Guard: rejects requests that do not come from the server's own pages.

Every web page that is open on the machine can reach a server on 127.0.0.1. Three checks keep them
out. The Host header must be a name that the server listens under, which defeats DNS rebinding. The
Origin of a question, if the browser sends one, must be one of these names too, and `Sec-Fetch-Site`
must not name another site. And no response carries a CORS header, so that a browser does not show
it to a foreign page.
"""

import socket
from collections.abc import Iterable
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
ALL_INTERFACES = ("0.0.0.0", "::", "[::]")


@dataclass(frozen=True)
class Names:
    """The host names that a server answers to, and its port."""

    hosts: tuple[str, ...]
    port: int

    @property
    def authorities(self) -> frozenset[str]:
        """The values that a Host header may have."""
        with_port = {f"{host}:{self.port}" for host in self.hosts}
        return frozenset(with_port | set(self.hosts) if self.port == 80 else with_port)

    def allows_host(self, host: str | None) -> bool:
        """Whether a Host header names this server."""
        return host is not None and host.lower() in self.authorities

    def allows_origin(self, origin: str | None) -> bool:
        """Whether an Origin header, if there is one, names this server."""
        if origin is None:
            return True
        scheme, _, authority = origin.lower().partition("://")
        return scheme == "http" and authority in self.authorities


def names_of(host: str, port: int) -> Names:
    """The names of a server that listens on an address: those of loopback, and the address itself.

    A server that listens on all interfaces answers to the machine's name and addresses.
    """
    known: list[str] = [*LOOPBACK]
    if host in ALL_INTERFACES:
        known += _machine_names()
    elif host not in LOOPBACK:
        known.append(f"[{host}]" if ":" in host else host)
    return Names(tuple(dict.fromkeys(name.lower() for name in known)), port)


def _machine_names() -> list[str]:
    name = socket.gethostname()
    found = [name, socket.getfqdn()]
    try:
        addresses = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:  # the machine cannot resolve its own name
        return found
    for family, _, _, _, address in addresses:
        text = str(address[0])
        found.append(f"[{text}]" if family == socket.AF_INET6 else text)
    return found


class Guard:
    """Rejects foreign requests and sets the headers of every response."""

    def __init__(self, app: ASGIApp, names: Names) -> None:
        self.app, self.names = app, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or reject it."""
        if scope["type"] != "http":
            return  # neither websockets nor lifespan events are supported

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_raw(HEADERS.items())]
            await send(message)

        refusal = self._refusal(scope["method"], Headers(scope=scope))
        await (refusal or self.app)(scope, receive, send_with_headers)

    def _refusal(self, method: str, headers: Headers) -> Response | None:
        if len(headers.getlist("host")) != 1 or not self.names.allows_host(headers.get("host")):
            known = ", ".join(sorted(self.names.authorities))
            return refuse(
                421, f"this server answers only to {known}; open it under one of these names"
            )
        if method in ("GET", "HEAD"):
            return None
        same_site = headers.get("sec-fetch-site", "same-origin") in ("same-origin", "none")
        if not same_site or not self.names.allows_origin(headers.get("origin")):
            return refuse(403, "questions are accepted only from this server's own pages")
        return None


def refuse(status: int, error: str, kind: str = "Refused") -> Response:
    """An error response with a sentence that says why."""
    return JSONResponse({"error": error, "kind": kind}, status_code=status)


def _raw(headers: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode()) for name, value in headers]
