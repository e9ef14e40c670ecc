"""Loading models: by name, from folders and files of pathsum and other programs, and from the hub.

In reading order:

load               `load`: a model by name, folder, file or hub id; state dicts
named              bundled, hand-built and downloadable models
hugging_face       checkpoint folders and live models of transformers
gguf_model         GGUF files as models
transformer_lens   live models and old checkpoints of TransformerLens
families/          architectures: the meaning of config.json, and the location of each tensor
foreign_config     the values of another program's config.json
mapped_store       a checkpoint's tensors under pathsum's names and axes
checkpoint_folder  safetensors and pickles, sharded or not; MXFP4
gguf_file          a GGUF file's metadata, tensors and tokenizer
"""

from pathsum.sources.hugging_face import from_hf
from pathsum.sources.load import load
from pathsum.sources.named import FETCHED, named_models
from pathsum.sources.transformer_lens import from_transformer_lens

__all__ = ["FETCHED", "from_hf", "from_transformer_lens", "load", "named_models"]
