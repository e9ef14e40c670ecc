"""The project itself: what the other files of the repository promise."""

import json
import os
import re
import stat
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from importlinter.cli import lint_imports
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = sorted(PROJECT["optional-dependencies"])


def tracked_files() -> list[Path]:
    """What is, or would be, in the repository; outside of one, everything but hidden folders."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode == 0:
        paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    else:
        paths = [path for path in ROOT.rglob("*") if "/." not in f"/{path.relative_to(ROOT)}"]
    return [path for path in paths if path.is_file()]


def pins() -> dict[str, Version]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): Version(version) for name, version in pairs}


class TestVersion:
    def test_is_written_in_one_place(self) -> None:
        written = (ROOT / "src/pathsum/_version.py").read_text()
        version = re.search(r'__version__ = "(.+)"', written)
        assert version is not None
        assert "version" in PROJECT["dynamic"]
        again = [
            path.relative_to(ROOT).as_posix()
            for path in (ROOT / "src").rglob("*.py")
            if path.name != "_version.py" and f'"{version[1]}"' in path.read_text()
        ]
        assert again == []

    def test_is_the_same_in_the_package_and_in_its_metadata(self) -> None:
        import pathsum

        assert pathsum.__version__ == metadata.version("pathsum")


@pytest.mark.skipif(
    "PATHSUM_OTHER_VERSIONS" in os.environ, reason="made with other versions on purpose"
)
class TestConstraints:
    def test_pin_the_torch_that_results_were_made_with(self) -> None:
        assert pins()["torch"] == Version("2.13.0")

    @pytest.mark.parametrize("extra", [None, *EXTRAS])
    def test_pin_every_requirement_within_its_range(self, extra: str | None) -> None:
        wanted = PROJECT["optional-dependencies"][extra] if extra else PROJECT["dependencies"]
        for requirement in map(Requirement, wanted):
            name = canonicalize_name(requirement.name)
            assert name in pins(), f"constraints.txt has no {name}"
            assert pins()[name] in requirement.specifier, requirement

    def test_pin_what_the_requirements_pull_in_and_are_what_is_installed(self) -> None:
        unpinned, differing = [], []
        for name, installed in installed_closure("pathsum", {"", *EXTRAS}).items():
            if name not in pins():
                unpinned.append(name)
            elif Version(Version(installed).public) != pins()[name]:
                differing.append(f"{name}: {installed} here, {pins()[name]} in constraints.txt")
        assert unpinned == []
        assert differing == []


def installed_closure(root: str, extras: set[str]) -> dict[str, str]:
    """Versions of what is installed of all that `root` with these extras asks for, near and far."""
    versions: dict[str, str] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [(canonicalize_name(root), frozenset(extras))]
    while waiting:
        name, wanted = waiting.pop()
        if (name, wanted) in seen:
            continue
        seen.add((name, wanted))
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        if name != root:
            versions[name] = found.version
        for requirement in map(Requirement, found.requires or []):
            if requirement.marker is None or any(
                requirement.marker.evaluate({"extra": extra}) for extra in wanted
            ):
                asked = frozenset({"", *requirement.extras})
                waiting.append((canonicalize_name(requirement.name), asked))
    return versions


class TestCommand:
    def test_help_does_not_import_torch(self) -> None:
        """Importing torch takes seconds, which --help should not cost."""
        done = subprocess.run(
            [sys.executable, "-X", "importtime", "-m", "pathsum", "--help"],
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "TERM": "dumb", "COLUMNS": "120"},
        )
        imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
        assert done.returncode == 0, done.stderr
        assert "demo" in done.stdout
        assert "pathsum.cli.main" in imported
        assert "torch" not in imported


def test_every_room_is_a_package() -> None:
    """The contract on the order of imports does not see a folder without `__init__.py`."""
    package = ROOT / "src" / "pathsum"
    folders = {path.parent for path in package.rglob("*.py")}
    assert [folder.name for folder in folders if not (folder / "__init__.py").exists()] == []


def test_rooms_are_imported_in_order(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", [*sys.path])
    status = lint_imports(no_cache=True)
    assert status == 0, capsys.readouterr().out


TEXT = {".cff", ".css", ".html", ".js", ".md", ".py", ".svelte", ".toml", ".ts", ".txt", ".yaml"}

# Escaped so that this file does not match itself.
NOT_OURS = re.compile(
    r"(?<![\w.])/(?:root|opt|work|home/\w+|Users/\w+)/"
    r"|pypi\.org|pythonhosted\.org|download\.pytorch\.org|registry\.npmjs|registry\.yarnpkg"
)


def test_no_file_names_a_machine_or_a_registry() -> None:
    named = []
    for path in tracked_files():
        if path.suffix in TEXT or not path.suffix or path.name.startswith("package"):
            for number, line in enumerate(path.read_text().splitlines(), 1):
                if NOT_OURS.search(line):
                    named.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    assert named == []


def test_every_make_target_has_its_line_of_help() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (help .*)$", makefile, re.MULTILINE)
    assert phony is not None
    helped = re.findall(r"^([a-z-]+):.*## \w", makefile, re.MULTILINE)
    assert sorted(phony[1].split()) == sorted(helped)


def test_ci_can_be_run() -> None:
    run = ROOT / ".ci" / "run"
    assert run.stat().st_mode & stat.S_IXUSR
    assert run.read_text().startswith("#!/usr/bin/env bash\n")


def test_the_bundle_has_the_licenses_of_what_it_contains() -> None:
    from pathsum.explorer import bundle

    folder = Path(bundle.__file__).parent
    notices = (folder / "THIRD-PARTY-NOTICES.txt").read_text()
    named = re.findall(r"^-{80}\n(\S+) \S+ \((\S+)\)$", notices, re.MULTILINE)
    dependencies = json.loads((ROOT / "web" / "package.json").read_text())["dependencies"]
    assert set(dependencies) <= {name for name, _ in named}
    assert {terms for _, terms in named} <= {"MIT", "ISC", "BSD-3-Clause", "Apache-2.0"}
    assert notices.count("Copyright") >= len(named) > 0
    # The script of a report travels alone, so it names them too.
    banner = (folder / "app.js").read_text().split("\n", 1)[0]
    assert all(f"{name} " in banner for name, _ in named)
