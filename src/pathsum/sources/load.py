"""`load`: a model by name, from a folder or a file of any program, or from the hub.

Checkpoints from the Hugging Face hub are downloaded by huggingface_hub into its cache. Its
environment variables apply: `HF_HOME`, `HF_TOKEN`, `HF_ENDPOINT`, and `HF_HUB_OFFLINE`, which
disables the network.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pathsum.base import Progress, silent
from pathsum.base.errors import (
    FailedError,
    FileError,
    InputError,
    PathsumError,
    first_line,
    near_misses,
)
from pathsum.base.files import exists, first_bytes, read_object, user_path
from pathsum.base.options import checked, parse_choice
from pathsum.model import Config, Model, Weights, from_tensors
from pathsum.model.storage import CONFIG, FORMAT, TENSORS, TOKENIZER, read_model
from pathsum.model.store import Store
from pathsum.sources.checkpoint_folder import (
    INDEX,
    PICKLE,
    SAFETENSORS,
    CheckpointFile,
    PickleStore,
    read_index,
)
from pathsum.sources.families.rotary import CONTEXTS, Context, require_one_context
from pathsum.sources.foreign_config import ForeignConfig
from pathsum.sources.gguf_model import open_gguf
from pathsum.sources.hugging_face import TOKENIZER_CONFIG, model_of_tensors, open_hugging_face
from pathsum.sources.named import FETCHED, known_names, load_fetched, load_named
from pathsum.sources.transformer_lens import (
    is_transformer_lens,
    model_of_state,
    open_transformer_lens,
)
from pathsum.text import Tokenizer


def download(hub_id: str, revision: str | None = None, token: str | bool | None = None) -> Path:
    """The folder in the hub's cache with the files of a checkpoint.

    Files are downloaded in order of preference, so that only one copy of the weights is downloaded
    if a repository has several.
    """
    repository = _Repository(hub_id, revision, token)
    config = repository.get(CONFIG)
    if config is None:
        raise FileError(
            f"{hub_id!r} on the hub has no {CONFIG}, so it is not a checkpoint that pathsum reads"
        )
    for name in (TOKENIZER, TOKENIZER_CONFIG):
        repository.get(name)
    for name in (SAFETENSORS, PICKLE):
        if repository.get(name) is not None:
            return config.parent
        index = repository.get(name + INDEX)
        if index is not None:
            for shard in sorted(set(read_index(index).values())):
                if repository.get(shard) is None:
                    raise FileError(
                        f"{hub_id!r} on the hub has no {shard}, which its {index.name} names"
                    )
            return config.parent
    last = repository.get_listed(".pth") or repository.get_listed(".pt")
    if last is None:
        raise FileError(
            f"{hub_id!r} on the hub has no {SAFETENSORS} or {PICKLE}, so there are no weights that "
            "pathsum reads"
        )
    return config.parent


class _Repository:
    """The files of a repository at one revision."""

    def __init__(self, hub_id: str, revision: str | None, token: str | bool | None) -> None:
        self.hub_id, self.revision, self.token = hub_id, revision, token
        self._commit: str | None = None
        self._reached = False

    def get(self, file: str) -> Path | None:
        """A file from the cache or the network; None if it does not exist.

        config.json comes first, and all other files are from its commit. The hub is asked for the
        current commit of the revision; if it cannot be reached, the commit in the cache is used.
        """
        from huggingface_hub import _CACHED_NO_EXIST, hf_hub_download, try_to_load_from_cache
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

        revision = self.revision if file == CONFIG else self._commit
        try:
            cached = try_to_load_from_cache(self.hub_id, file, revision=revision)
            if file != CONFIG and cached is not None:
                return None if cached is _CACHED_NO_EXIST else Path(str(cached))
            if not isinstance(cached, str):
                self._require_hub(file)
            path = hf_hub_download(self.hub_id, file, revision=revision, token=self.token)
        except LocalEntryNotFoundError as error:
            if file == CONFIG or not _offline():
                raise self._failed(error, file) from error
            return None
        except EntryNotFoundError:
            return None
        except PathsumError:
            raise
        except Exception as error:
            raise self._failed(error, file) from error
        if file == CONFIG:
            self._commit = Path(path).parent.name
        return Path(path)

    def _require_hub(self, file: str) -> None:
        """Raise an error if there is no connection, for which huggingface_hub waits 23 seconds."""
        from huggingface_hub import get_hf_file_metadata, hf_hub_url

        if self._reached or _offline():
            return
        try:
            url = hf_hub_url(self.hub_id, file, revision=self._commit or self.revision)
            get_hf_file_metadata(url, token=self.token)
        except Exception as error:
            if _is_unreachable(error):
                raise self._failed(error, file) from error
            # Any other error is a response of the hub, which the download handles.
        self._reached = True

    def get_listed(self, ending: str) -> Path | None:
        """The last file by name with this ending, because old checkpoints number their steps."""
        from huggingface_hub import HfApi

        if _offline():
            return None
        try:
            files = HfApi(token=self.token).list_repo_files(self.hub_id, revision=self.revision)
        except Exception as error:
            raise self._failed(error, ending) from error
        names = sorted(file for file in files if file.endswith(ending) and "/" not in file)
        final = [name for name in names if "final" in name] or names
        return self.get(final[-1]) if final else None

    def _failed(self, error: Exception, file: str) -> Exception:
        from huggingface_hub import errors

        at = f" at revision {self.revision!r}" if self.revision else ""
        name = f"{self.hub_id!r}{at}"
        if isinstance(error, errors.GatedRepoError):
            return FailedError(
                f"{name} needs a login: accept its terms at the hub, then run `hf auth login` or "
                "set HF_TOKEN"
            )
        if isinstance(error, errors.RevisionNotFoundError):
            return InputError(f"{self.hub_id!r} on the hub has no revision {self.revision!r}")
        if isinstance(error, errors.RepositoryNotFoundError):
            return FailedError(
                f"{name} is neither a folder here nor a repository on the hub that you may read; "
                "check the spelling, or log in with `hf auth login` if it is private"
            )
        if isinstance(error, errors.HFValidationError):
            return InputError(f"{self.hub_id!r} is not a name on the hub; names are owner/name")
        if _offline():
            return FailedError(
                f"{name} is not in the cache, and HF_HUB_OFFLINE is set; load it once with "
                "a network"
            )
        if self._commit is not None:
            return FailedError(
                f"{name} is in the cache without {file}, which could not be fetched from the hub "
                f"({first_line(error)}); check the network and try again, or set HF_HUB_OFFLINE=1 "
                "to load the cached files"
            )
        return FailedError(
            f"{name} is not a folder here and could not be fetched from the hub "
            f"({first_line(error)}); check the network and try again"
        )


def _offline() -> bool:
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def _is_unreachable(error: Exception) -> bool:
    """Whether no connection was made; huggingface_hub 1 raises errors of httpx, 2 of httpx2."""
    return any(kind.__name__ in ("ConnectError", "ConnectTimeout") for kind in type(error).__mro__)


SUFFIXES = (".pt", ".pth", ".bin", ".safetensors")


def open_state_dict(
    file: Path, config: Config | Mapping[str, Any] | None = None, context: Context = "original"
) -> Model:
    """The model of a file of tensors; pickles are read by torch's weights-only loader.

    `config` is a `Config`, for tensors with the names of pathsum or TransformerLens, or the values
    of a config.json. By default, these are read from the .json file of the same name, or from
    config.json in the same folder.
    """
    source: Store = CheckpointFile(file) if file.suffix == ".safetensors" else PickleStore(file)
    settings = _config_beside(file) if config is None else config
    words = file.parent / TOKENIZER
    tokenizer = Tokenizer.from_file(words) if words.exists() else None
    if isinstance(settings, Config):
        return _with_config(settings, source, file, tokenizer)
    foreign = ForeignConfig(settings, f"the config of {file}")
    if settings.get("format") == FORMAT:
        if config is None and file.name == TENSORS:
            # A folder saved by pathsum, with its tokenizer and edits.
            return read_model(file.parent)
        config = Config.from_dict(foreign.table("config").values)
        return _with_config(config, source, file, tokenizer)
    if is_transformer_lens(foreign.values):
        return model_of_state(foreign, source, str(file), file.stem, tokenizer)
    return model_of_tensors(foreign, source, str(file), file.stem, tokenizer, context)


def _config_beside(file: Path) -> dict[str, Any]:
    for sibling in (file.with_suffix(".json"), file.parent / CONFIG):
        if sibling.is_file():
            return read_object(sibling, "save or download it again")
    raise FileError(
        f"{file} contains tensors without a config: put {CONFIG} or {file.stem}.json next to it, "
        "or pass config=, a pathsum.Config or the values of a config.json"
    )


def _with_config(config: Config, source: Store, file: Path, tokenizer: Tokenizer | None) -> Model:
    names, label = list(source.shapes), file.stem
    if any(name.startswith("blocks.") for name in names):
        return model_of_state(config, source, str(file), label, tokenizer)
    if any(name.startswith("layers.") for name in names):
        return Model(Weights(config, source), name=label, tokenizer=tokenizer)
    if "W_E" in names:
        tensors = {name: source.get(name) for name in names}
        return from_tensors(config, tensors, name=label, tokenizer=tokenizer)
    raise InputError(
        f"{file} names its tensors {', '.join(names[:3])}, …, which are neither pathsum's nor "
        "TransformerLens's names; pass config= as the values of its config.json, with model_type"
    )


_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_OWNERS = {
    "gpt2": "openai-community",
    "distilgpt2": "distilbert",
    "pythia": "EleutherAI",
    "gpt-neo": "EleutherAI",
    "qwen": "Qwen",
    "gemma": "google",
    "llama": "meta-llama",
    "smollm": "HuggingFaceTB",
}
"""The owners of well-known models, by the beginning of the names."""


@checked
def load(
    name: str | Path,
    *,
    revision: str | None = None,
    token: str | bool | None = None,
    context: Context = "original",
    config: Config | Mapping[str, Any] | None = None,
    progress: Progress = silent,
) -> Model:
    """Load a model by its name in pathsum, from an existing folder or file, or by a hub id.

    Args:
        name: The name of a bundled or hand-built model; a folder that pathsum saved, a Hugging Face
            checkpoint (config.json, weights as safetensors or as pytorch_model.bin, tokenizer.json)
            or one in TransformerLens's layout; a GGUF file, or a state dict (.pt, .pth, .bin,
            .safetensors) with the tensor names of pathsum, of TransformerLens or of a Hugging Face
            family; or a hub id.
        revision: The branch, tag or commit of a hub id.
        token: The access token for a hub id, as in huggingface_hub.
        context: "extended" loads a LongRoPE checkpoint (Phi-3 128k) with its factors for long
            texts. By default, it is loaded with its factors for texts up to the pretraining length,
            and the context ends there.
        config: For a state dict, a `Config` or the values of a config.json; by default config.json
            in its folder, or a .json file of its name.
        progress: Called while a model is downloaded, and while a whole file is compared with shards
            next to it.

    Returns:
        The model. Tensors are memory-mapped and read layer by layer on first use.

    Example:
        >>> load("hand-built-induction").head("L1H0").label
        'L1H0'
    """
    text = str(name)
    path = user_path(text)
    is_named = isinstance(name, str) and text in (*known_names(), *FETCHED)
    if revision is not None and (is_named or exists(path)):
        raise InputError(
            f"revision={revision!r} goes with a hub id, and {text!r} is a model of this machine; "
            "leave it out"
        )
    if config is not None and not (path.suffix in SUFFIXES and exists(path)):
        raise InputError(
            f"config= goes with a state dict ({', '.join(SUFFIXES)}), and {text!r} is not such a "
            "file; leave it out"
        )
    if is_named:
        require_one_context(text, parse_choice(CONTEXTS, context, "context"))
        return load_fetched(text, progress) if text in FETCHED else load_named(text)
    if config is not None:
        return open_state_dict(path, config, context)
    if exists(path):
        return open_path(path, context=context, progress=progress)
    if isinstance(name, str) and _HUB_ID.fullmatch(text) and not exists(path.parent):
        return open_path(download(text, revision, token), text, context, progress)
    raise FileError(
        f"there is no model {text!r}: it is not the name of a bundled model (`pathsum models` "
        f"lists them), a folder, a file or a hub id (owner/name){_suggest_model(text)}"
    )


def _suggest_model(name: str) -> str:
    """A hub id for a well-known name without its owner, or a similar name of a model."""
    for start, owner in _OWNERS.items():
        if name.lower().startswith(start):
            return f"; did you mean {owner}/{name}?"
    return near_misses(name, (*known_names(), *FETCHED))


def open_path(
    path: Path,
    name: str | None = None,
    context: Context = "original",
    progress: Progress = silent,
) -> Model:
    """The model of a folder (pathsum, Hugging Face, TransformerLens) or of a GGUF file."""
    if not path.is_dir():
        return _open_file(path, context)
    file = path / CONFIG
    if not file.exists():
        files = sorted(path.glob("*.gguf"))
        if len(files) == 1:
            return open_gguf(files[0], context=context)
        if files:
            names = ", ".join(file.name for file in files[:4])
            raise FileError(f"{path} contains several GGUF files ({names}); give one of them")
        require_one_context(str(path), context)
        return read_model(path)
    values = read_object(file, "save or download it again")
    if "model_type" not in values:
        require_one_context(str(path), context)
    if values.get("format") == FORMAT or ("format" in values and "model_type" not in values):
        return read_model(path)
    if is_transformer_lens(values):
        return open_transformer_lens(path, name)
    return open_hugging_face(path, name, context, progress)


def _open_file(file: Path, context: Context) -> Model:
    if first_bytes(file, 4) == b"GGUF" or file.suffix == ".gguf":
        return open_gguf(file, context=context)
    if file.suffix in SUFFIXES:
        return open_state_dict(file, context=context)
    raise FileError(
        f"{file} is a file; a model is a folder with {CONFIG} and {SAFETENSORS}, a GGUF file, or a "
        f"state dict ({', '.join(SUFFIXES)}): name one of these"
    )
