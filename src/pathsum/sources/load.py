"""`load`: a model by name, by folder, or from the hub."""

import re
from pathlib import Path

from pathsum.errors import FailedError, FileError, near_misses
from pathsum.model import Model
from pathsum.model.storage import CONFIG, TENSORS, TOKENIZER
from pathsum.sources.named import known_names, load_named, open_folder

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def load(name: str | Path) -> Model:
    """A model: a name that comes with pathsum, else an existing folder, else a hub id.

    >>> load("hand-built-induction").head("L1H0").label
    'L1H0'

    Tensors of a folder are memory-mapped and read layer by layer when they are first used.
    """
    text = str(name)
    if isinstance(name, str) and text in known_names():
        return load_named(text)
    folder = Path(text).expanduser()
    if folder.is_dir():
        return open_folder(folder)
    if folder.is_file():
        raise FileError(
            f"{text} is a file; a model is a folder with {CONFIG} and {TENSORS}: name the folder"
        )
    if isinstance(name, str) and _HUB_ID.fullmatch(text) and not folder.parent.is_dir():
        return open_folder(_download(text))
    known = ", ".join(known_names())
    raise FileError(
        f"there is no model {text!r}: it is not a name that comes with pathsum ({known}), nor a "
        f"folder{near_misses(text, known_names())}"
    )


def _download(hub_id: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(hub_id, allow_patterns=[CONFIG, TENSORS, TOKENIZER]))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().split("\n")[0]
        raise FailedError(
            f"{hub_id!r} is no name that comes with pathsum and no folder, and it could not be had "
            f"from the hub ({reason})"
        ) from error
