"""Hugging Face checkpoints, in a folder or in memory, without importing transformers."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pathsum.base import Progress, silent
from pathsum.base.errors import ConfigError, FileError, InputError, PathsumError
from pathsum.base.files import read_object
from pathsum.model import Model, Weights
from pathsum.model.storage import CONFIG, TOKENIZER
from pathsum.model.store import MemoryStore, Store
from pathsum.sources.checkpoint_folder import Mxfp4Store, open_tensors
from pathsum.sources.families import MALFORMED, find_family, is_buffer
from pathsum.sources.families.rotary import Context, choose_context
from pathsum.sources.foreign_config import ForeignConfig
from pathsum.text import Tokenizer

TOKENIZER_CONFIG = "tokenizer_config.json"
_MXFP4 = "mxfp4"
# Names of unembeddings, under which tied checkpoints may have a second copy of the embedding.
_HEADS = ("lm_head.weight", "embed_out.weight")
# Prefixes of the language model in checkpoints that also process images (Gemma 3 from 4B up), in
# files and in memory, for several versions of transformers.
_TEXT_PREFIXES = {
    "language_model.model.": "model.",
    "model.language_model.": "model.",
    "language_model.lm_head.": "lm_head.",
}
_OTHER_PARTS = ("vision_tower.", "multi_modal_projector.")
# Defaults of transformers for fields that text_config omits.
_TEXT_DEFAULTS = {
    "model_type": "gemma3_text",
    "vocab_size": 262_208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
}


def open_hugging_face(
    folder: Path,
    name: str | None = None,
    context: Context = "original",
    progress: Progress = silent,
) -> Model:
    """The model of a folder with config.json, weights and, if it has one, tokenizer.json."""
    foreign, file = ForeignConfig.read(folder / CONFIG), folder / TOKENIZER
    tokenizer = Tokenizer.from_file(file) if file.exists() else None
    source, label = open_tensors(folder, progress), name or folder.name
    settings = folder / TOKENIZER_CONFIG
    return model_of_tensors(foreign, source, str(folder), label, tokenizer, context, settings)


def model_of_tensors(
    foreign: ForeignConfig,
    source: Store,
    where: str,
    name: str,
    tokenizer: Tokenizer | None = None,
    context: Context = "original",
    settings: Path | None = None,
) -> Model:
    """The model of a family's config and tensors; `settings` is a tokenizer_config.json."""
    foreign, source = text_part(foreign, source)
    family = find_family(foreign, source)
    method = foreign.table("quantization_config").values.get("quant_method")
    if method not in (None, _MXFP4):
        raise FileError(
            f"the weights of {foreign.where} are quantized by {method!r}, a layout that "
            "pathsum does not read; load the unquantized checkpoint, or a GGUF file"
        )
    try:
        layout = family.describe(choose_context(foreign, context))
    except PathsumError:
        raise
    except MALFORMED as error:
        raise ConfigError(
            f"{foreign.where} has values that are not valid for a {family.name} model ({error}); "
            "download it again"
        ) from error
    source = Mxfp4Store(source, where) if method == _MXFP4 else source
    names = {name for entry in layout.model.values() for name in entry.name.split("|")}
    copies = [head for head in _HEADS if head in source.shapes and head not in names]
    store = layout.resolve(source, where, ignore=lambda key: is_buffer(key) or key in copies)
    for head in copies:
        _check_tied(source.get(store.stored_name("W_E")), source.get(head), head, where)
    config = layout.config
    start = _config_start(foreign) if tokenizer is None else _start_token(tokenizer, settings)
    if start is not None and start < config.d_vocab:
        config = config.replace(start_token=start)
    return Model(Weights(config, store), name=name, tokenizer=tokenizer)


def from_hf(
    model: Any, tokenizer: Any = None, *, name: str | None = None, context: Context = "original"
) -> Model:
    """A transformers model as a pathsum model, which shares its memory.

    Args:
        model: The transformers model. If it is trained further, the result changes with it.
        tokenizer: A tokenizer of transformers, `tokenizers` or pathsum.
        name: The name of the result.
        context: "original" or "extended", as in `load`.

    Returns:
        The model.

    Example:
        ```python
        model = ps.from_hf(AutoModelForCausalLM.from_pretrained("gpt2"), tokenizer)
        ```
    """
    config, state = getattr(model, "config", None), getattr(model, "state_dict", None)
    if config is None or not hasattr(config, "to_dict") or state is None:
        raise InputError(
            f"from_hf takes a transformers model, not a {type(model).__name__}; for a folder or a "
            "hub id use pathsum.load"
        )
    where = type(model).__name__
    foreign = ForeignConfig(config.to_dict(), f"the config of {where}")
    tensors: dict[str, Tensor] = {key: value.detach() for key, value in state().items()}
    own_tokenizer = wrap_tokenizer(tokenizer)
    label = name or str(getattr(config, "name_or_path", "") or where)
    return model_of_tensors(foreign, MemoryStore(tensors), where, label, own_tokenizer, context)


