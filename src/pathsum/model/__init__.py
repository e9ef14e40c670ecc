"""The object studied: Config, Weights, the forward pass, Trace, Head, Path, hand-built models."""

from pathsum.model.config import Config
from pathsum.model.folding import fold
from pathsum.model.head import Head
from pathsum.model.labels import HeadId, HeadName
from pathsum.model.make import from_tensors, random_model
from pathsum.model.model import Model
from pathsum.model.path import Path, Source
from pathsum.model.trace import Scales, Trace
from pathsum.model.weights import LayerWeights, Weights

__all__ = [
    "Config",
    "Head",
    "HeadId",
    "HeadName",
    "LayerWeights",
    "Model",
    "Path",
    "Scales",
    "Source",
    "Trace",
    "Weights",
    "fold",
    "from_tensors",
    "random_model",
]
