"""Access control: rejects requests that do not come from the server's own pages.

Every web page that is open on the machine, and every user of the machine, can reach a server on
127.0.0.1; with `--host`, the network can reach it too. Four checks protect the server:

1. The Host header must be one of the server's names, which defeats DNS rebinding.
2. The request must carry the server's token.
3. The Origin of a question, if the browser sends one, must be one of the server's names, and
   `Sec-Fetch-Site` must not name another site.
4. No response has a CORS header, so browsers do not show responses to pages of other sites.

The token is random, new at each start, and part of the link that is opened and printed. The page
stores it in the browser's storage, which belongs to one port, and sends it with each question as
`Authorization: Bearer TOKEN`. Opening the link also sets a cookie. Browsers send cookies to every
port of a host, so the cookie contains a hash of the token, which gives access only to the files of
the page.

Clients with the token take precedence: a rejected request closes its connection, and if there are
too many connections, the oldest one without the token is aborted (`connections`).
"""

import asyncio
import re
import secrets
import socket
from base64 import b64encode
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from pathsum.base.errors import InputError

# 256 random bits.
TOKEN_BYTES = 32
MIN_CHARACTERS, MAX_CHARACTERS = 16, 256

SIGN_IN = Path(__file__).with_name("sign_in.html").read_text(encoding="utf-8")
# Submitting a form drops the URL fragment, the state of the page; the script of the form keeps it.
_KEEP_STATE = SIGN_IN.partition("<script>")[2].partition("</script>")[0]
KEEP_STATE_HASH = b64encode(sha256(_KEEP_STATE.encode()).digest()).decode()


def make_token() -> str:
    """A random token."""
    return secrets.token_urlsafe(TOKEN_BYTES)


def check_token(token: str) -> str:
    """A token chosen by the user, checked; the empty string disables tokens."""
    if token and not re.fullmatch(r"[A-Za-z0-9_-]+", token):
        raise InputError(
            "a token may contain only letters, digits, - and _, because it is part of a link"
        )
    if token and not MIN_CHARACTERS <= len(token) <= MAX_CHARACTERS:
        raise InputError(
            f"the token has {len(token)} characters; use {MIN_CHARACTERS} to {MAX_CHARACTERS}, or "
            "leave it out for a random one"
        )
    return token


@dataclass(frozen=True)
class Access:
    """The token of requests, and the cookie that gives access to the files of the page.

    All ports of a host share their cookies, so other servers on this machine receive the cookie:
    its name contains the port, and its value is not the token.
    """

    token: str
    port: int

    @property
    def cookie(self) -> str:
        """The name of the cookie."""
        return f"pathsum-{self.port}"

    @property
    def page_key(self) -> str:
        """The value of the cookie."""
        return sha256(f"the files of the page for {self.token}".encode()).hexdigest()

    def in_link(self, scope: Scope) -> bool:
        """Whether a request has the token in its URL."""
        tokens = parse_qs(scope["query_string"].decode("latin-1")).get("token", [])
        return len(tokens) == 1 and self._matches(tokens[0])

    def allows(self, scope: Scope) -> bool:
        """Whether a request carries the token, or requests a file of the page with the cookie."""
        if not self.token or self.in_link(scope):
            return True
        headers = Headers(scope=scope)
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._matches(token.strip()):
            return True
        if scope["method"] not in ("GET", "HEAD"):
            return False
        return any(compare_digest(value, self.page_key) for value in self._cookies(headers))

    def set_cookie(self) -> str:
        """The Set-Cookie header: hidden from scripts, and not sent with requests of other sites."""
        return f"{self.cookie}={self.page_key}; Path=/; HttpOnly; SameSite=Strict"

    def _cookies(self, headers: Headers) -> list[str]:
        # Not http.cookies, which drops everything after a malformed cookie of another server.
        cookies = [cookie_parser(line) for line in headers.getlist("cookie")]
        values = [each[self.cookie] for each in cookies if self.cookie in each]
        return [value for value in values if value.isascii()]

    def _matches(self, token: str) -> bool:
        return compare_digest(token.encode("utf-8", "replace"), self.token.encode())


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

LOOPBACK = ("127.0.0.1", "localhost", "::1", "[::1]")
ALL_INTERFACES = ("0.0.0.0", "::", "[::]")


