"""Where models come from: bundled, built by hand, own folders, the hub."""

from pathsum.sources.load import load
from pathsum.sources.named import ModelList, NamedModel, named_models

__all__ = ["ModelList", "NamedModel", "load", "named_models"]
