"""The token: who has it gets in, nobody else does."""

from typing import Any

import pytest
from starlette.testclient import TestClient

from pathsum.base.errors import InputError
from pathsum.explorer import bundle
from pathsum.explorer.explorer import Explorer
from pathsum.explorer.server import ExplorerServer
from pathsum.explorer.server.app import make_app
from pathsum.explorer.server.guard import LOOPBACK, Access, check_token, make_token, names_of

TOKEN = "0123456789abcdefXYZ_-"
KEY = Access(TOKEN, 7321).page_key
BASE = "http://127.0.0.1:7321"
JSON = {"content-type": "application/json"}


@pytest.fixture
def client(explorer: Explorer) -> TestClient:
    app = make_app(explorer, names_of("127.0.0.1", 7321), Access(TOKEN, 7321))
    return TestClient(app, base_url=BASE, raise_server_exceptions=False)


def ask(client: TestClient, **headers: str) -> Any:
    return client.post("/api/model", content="{}", headers={**JSON, **headers})


def test_without_the_token_there_is_nothing(client: TestClient) -> None:
    for name in (bundle.SCRIPT, bundle.STYLE, "nothing", "../x"):
        assert client.get(f"/{name}").status_code == 401
    refused = ask(client)
    assert refused.status_code == 401 and refused.json()["kind"] == "TokenNeeded"
    assert "open the link" in refused.json()["error"]
    page = client.get("/")
    assert page.status_code == 401 and "Token" in page.text
    assert bundle.SCRIPT not in page.text and TOKEN not in page.text
    assert "set-cookie" not in page.headers
    # Its form may be sent here and nowhere else; everything else stays forbidden.
    policy = page.headers["content-security-policy"]
    assert "form-action 'self'" in policy and "default-src 'none'" in policy


def test_the_link_gives_a_cookie_that_opens_files_only(client: TestClient) -> None:
    first = client.get(f"/?token={TOKEN}")
    assert first.status_code == 200 and bundle.SCRIPT in first.text
    given = first.headers["set-cookie"]
    assert given == f"pathsum-7321={KEY}; Path=/; HttpOnly; SameSite=Strict"
    # Every server on this machine receives it.
    assert TOKEN not in given
    for found in (client.get("/"), client.get(f"/{bundle.SCRIPT}")):
        assert found.status_code == 200 and "set-cookie" not in found.headers
    assert ask(client).status_code == 401
    assert ask(client, authorization=f"Bearer {TOKEN}").status_code == 200
    assert ask(client, authorization=f"Bearer {KEY}").status_code == 401
    assert client.get(f"/?token={KEY}", headers={"cookie": ""}).status_code == 401


def test_a_cookie_of_another_server_does_not_hide_it(client: TestClient) -> None:
    cookies = f'theme={{"a": 1}}; ;; bad; pathsum-8888=other; pathsum-7321={KEY}; z'
    assert client.get("/", headers={"cookie": cookies}).status_code == 200
    assert client.get("/", headers={"cookie": f"pathsum-8888={KEY}"}).status_code == 401


def test_a_program_sends_a_header(client: TestClient) -> None:
    assert ask(client, authorization=f"Bearer {TOKEN}").status_code == 200
    for wrong in (TOKEN, f"Basic {TOKEN}", "Bearer", "Bearer x", f"Bearer {TOKEN}x"):
        assert ask(client, authorization=wrong).status_code == 401


@pytest.mark.parametrize(
    "query",
    [
        "token=",
        "token=x",
        f"token={TOKEN[:-1]}",
        f"token={TOKEN}x",
        f"token={TOKEN.lower()}",
        f"token=x&token={TOKEN}",
        f"tokens={TOKEN}",
        "token=%ff%fe",
        "token=%C3%A9",
    ],
)
def test_a_wrong_token_is_none(client: TestClient, query: str) -> None:
    found = client.get(f"/?{query}")
    assert found.status_code == 401 and "set-cookie" not in found.headers


def test_the_token_does_not_replace_the_other_checks(client: TestClient) -> None:
    known = {"authorization": f"Bearer {TOKEN}"}
    assert client.get("/", headers={"host": "evil.example", **known}).status_code == 421
    assert ask(client, origin="http://evil.example", **known).status_code == 403


def test_every_start_has_a_token_of_its_own(explorer: Explorer) -> None:
    servers = [ExplorerServer(explorer, port=0) for _ in range(2)]
    try:
        tokens = {server.token for server in servers}
        assert len(tokens) == 2 and all(len(token) >= 40 for token in tokens)
        for server in servers:
            assert server.url == f"{server.address}?token={server.token}"
    finally:
        for server in servers:
            server.close()


def test_a_token_of_ones_own() -> None:
    assert check_token(TOKEN) == TOKEN and check_token("") == "" and check_token(make_token())
    for wrong, why in (
        ("short", "5 characters"),
        ("a b" * 10, "letters, digits"),
        ("x" * 999, "999 char"),
    ):
        with pytest.raises(InputError, match=why):
            check_token(wrong)


@pytest.mark.parametrize("host", ["\udc80", "a" * 70, "a" * 500, "nobody.invalid", "127.0.0.1/x"])
def test_hosts_that_are_not_one(explorer: Explorer, host: str) -> None:
    with pytest.raises(InputError, match="is not an address of this machine"):
        ExplorerServer(explorer, host, 0)


def test_without_a_token_only_this_machine_is_served(explorer: Explorer) -> None:
    for host in ("0.0.0.0", "::", "192.0.2.7"):
        with pytest.raises(InputError, match="--allow-anyone-on-the-network"):
            ExplorerServer(explorer, host, 0, token="")
    server = ExplorerServer(explorer, "0.0.0.0", 0, token="", allow_anyone=True)
    server.close()
    assert server.url == server.address
    app = make_app(explorer, names_of("127.0.0.1", 7321), Access("", 7321))
    answered = TestClient(app, base_url=BASE).get("/?token=")
    assert answered.status_code == 200 and "set-cookie" not in answered.headers


def test_ipv6_loopback_is_this_machine(explorer: Explorer) -> None:
    names = names_of("::1", 7321)
    assert names.allows_host("[::1]:7321") and names.allows_host("127.0.0.1:7321")
    assert not any(name.startswith("::1") for name in names.authorities)
    assert "::1" in LOOPBACK
    assert names_of("fe80::2", 80).allows_host("[fe80::2]:80")
