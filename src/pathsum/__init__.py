"""pathsum: a transformer is a sum over paths; this writes the sum down and shows what matters.

The map, in reading order:

    what is studied      Config Model Head Trace Path Weights
    where models come    load from_hf from_transformer_lens random_model from_tensors construct
    the algebra          Factored
    from weights alone   bigram copying skip_trigrams composition bandwidth align_heads
    who does what        atlas induction
    on a run             term_importance ablate replace
    training             Corpus train dynamics
    to look at           explore report
    errors               PathsumError

    >>> import pathsum as ps
    >>> model = ps.construct.induction()
    >>> trace = model.trace("a b c a")
    >>> trace.patterns[1].shape
    torch.Size([1, 2, 5, 5])

Names are imported when first used, so that `import pathsum` costs nothing. The row convention of
all matrices is stated once, in `pathsum.shapes`.
"""

import importlib
from typing import TYPE_CHECKING, Any

from pathsum._version import __version__

if TYPE_CHECKING:
    from pathsum.algebra import Factored
    from pathsum.circuits import (
        align_heads,
        bandwidth,
        bigram,
        composition,
        copying,
        skip_trigrams,
    )
    from pathsum.errors import PathsumError
    from pathsum.explorer import report
    from pathsum.heads import atlas, induction
    from pathsum.model import (
        Config,
        Head,
        Model,
        Path,
        Trace,
        Weights,
        construct,
        from_tensors,
        random_model,
    )
    from pathsum.paths import ablate, replace, term_importance
    from pathsum.server import explore
    from pathsum.sources import from_hf, from_transformer_lens, load
    from pathsum.text import Corpus
    from pathsum.training import dynamics, train

_HOMES = {
    "Config": "pathsum.model",
    "Corpus": "pathsum.text",
    "Factored": "pathsum.algebra",
    "Head": "pathsum.model",
    "Model": "pathsum.model",
    "Path": "pathsum.model",
    "PathsumError": "pathsum.errors",
    "Trace": "pathsum.model",
    "Weights": "pathsum.model",
    "ablate": "pathsum.paths",
    "align_heads": "pathsum.circuits",
    "atlas": "pathsum.heads",
    "bandwidth": "pathsum.circuits",
    "bigram": "pathsum.circuits",
    "composition": "pathsum.circuits",
    "construct": "pathsum.model",
    "copying": "pathsum.circuits",
    "dynamics": "pathsum.training",
    "explore": "pathsum.server",
    "from_hf": "pathsum.sources",
    "from_tensors": "pathsum.model",
    "from_transformer_lens": "pathsum.sources",
    "induction": "pathsum.heads",
    "load": "pathsum.sources",
    "random_model": "pathsum.model",
    "replace": "pathsum.paths",
    "report": "pathsum.explorer",
    "skip_trigrams": "pathsum.circuits",
    "term_importance": "pathsum.paths",
    "train": "pathsum.training",
}

__all__ = [
    "Config",
    "Corpus",
    "Factored",
    "Head",
    "Model",
    "Path",
    "PathsumError",
    "Trace",
    "Weights",
    "__version__",
    "ablate",
    "align_heads",
    "atlas",
    "bandwidth",
    "bigram",
    "composition",
    "construct",
    "copying",
    "dynamics",
    "explore",
    "from_hf",
    "from_tensors",
    "from_transformer_lens",
    "induction",
    "load",
    "random_model",
    "replace",
    "report",
    "skip_trigrams",
    "term_importance",
    "train",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'pathsum' has no attribute {name!r}")
    module = importlib.import_module(home)
    if hasattr(module, name):
        return getattr(module, name)
    return importlib.import_module(f"{home}.{name}")


def __dir__() -> list[str]:
    return sorted(__all__)
