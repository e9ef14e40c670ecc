"""The model: config, weights, one forward pass, traces, heads. In reading order:

config       sizes and architecture
weights      tensors, read and checked on first use; `store` and `storage` are where they are kept
transformer  the parts of the forward pass; `rotary` positions
edits        what may be exchanged in a run; `plan` sorts it, `edited_reads` and `node_reads` do it
run          the forward pass, with edits; `recording` is what it keeps and what it may drop
node_reads   runs in which single edges between nodes are kept or cut
trace        what one run did
folding      normalization folded into reads; centered unembedding
head         circuits of a head and of a path
model        Model: all of the above under one name
edited       models with heads, edges or patterns exchanged for good
sequences    text and token ids in any form, as checked batches
losses       losses per token and per sequence; what is predicted and how it is scored
precision    how far a low-precision forward is from the float32 one
make         models from tensors, or random
construct/   hand-built models with known circuits
symmetries   changes of weights that change nothing
"""

from pathsum.model.config import Config
from pathsum.model.folding import Folding, fold
from pathsum.model.head import Head
from pathsum.model.make import from_tensors, random_model
from pathsum.model.model import Model
from pathsum.model.recording import Keep, NormScales, Recording, Run
from pathsum.model.trace import Trace, trace_run
from pathsum.model.weights import LayerWeights, Weights
from pathsum.names import HeadId, HeadName, Path, Source

__all__ = [
    "Config",
    "Folding",
    "Head",
    "HeadId",
    "HeadName",
    "Keep",
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
