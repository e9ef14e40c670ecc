"""pathsum: write a transformer as a sum over paths and find the paths that matter.

The public names, in reading order:

    models               Config Model Head Trace Keep Path Weights
    sources              load from_hf from_transformer_lens random_model from_tensors construct
    low-rank matrices    Factored
    from weights alone   bigram copying skip_trigrams composition bandwidth virtual_head align_heads
    heads and neurons    atlas attention induction in_context_learning neurons neuron
    on a run             Site Graph score term_importance ablate replace causal_effects patch_sweep
    on many prompts      Prompt read_prompts mean_circuit edge_curve rule_agreement mean_lens
    training             Corpus train dynamics
    readable rules       decompile Program
    pages and reports    explore report paper figures
    errors               PathsumError

    >>> import pathsum as ps
    >>> model = ps.construct.induction()
    >>> trace = model.trace("a b c a")
    >>> trace.patterns[1].shape
    torch.Size([1, 2, 5, 5])

A `Trace` expands a run into paths and attention scores: `trace.paths()`, `trace.scores(head)`,
`trace.patch(…)`. An edited model, such as `model.edited({"L1H0": "zero"})`, supports the same
methods as any other. Names are imported on first use, so `import pathsum` is fast. The row
convention for all matrices is defined in `pathsum.base.shapes`.
"""

import importlib
from typing import TYPE_CHECKING, Any

from pathsum._version import __version__

if TYPE_CHECKING:
    from pathsum import figures
    from pathsum.algebra import Factored
    from pathsum.base import Site
    from pathsum.base.errors import PathsumError
    from pathsum.circuits import align_heads, bandwidth, bigram, composition, copying, skip_trigrams
    from pathsum.claims import paper
    from pathsum.explorer import report
    from pathsum.explorer.server import explore
    from pathsum.heads import atlas, attention, in_context_learning, induction, neuron, neurons
    from pathsum.model import (
        Config,
        Head,
        Keep,
        Model,
        Path,
        Trace,
        Weights,
        construct,
        from_tensors,
        random_model,
    )
    from pathsum.paths import (
        ablate,
        causal_effects,
        patch_sweep,
        replace,
        term_importance,
        virtual_head,
    )
    from pathsum.paths.circuit import mean_circuit
    from pathsum.paths.edge_curve import edge_curve
    from pathsum.paths.graph import Graph
    from pathsum.paths.mean_lens import mean_lens
    from pathsum.paths.prompts import Prompt, read_prompts
    from pathsum.paths.rule_agreement import rule_agreement
    from pathsum.paths.score import score
    from pathsum.program import Program, decompile
    from pathsum.sources import from_hf, from_transformer_lens, load
    from pathsum.text import Corpus
    from pathsum.training import dynamics, train

_NAMES = {
    "base": "Site",
    "base.errors": "PathsumError",
    "algebra": "Factored",
    "text": "Corpus",
    "model": "Config Head Keep Model Path Trace Weights from_tensors random_model",
    "sources": "from_hf from_transformer_lens load",
    "circuits": "align_heads bandwidth bigram composition copying skip_trigrams",
    "paths": "ablate causal_effects patch_sweep replace term_importance virtual_head",
    "paths.circuit": "mean_circuit",
    "paths.edge_curve": "edge_curve",
    "paths.graph": "Graph",
    "paths.mean_lens": "mean_lens",
    "paths.prompts": "Prompt read_prompts",
    "paths.rule_agreement": "rule_agreement",
    "paths.score": "score",
    "heads": "atlas attention in_context_learning induction neuron neurons",
    "training": "dynamics train",
    "program": "Program decompile",
    "claims": "paper",
    "explorer": "report",
    "explorer.server": "explore",
}
"""The public names by package."""
_MODULES = {"construct": "pathsum.model.construct", "figures": "pathsum.figures"}
"""The public modules."""
_HOMES = {name: f"pathsum.{room}" for room, names in _NAMES.items() for name in names.split()}

__all__ = [
    "Config",
    "Corpus",
    "Factored",
    "Graph",
    "Head",
    "Keep",
    "Model",
    "Path",
    "PathsumError",
    "Program",
    "Prompt",
    "Site",
    "Trace",
    "Weights",
    "__version__",
    "ablate",
    "align_heads",
    "atlas",
    "attention",
    "bandwidth",
    "bigram",
    "causal_effects",
    "composition",
    "construct",
    "copying",
    "decompile",
    "dynamics",
    "edge_curve",
    "explore",
    "figures",
    "from_hf",
    "from_tensors",
    "from_transformer_lens",
    "in_context_learning",
    "induction",
    "load",
    "mean_circuit",
    "mean_lens",
    "neuron",
    "neurons",
    "paper",
    "patch_sweep",
    "random_model",
    "read_prompts",
    "replace",
    "report",
    "rule_agreement",
    "score",
    "skip_trigrams",
    "term_importance",
    "train",
    "virtual_head",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    if name not in _HOMES:
        raise AttributeError(f"module 'pathsum' has no attribute {name!r}")
    # Looked up once: afterwards the name is an attribute like any other.
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
