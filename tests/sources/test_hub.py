"""Hub ids, against a server on this machine that answers as the hub does."""

import math
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.sources import tiny

import pathsum as ps
from pathsum.base.errors import FailedError, FileError, InputError

TOKENS = torch.tensor([[5, 9, 2, 17]])
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """Repositories as folders; `asked` lists the files that were fetched, with their tokens.

    `cut` is how many bytes are sent before the connection ends, `cuts` how often that happens.
    `requests` lists revision and file of every request, `busy` is how many are answered by 503, and
    `waits` lists the seconds that the client waited between its tries.
    """

    def __init__(self) -> None:
        self.repositories: dict[str, Path] = {}
        self.gated: set[str] = set()
        self.asked: list[str] = []
        self.tokens: set[str | None] = set()
        self.cut: int | None = None
        self.cuts = math.inf
        self.requests: list[tuple[str, str]] = []
        self.busy = 0
        self.waits: list[float] = []

    def stop(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """From here on nobody listens."""
        _use_endpoint("http://127.0.0.1:9", monkeypatch)


def _use_endpoint(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


def handler(hub: Hub) -> type[BaseHTTPRequestHandler]:  # noqa: C901
    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, *, body: bool) -> None:
            file = self._find()
            if file is None:
                return
            data = file.read_bytes()
            self.send_response(200)
            self.send_header("ETag", f'"{abs(hash(data)):040x}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if body:
                hub.asked.append(file.name)
                cut = hub.cut if hub.cuts > 0 else None
                hub.cuts -= cut is not None
                self.wfile.write(data[:cut])

        def _find(self) -> Path | None:
            hub.tokens.add(self.headers.get("Authorization"))
            parts = self.path.strip("/").split("/")
            repository = "/".join(parts[:2])
            hub.requests.append((parts[3], "/".join(parts[4:])))
            if hub.busy:
                hub.busy -= 1
                return self._refuse(503, "")
            if parts[2:3] != ["resolve"] or repository not in hub.repositories:
                return self._refuse(404, "RepoNotFound")
            if repository in hub.gated and not self.headers.get("Authorization"):
                return self._refuse(403, "GatedRepo")
            if parts[3] not in ("main", COMMIT):
                return self._refuse(404, "RevisionNotFound")
            file = hub.repositories[repository] / "/".join(parts[4:])
            if not file.is_file():
                return self._refuse(404, "EntryNotFound")
            return file

        def _refuse(self, status: int, code: str) -> None:
            self.send_response(status)
            self.send_header("X-Error-Code", code)
            if code == "EntryNotFound":
                self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *arguments: Any) -> None:
            pass

    return Handler


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    from huggingface_hub import constants

    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(hub))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    _use_endpoint(endpoint, monkeypatch)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    # The client waits longer and longer between its tries.
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", hub.waits.append)
    monkeypatch.chdir(tmp_path)
    yield hub
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def served(hub: Hub, tmp_path: Path) -> Hub:
    tiny.write("llama", tmp_path / "served", max_shard_size="20KB")
    (tmp_path / "served" / "consolidated.safetensors").write_bytes(b"another copy")
    hub.repositories["someone/tiny-llama"] = tmp_path / "served"
    return hub


def test_a_hub_id_is_fetched_once_and_then_found_in_the_cache(
    served: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    model = ps.load("someone/tiny-llama")
    assert model.name == "someone/tiny-llama"
    expected = ps.load(served.repositories["someone/tiny-llama"])(TOKENS)
    assert torch.equal(model(TOKENS), expected)
    assert "consolidated.safetensors" not in served.asked
    fetched = list(served.asked)
    assert torch.equal(ps.load("someone/tiny-llama", revision=COMMIT)(TOKENS), expected)
    assert served.asked == fetched
    served.repositories.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert torch.equal(ps.load("someone/tiny-llama")(TOKENS), expected)


def test_a_repository_that_is_not_there(hub: Hub) -> None:
    with pytest.raises(FailedError, match="'someone/nothing' is neither a folder here nor a repos"):
        ps.load("someone/nothing")


def test_a_revision_that_is_not_there(served: Hub) -> None:
    with pytest.raises(InputError, match="has no revision 'v9'"):
        ps.load("someone/tiny-llama", revision="v9")


def test_a_repository_that_needs_a_login(served: Hub) -> None:
    served.gated.add("someone/tiny-llama")
    with pytest.raises(FailedError, match="needs a login.*HF_TOKEN"):
        ps.load("someone/tiny-llama")
    assert ps.load("someone/tiny-llama", token="hf_secret").config.n_layers == 2
    assert "Bearer hf_secret" in served.tokens


def test_a_repository_without_a_model(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    hub.repositories["someone/data"] = tmp_path / "empty"
    with pytest.raises(FileError, match="'someone/data' on the hub has no config.json"):
        ps.load("someone/data")


def test_a_missing_shard(served: Hub) -> None:
    folder = served.repositories["someone/tiny-llama"]
    gone = max(folder.glob("model-*.safetensors"))
    gone.unlink()
    with pytest.raises(FileError, match=f"has no {gone.name}"):
        ps.load("someone/tiny-llama")


def test_offline_and_not_in_the_cache(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(FailedError, match="not in the cache, and HF_HUB_OFFLINE is set"):
        ps.load("someone/tiny-llama")


def test_no_network(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.stop(monkeypatch)
    with pytest.raises(FailedError, match="could not be fetched from the hub.*check the network"):
        ps.load("someone/tiny-llama")
    assert not hub.waits


def test_a_hub_that_is_busy_is_tried_again(served: Hub) -> None:
    served.busy = 4
    assert ps.load("someone/tiny-llama").config.n_layers == 2
    assert served.waits


def test_without_a_network_the_cache_is_used(served: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for the files that the repository does not have: there is no whole file of weights."""
    expected = ps.load("someone/tiny-llama")(TOKENS)
    served.stop(monkeypatch)
    assert torch.equal(ps.load("someone/tiny-llama")(TOKENS), expected)
    assert not served.waits


def test_without_a_network_and_half_in_the_cache(
    served: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import hf_hub_download

    hf_hub_download("someone/tiny-llama", "config.json")
    served.stop(monkeypatch)
    message = "in the cache without tokenizer.json.*check the network.*HF_HUB_OFFLINE=1"
    with pytest.raises(FailedError, match=message):
        ps.load("someone/tiny-llama")
    assert not served.waits


def test_all_files_are_of_one_commit(served: Hub) -> None:
    ps.load("someone/tiny-llama")
    assert {file for revision, file in served.requests if revision == "main"} == {"config.json"}
    served.requests.clear()
    ps.load("someone/tiny-llama")
    assert served.requests == [("main", "config.json")]


def test_an_interrupted_download_leaves_nothing_that_is_used(served: Hub) -> None:
    served.cut = 100
    with pytest.raises(FailedError, match="could not be fetched"):
        ps.load("someone/tiny-llama")
    served.cut = None
    assert ps.load("someone/tiny-llama").config.n_layers == 2


def test_a_download_that_is_cut_is_tried_again(served: Hub) -> None:
    served.cut, served.cuts = 100, 2
    expected = ps.load(served.repositories["someone/tiny-llama"])(TOKENS)
    assert torch.equal(ps.load("someone/tiny-llama")(TOKENS), expected)
    assert served.asked.count("config.json") == 3
