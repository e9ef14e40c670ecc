"""The language model inside a checkpoint that also reads images: Gemma 3 from 4B up."""

import torch
from torch import Tensor

from pathsum.model.store import Store
from pathsum.sources.facts import Facts

# How files and models in memory, of several versions of transformers, call the language model.
_PREFIXES = {
    "language_model.model.": "model.",
    "model.language_model.": "model.",
    "language_model.lm_head.": "lm_head.",
}
_OTHER = ("vision_tower.", "multi_modal_projector.")
# What transformers assumes where text_config is silent, which it mostly is.
_DEFAULTS = {
    "model_type": "gemma3_text",
    "vocab_size": 262_208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
}


def text_part(facts: Facts, source: Store) -> tuple[Facts, Store]:
    """The config and the tensors of the language model; of other checkpoints, themselves."""
    if facts.values.get("model_type") != "gemma3" or "text_config" not in facts.values:
        return facts, source
    inner = facts.table("text_config")
    values = {**_DEFAULTS, **inner.values}
    if not {"rope_parameters", "rope_theta"} & set(values):
        values["rope_theta"] = 1_000_000.0
    if "tie_word_embeddings" in facts.values:
        values.setdefault("tie_word_embeddings", facts.values["tie_word_embeddings"])
    return Facts(values, inner.where), _TextTensors(source)


class _TextTensors(Store):
    """The tensors of the language model under the names that it has alone."""

    def __init__(self, source: Store) -> None:
        self._source = source
        self._names = {
            _short(name): name
            for name in source.shapes
            if not name.removeprefix("model.").startswith(_OTHER)
        }
        self.shapes = {ours: source.shapes[name] for ours, name in self._names.items()}
        self.dtypes = {ours: source.dtypes[name] for ours, name in self._names.items()}

    def get(self, name: str) -> Tensor:
        """One tensor of the language model."""
        return self._source.get(self._names[name])

    def copies(self, name: str) -> bool:
        """Whether the store behind it copies."""
        return self._source.copies(self._names[name])

    def device(self, name: str) -> torch.device:
        """Where the tensor is."""
        return self._source.device(self._names[name])


def _short(name: str) -> str:
    for prefix, alone in _PREFIXES.items():
        if name.startswith(prefix):
            return alone + name.removeprefix(prefix)
    return name