def wrap_tokenizer(tokenizer: Any) -> Tokenizer | None:
    """A pathsum tokenizer, from a tokenizer of pathsum, `tokenizers` or transformers (fast)."""
    import tokenizers

    if tokenizer is None or isinstance(tokenizer, Tokenizer):
        return tokenizer
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if isinstance(backend, tokenizers.Tokenizer):
        return Tokenizer(backend)
    raise InputError(
        f"{type(tokenizer).__name__} has no tokenizer of the tokenizers library inside; pass a "
        "fast tokenizer, or a pathsum.text.Tokenizer"
    )


def _check_tied(embedding: Tensor, head: Tensor, name: str, where: str) -> None:
    same_memory = embedding.data_ptr() == head.data_ptr()
    if embedding.shape != head.shape or not (same_memory or torch.equal(embedding, head)):
        raise FileError(
            f"the config of {where} says that embedding and unembedding are tied, but {name} "
            "differs from the embedding; set tie_word_embeddings to false if both are meant"
        )


def _config_start(foreign: ForeignConfig) -> int | None:
    """The start token of a checkpoint without a tokenizer, from its config."""
    token = foreign.values.get("bos_token_id")
    return token if isinstance(token, int) and not isinstance(token, bool) and token >= 0 else None


def _start_token(tokenizer: Tokenizer, file: Path | None) -> int | None:
    """The start token of a tokenizer, from its settings or else from its postprocessor."""
    settings = read_object(file, "download it again") if file and file.exists() else {}
    adds, token = settings.get("add_bos_token"), settings.get("bos_token")
    if adds is False:
        return None
    if adds is True:
        text = token.get("content") if isinstance(token, dict) else token
        return None if text is None else tokenizer.backend.token_to_id(str(text))
    step = json.loads(tokenizer.to_json()).get("post_processor") or {}
    for processor in step.get("processors", [step]):
        first = (processor.get("single") or [{}])[0]
        if "SpecialToken" in first:
            special = processor["special_tokens"].get(first["SpecialToken"]["id"], {"ids": []})
            return next(iter(special["ids"]), None)
        if processor.get("type") in ("RobertaProcessing", "BertProcessing"):
            return processor["cls"][1]
    return None


def text_part(foreign: ForeignConfig, source: Store) -> tuple[ForeignConfig, Store]:
    """The config and the tensors of the language model in a checkpoint."""
    if foreign.values.get("model_type") != "gemma3" or "text_config" not in foreign.values:
        return foreign, source
    inner = foreign.table("text_config")
    values = {**_TEXT_DEFAULTS, **inner.values}
    if not {"rope_parameters", "rope_theta"} & set(values):
        values["rope_theta"] = 1_000_000.0
    if "tie_word_embeddings" in foreign.values:
        values.setdefault("tie_word_embeddings", foreign.values["tie_word_embeddings"])
    return ForeignConfig(values, inner.where), _TextTensors(source)


class _TextTensors(Store):
    """The tensors of the language model, by the names of a checkpoint without other parts."""

    def __init__(self, source: Store) -> None:
        self._source = source
        self._names = {
            _short_name(name): name
            for name in source.shapes
            if not name.removeprefix("model.").startswith(_OTHER_PARTS)
        }
        self.shapes = {ours: source.shapes[name] for ours, name in self._names.items()}
        self.dtypes = {ours: source.dtypes[name] for ours, name in self._names.items()}

    def get(self, name: str) -> Tensor:
        """A tensor of the language model."""
        return self._source.get(self._names[name])

    def copies(self, name: str) -> bool:
        """Whether the source copies a tensor."""
        return self._source.copies(self._names[name])

    def device(self, name: str) -> torch.device:
        """The device of the tensor."""
        return self._source.device(self._names[name])


def _short_name(name: str) -> str:
    for prefix, text_prefix in _TEXT_PREFIXES.items():
        if name.startswith(prefix):
            return text_prefix + name.removeprefix(prefix)
    return name
