"""Build the distributions, inspect the wheel, and use it in an empty environment.

The wheel is built from the sdist, so anything missing there is missing in the wheel too. It is
installed with its dependencies into an empty environment in a temporary folder; nothing of the
checkout is on the path there. Leaves the distributions in `dist/`; exits 1 with a sentence for each
thing that is wrong.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "pathsum"

# Code, the type marker, and what bundled models and the built front end consist of.
KINDS = {
    ".py",
    ".typed",
    ".json",
    ".jsonl",
    ".md",
    ".toml",
    ".safetensors",
    ".html",
    ".js",
    ".css",
    ".txt",
}

COMMANDS = [["--version"], ["--help"], ["models"], ["demo"]]
COMMANDS += [["report", "hand-built-skip-trigrams", "--out", "report.html"]]

# With the bundled models; the largest that a registry of packages accepts is 100 MB.
MAX_MEGABYTES = 60

# The built front end, without which there is no explorer and no report, and its licenses.
BUNDLE = ("index.html", "app.js", "app.css", "THIRD-PARTY-NOTICES.txt")


def main() -> int:
    """Build, inspect, install, run."""
    with step("build the sdist, and the wheel from it"):
        wheel = build()
    with step(f"inspect {wheel.name}"):
        wrong = list(faults(wheel))
    with tempfile.TemporaryDirectory(prefix="pathsum-wheel-") as temporary:
        elsewhere = Path(temporary).resolve()
        with step("install it into an empty environment"):
            python = install(wheel, elsewhere / "env")
        with step("use it from another folder"):
            wrong += use(python, elsewhere)
    for fault in wrong:
        print(f"WRONG: {fault}", file=sys.stderr)
    return 1 if wrong else 0


@contextmanager
def step(name: str) -> Generator[None]:
    """Print the name of a step and how long it took."""
    start = time.monotonic()
    yield
    print(f"{time.monotonic() - start:6.1f} s  {name}", flush=True)


def build() -> Path:
    """The one wheel in `dist/`, freshly built; the build tools are those of this environment."""
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    command = [sys.executable, "-m", "build", "--no-isolation", str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}\nthe build failed")
    (wheel,) = (ROOT / "dist").glob("*.whl")
    return wheel


def faults(wheel: Path) -> Iterator[str]:
    """Files that the wheel should not contain, and files that it lacks."""
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if not name.endswith("/")}
        (info,) = {name.partition("/")[0] for name in held if ".dist-info/" in name}
        about = Parser().parsestr(archive.read(f"{info}/METADATA").decode())
        commands = archive.read(f"{info}/entry_points.txt").decode()
        licenses = [archive.read(name) for name in held if name.startswith(f"{info}/licenses/")]

    if wheel.stat().st_size > MAX_MEGABYTES * 1e6:
        yield f"the wheel has {wheel.stat().st_size / 1e6:.0f} MB, more than {MAX_MEGABYTES} MB"
    ours = {name for name in held if not name.startswith(f"{info}/")}
    sources = {
        path.relative_to(PACKAGE.parent).as_posix()
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    yield from (f"{name} is in src/ and not in the wheel" for name in sorted(sources - ours))
    yield from (f"{name} is in the wheel and not in src/" for name in sorted(ours - sources))
    for name in sorted(ours):
        if Path(name).suffix not in KINDS:
            yield f"{name} is of no kind that the package consists of"
    for folder in sorted(path for path in PACKAGE.iterdir() if path.is_dir()):
        package = f"pathsum/{folder.name}/"
        if folder.name != "__pycache__" and not any(name.startswith(package) for name in ours):
            yield f"the package {package} is not in the wheel"
    for name in BUNDLE:
        if f"pathsum/explorer/bundle/{name}" not in ours:
            yield f"the front end's {name} is not in the wheel; make web builds it"
    if "pathsum/py.typed" not in ours:
        yield "there is no py.typed, so type checkers ignore the annotations"
    if (ROOT / "LICENSE").read_bytes() not in licenses:
        yield "the license is not in the wheel"
    if about["License-Expression"] != "Apache-2.0":
        yield f"the metadata has license {about['License-Expression']!r}, not 'Apache-2.0'"
    if "pathsum = pathsum.__main__:run" not in commands:
        yield "the wheel does not offer the pathsum command"


def install(wheel: Path, folder: Path) -> Path:
    """A Python that has the wheel and its dependencies at the tested versions, and nothing else."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    constraints = ["--constraint", str(ROOT / "constraints.txt")]
    command = [str(python), "-m", "pip", "install", "--quiet", *constraints, str(wheel)]
    subprocess.run(command, check=True)
    return python


def use(python: Path, elsewhere: Path) -> Iterator[str]:
    """Run the command, import the library, and check that both are the installed ones."""
    # A PYTHONPATH of the caller could bring the checkout back in.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=elsewhere,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    where = run(str(python), "-c", "import pathsum; print(pathsum.__file__)")
    if not where.stdout.startswith(str(elsewhere)):
        yield f"import pathsum gave {where.stdout.strip() or where.stderr.strip()}"
    for arguments in COMMANDS:
        start = time.monotonic()
        done = run(str(python.with_name("pathsum")), *arguments)
        print(f"{time.monotonic() - start:6.1f} s    pathsum {' '.join(arguments)}", flush=True)
        if done.returncode != 0 or not done.stdout.strip():
            yield (
                f"pathsum {' '.join(arguments)} exited with {done.returncode} and printed"
                f" {len(done.stdout)} characters:\n{done.stderr.strip()}"
            )


if __name__ == "__main__":
    sys.exit(main())
