"""`load`: a model by name, from a folder or a file, or from the hub."""

import re
from pathlib import Path

from pathsum.errors import FileError, InputError, near_misses
from pathsum.files import exists
from pathsum.model import Model
from pathsum.result import Progress, silent
from pathsum.sources.fetched import FETCHED, load_fetched
from pathsum.sources.hub import download
from pathsum.sources.named import known_names, load_named
from pathsum.sources.open_path import open_path

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def load(
    name: str | Path,
    *,
    revision: str | None = None,
    token: str | bool | None = None,
    progress: Progress = silent,
) -> Model:
    """A model: a name that pathsum knows, else an existing folder or file, else a hub id.

    >>> load("hand-built-induction").head("L1H0").label
    'L1H0'

    A folder is one that pathsum saved, a Hugging Face checkpoint (config.json, weights as
    safetensors or as pytorch_model.bin, tokenizer.json) or one in TransformerLens's layout; a file
    is GGUF. `revision` and `token` are for hub ids and mean what they mean to huggingface_hub.
    `progress` is called while a model is fetched. Tensors are memory-mapped and read layer by layer
    when they are first used.
    """
    text = str(name)
    known, path = (*known_names(), *FETCHED), Path(text).expanduser()
    if revision is not None and ((isinstance(name, str) and text in known) or exists(path)):
        raise InputError(
            f"revision={revision!r} goes with a hub id, and {text!r} is a model of this machine; "
            "leave it out"
        )
    if isinstance(name, str) and text in known_names():
        return load_named(text)
    if isinstance(name, str) and text in FETCHED:
        return load_fetched(text, progress)
    if exists(path):
        return open_path(path)
    if isinstance(name, str) and _HUB_ID.fullmatch(text) and not exists(path.parent):
        return open_path(download(text, revision, token), name=text)
    raise FileError(
        f"there is no model {text!r}: it is not a name that pathsum knows ({', '.join(known)}), "
        f"nor a folder or file, nor a hub id (owner/name){near_misses(text, known)}"
    )
