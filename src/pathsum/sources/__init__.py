"""Where models come from: bundled, fetched, saved by pathsum or by other programs, the hub.

In reading order: `load` decides, and tells formats apart; `named` and `fetched` are models with a
name; `hugging_face`, `gguf_model` and `transformer_lens` each make a model of one format;
`families/` describes architectures; `checkpoint`, `gguf_file` and `mapped_store` read tensors.
"""

from pathsum.sources.fetched import FETCHED, FetchedModel
from pathsum.sources.hugging_face import from_hf
from pathsum.sources.load import load
from pathsum.sources.named import ModelList, NamedModel, named_models
from pathsum.sources.transformer_lens import from_transformer_lens

__all__ = [
    "FETCHED",
    "FetchedModel",
    "ModelList",
    "NamedModel",
    "from_hf",
    "from_transformer_lens",
    "load",
    "named_models",
]
