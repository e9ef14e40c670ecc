"""The model: config, weights, one forward pass, traces, heads. In reading order:

config       sizes and architecture
weights      tensors, read and checked on first use; shared K/V heads
store        tensors in memory or in mapped files, read by layer; `storage`: saved models
transformer  the parts of the forward pass; `rotary` positions, `activations` of MLPs
edit         Edit: a site of a run and the value that replaces it
editor       the edits of a run, applied at five points; `edge_edits`: edges of any reader
forward      the forward pass, `run`, with edits and a choice of values to record (`recording`)
trace        Trace: the record of one run
gating       the neurons of an MLP as values times gates
folding      normalization folded into reads; centered unembedding
head         circuits of a head and of a path
model        Model: all of the above under one name
sites        names of sites and stored edits, checked against a config
reference    replacements for an output: zero, its mean over a text, another run
edited       models with heads, edges or patterns replaced permanently
generation   a text continued token by token, with edits
sequences    text and token ids in any form, as checked batches
losses       losses per token and per sequence, targets and metrics
make         models from tensors, or random
construct    hand-built models with known circuits; `hand_built`: their parts, and those with MLPs
planted      their true edges, with inputs to find them on
symmetries   weight changes that leave the function unchanged
processes    pieces of an analysis shared among processes (torchrun)
"""

from pathsum.base import HeadId, HeadName, Path, Source
from pathsum.model.config import Config
from pathsum.model.folding import Folding, fold
from pathsum.model.head import Head
from pathsum.model.make import from_tensors, random_model
from pathsum.model.model import Model
from pathsum.model.recording import EVERYTHING, RESIDUAL, Keep, Run
from pathsum.model.trace import Trace, trace_run
from pathsum.model.weights import LayerWeights, Weights

__all__ = [
    "EVERYTHING",
    "RESIDUAL",
    "Config",
    "Folding",
    "Head",
    "HeadId",
    "HeadName",
    "Keep",
    "LayerWeights",
    "Model",
    "Path",
    "Run",
    "Source",
    "Trace",
    "Weights",
    "fold",
    "from_tensors",
    "random_model",
    "trace_run",
]
