"""Access: a random token per start, in the link that is opened and printed.

Other users of the machine can reach a server on 127.0.0.1, and with `--host` so can the network.
Opening the link sets a cookie, so the token leaves the address bar after the first visit.
Programs send the token as `Authorization: Bearer TOKEN`.
"""

import re
import secrets
from base64 import b64encode
from dataclasses import dataclass
from hashlib import sha256
from hmac import compare_digest
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.types import Scope

from pathsum.base.errors import InputError

# 256 random bits.
TOKEN_BYTES = 32
MIN_CHARACTERS, MAX_CHARACTERS = 16, 256

# A form leaves out the part of the address after #, which says what the page shows.
_KEEP_STATE = 'document.forms[0].onsubmit = (event) => (event.target.action = "/" + location.hash);'
KEEP_STATE_HASH = b64encode(sha256(_KEEP_STATE.encode()).digest()).decode()

_SIGN_IN = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>pathsum: the link is needed</title></head>
<body>
<h1>This explorer opens with its own link</h1>
<p>Use the link that pathsum printed when it started; it ends in <code>?token=…</code>.
Every start has a new one. Or paste the token here:</p>
<form method="get" action="/"><label>Token
<input name="token" type="password" autocomplete="off" required autofocus></label>
<button>Open</button></form>
<script>{script}</script>
</body>
</html>
"""


SIGN_IN = _SIGN_IN.replace("{script}", _KEEP_STATE)


def make_token() -> str:
    """A random token."""
    return secrets.token_urlsafe(TOKEN_BYTES)


def check_token(token: str) -> str:
    """A token that was chosen by hand; the empty one switches the check off."""
    if token and not re.fullmatch(r"[A-Za-z0-9_-]+", token):
        raise InputError(
            "a token may contain letters, digits, - and _ only, because it is part of a link"
        )
    if token and not MIN_CHARACTERS <= len(token) <= MAX_CHARACTERS:
        raise InputError(
            f"the token has {len(token)} characters; use {MIN_CHARACTERS} to {MAX_CHARACTERS}, or "
            "leave it out for a random one"
        )
    return token


@dataclass(frozen=True)
class Access:
    """The token that requests must carry, and the name of the cookie that carries it.

    Cookies are shared by all ports of a host, so the name contains the port.
    """

    token: str
    port: int

    @property
    def cookie(self) -> str:
        """The name of the cookie."""
        return f"pathsum-{self.port}"

    def in_link(self, scope: Scope) -> bool:
        """Whether a request has the token in its URL."""
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [])
        return len(given) == 1 and self._matches(given[0])

    def allows(self, scope: Scope) -> bool:
        """Whether a request carries the token: in its URL, a cookie or a header."""
        if not self.token or self.in_link(scope):
            return True
        headers = Headers(scope=scope)
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._matches(given.strip()):
            return True
        return any(self._matches(value) for value in self._cookies(headers))

    def set_cookie(self) -> str:
        """The value of the Set-Cookie header: not for scripts, nor for requests of other sites."""
        return f"{self.cookie}={self.token}; Path=/; HttpOnly; SameSite=Strict"

    def _cookies(self, headers: Headers) -> list[str]:
        # Not http.cookies, which drops everything after a malformed cookie of another server.
        parsed = [cookie_parser(line) for line in headers.getlist("cookie")]
        return [cookies[self.cookie] for cookies in parsed if self.cookie in cookies]

    def _matches(self, given: str) -> bool:
        return compare_digest(given.encode("utf-8", "replace"), self.token.encode())