@dataclass(frozen=True)
class Names:
    """The host names of a server, and its port."""

    hosts: tuple[str, ...]
    port: int

    @property
    def authorities(self) -> frozenset[str]:
        """The valid values of the Host header."""
        with_port = {f"{host}:{self.port}" for host in self.hosts}
        return frozenset(with_port | set(self.hosts) if self.port == 80 else with_port)

    def allows_host(self, host: str | None) -> bool:
        """Whether a Host header names this server."""
        return host is not None and host.lower() in self.authorities

    def allows_origin(self, origin: str | None) -> bool:
        """Whether an Origin header, if there is one, names this server."""
        scheme, _, authority = (origin or "").lower().partition("://")
        return origin is None or (scheme == "http" and authority in self.authorities)


def names_of(host: str, port: int) -> Names:
    """The names of a server that listens on an address: loopback names, and the address.

    A server that listens on all interfaces has the names and addresses of the machine. IPv6
    addresses are in brackets, as in headers and links.
    """
    hosts = [*LOOPBACK, *(_machine_names() if host in ALL_INTERFACES else [host])]
    names = dict.fromkeys(name.strip("[]").lower() for name in hosts)
    return Names(tuple(f"[{name}]" if ":" in name else name for name in names), port)


def _machine_names() -> list[str]:
    name = socket.gethostname()
    names = [name, socket.getfqdn()]
    with suppress(OSError):  # the machine cannot resolve its own name
        addresses = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        names += [str(address[0]) for *_, address in addresses]
    return names


class Guard:
    """Rejects foreign requests and sets the headers of every response."""

    def __init__(self, app: ASGIApp, names: Names, access: Access) -> None:
        self.app, self.names, self.access = app, names, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request to the application, or reject it."""
        if scope["type"] != "http":
            return  # neither websockets nor lifespan events are supported
        refusal = self._refusal(scope, Headers(scope=scope))
        headers = dict(HEADERS)
        if refusal is not None:
            # Otherwise further requests on this connection would be read.
            headers["Connection"] = "close"
        elif self.access.token and self.access.in_link(scope):
            headers["Set-Cookie"] = self.access.set_cookie()

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                fields = MutableHeaders(scope=message)
                for name, value in headers.items():
                    fields.setdefault(name, value)
            await send(message)

        await (refusal or self.app)(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        if len(headers.getlist("host")) != 1 or not self.names.allows_host(headers.get("host")):
            names = ", ".join(sorted(self.names.authorities))
            return refuse(
                421, f"this server answers only to {names}; open it under one of these names"
            )
        if not self.access.allows(scope):
            return _ask_for_token(scope)
        if scope["method"] in ("GET", "HEAD"):
            return None
        same_site = headers.get("sec-fetch-site", "same-origin") in ("same-origin", "none")
        if not same_site or not self.names.allows_origin(headers.get("origin")):
            return refuse(403, "questions are accepted only from this server's own pages")
        return None


def _ask_for_token(scope: Scope) -> Response:
    """A page with a field for the token if the page was requested; otherwise an error message."""
    if scope["method"] == "GET" and scope["path"] == "/":
        policy = CONTENT_SECURITY_POLICY.replace("form-action 'none'", "form-action 'self'")
        policy = policy.replace("script-src 'self'", f"script-src 'sha256-{KEEP_STATE_HASH}'")
        return HTMLResponse(SIGN_IN, 401, headers={"Content-Security-Policy": policy})
    return refuse(
        401,
        "this request has no valid token; open the link that pathsum printed at its last start",
        "TokenNeeded",
    )


def refuse(status: int, error: str, kind: str = "Refused") -> Response:
    """An error response."""
    return JSONResponse({"error": error, "kind": kind}, status_code=status)


def connections(access: Access, most: int) -> type[H11Protocol]:
    """A class of connections for uvicorn that limits connections without the token.

    A connection stays open until its client reads the response, which may never happen. Beyond
    `most` connections, the oldest one whose last request had no token, or has not arrived, is
    aborted.
    """

    class Connection(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
            super().connection_made(transport)
            self.since = self.loop.time()
            active = [each for each in self.connections if isinstance(each, Connection)]
            active = [each for each in active if not each.transport.is_closing()]
            without_token = [each for each in active if each is not self and not each.has_token()]
            if len(active) > most and without_token:
                min(without_token, key=lambda each: each.since).transport.abort()

        def has_token(self) -> bool:
            return bool(self.scope) and access.allows(dict(self.scope))

    return Connection
