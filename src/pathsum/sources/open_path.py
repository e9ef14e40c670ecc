"""A model from a folder or a file, whichever program wrote it."""

from pathlib import Path
from typing import Any

from pathsum.errors import FileError
from pathsum.files import read_object, require_regular
from pathsum.model import Model
from pathsum.model.storage import CONFIG, FORMAT
from pathsum.sources.checkpoint import SAFETENSORS
from pathsum.sources.gguf_model import open_gguf
from pathsum.sources.hugging_face import open_hugging_face
from pathsum.sources.named import open_folder
from pathsum.sources.transformer_lens import is_transformer_lens, open_transformer_lens


def open_path(path: Path, name: str | None = None) -> Model:
    """The model of a folder (pathsum, Hugging Face, TransformerLens) or of a GGUF file."""
    if not path.is_dir():
        return _open_file(path)
    found = _read_config(path)
    if found is None:
        files = sorted(path.glob("*.gguf"))
        if len(files) == 1:
            return open_gguf(files[0])
        if files:
            listed = ", ".join(file.name for file in files[:4])
            raise FileError(f"{path} holds several GGUF files ({listed}); name one of them")
        return open_folder(path)
    if found.get("format") == FORMAT or ("format" in found and "model_type" not in found):
        return open_folder(path)
    if is_transformer_lens(found):
        return open_transformer_lens(path, name)
    return open_hugging_face(path, name)


def _open_file(file: Path) -> Model:
    require_regular(file)
    try:
        with file.open("rb") as opened:
            start = opened.read(4)
    except OSError as error:
        raise FileError(f"{file} cannot be read ({error.strerror})") from error
    if start == b"GGUF" or file.suffix == ".gguf":
        return open_gguf(file)
    raise FileError(
        f"{file} is a file; a model is a folder with {CONFIG} and {SAFETENSORS}, or a GGUF file: "
        "name one of these"
    )


def _read_config(folder: Path) -> dict[str, Any] | None:
    file = folder / CONFIG
    return read_object(file, "save or download it again") if file.exists() else None
