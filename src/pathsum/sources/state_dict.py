"""A file of tensors alone (.pt, .pth, .bin, .safetensors), with a config given or next to it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pathsum.base.errors import FileError, InputError
from pathsum.base.files import read_object
from pathsum.model import Config, Model, Weights, from_tensors
from pathsum.model.storage import CONFIG, FORMAT, TENSORS, TOKENIZER, read_model
from pathsum.model.store import Store
from pathsum.sources.checkpoint_folder import CheckpointFile, PickleStore
from pathsum.sources.families.rotary import Context
from pathsum.sources.foreign_config import ForeignConfig
from pathsum.sources.hugging_face import model_of_tensors
from pathsum.sources.transformer_lens import is_transformer_lens, model_of_state
from pathsum.text import Tokenizer

SUFFIXES = (".pt", ".pth", ".bin", ".safetensors")


def open_state_dict(
    file: Path, given: Config | Mapping[str, Any] | None = None, context: Context = "original"
) -> Model:
    """The model of one file of tensors; pickles are opened by torch's weights-only loader.

    `given` is a `Config`, for tensors by our names or TransformerLens's, or the values of a
    config.json. By default they are read from config.json in the same folder, or from the file's
    own name with .json.
    """
    source: Store = CheckpointFile(file) if file.suffix == ".safetensors" else PickleStore(file)
    values = _config_beside(file) if given is None else given
    if isinstance(values, Config):
        return _with_config(values, source, file)
    foreign = ForeignConfig(values, f"the config of {file}")
    if values.get("format") == FORMAT:
        if given is None and file.name == TENSORS:
            # The file of a folder that pathsum saved: its tokenizer and edits are the model's.
            return read_model(file.parent)
        return _with_config(Config.from_dict(foreign.table("config").values), source, file)
    words = file.parent / TOKENIZER
    tokenizer = Tokenizer.from_file(words) if words.exists() else None
    if is_transformer_lens(foreign.values):
        return model_of_state(foreign, source, str(file), file.stem, tokenizer)
    return model_of_tensors(foreign, source, str(file), file.stem, tokenizer, context)


def _config_beside(file: Path) -> dict[str, Any]:
    for sibling in (file.with_suffix(".json"), file.parent / CONFIG):
        if sibling.is_file():
            return read_object(sibling, "save or download it again")
    raise FileError(
        f"{file} holds tensors without a config: put {CONFIG} or {file.stem}.json next to it, or "
        "pass config=, a pathsum.Config or the values of a config.json"
    )


def _with_config(config: Config, source: Store, file: Path) -> Model:
    names = list(source.shapes)
    if any(name.startswith("blocks.") for name in names):
        return model_of_state(config, source, str(file), file.stem)
    if any(name.startswith("layers.") for name in names):
        return Model(Weights(config, source), name=file.stem)
    if "W_E" in names:
        return from_tensors(config, {name: source.get(name) for name in names}, name=file.stem)
    raise InputError(
        f"{file} names its tensors {', '.join(names[:3])}, …, which are neither pathsum's nor "
        "TransformerLens's names; pass config= as the values of its config.json, with model_type"
    )
