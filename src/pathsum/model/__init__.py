"""The object studied: Config, Weights, the forward pass, Trace, Head, Path, hand-built models."""

from pathsum.model.config import Config
from pathsum.model.folding import fold
from pathsum.model.head import Head
from pathsum.model.make import from_tensors, random_model
from pathsum.model.model import Model
from pathsum.model.run import NormScales, Recording, Run
from pathsum.model.trace import Trace, trace_run
from pathsum.model.weights import LayerWeights, Weights
from pathsum.names import HeadId, HeadName, Path, Source

__all__ = [
    "Config",
    "Head",
    "HeadId",
    "HeadName",
    "LayerWeights",
    "Model",
    "NormScales",
    "Path",
    "Recording",
    "Run",
    "Source",
    "Trace",
    "Weights",
    "fold",
    "from_tensors",
    "random_model",
    "trace_run",
]
