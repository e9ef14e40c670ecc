"""Where models come from: bundled, fetched, saved by pathsum or by other programs, the hub.

In reading order: `load` detects the format; `named` and `fetched` are models with a name;
`hugging_face`, `gguf_model` and `transformer_lens` each read one format; `families/` describes
architectures; `checkpoint_folder`, `gguf_file` and `mapped_store` read tensors.
"""

from pathsum.sources.fetched import FETCHED
from pathsum.sources.hugging_face import from_hf
from pathsum.sources.load import load
from pathsum.sources.named import named_models
from pathsum.sources.transformer_lens import from_transformer_lens

__all__ = ["FETCHED", "from_hf", "from_transformer_lens", "load", "named_models"]
