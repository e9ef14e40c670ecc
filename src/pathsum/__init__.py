"""pathsum: a transformer is a sum over paths; this writes the sum down and shows what matters.

The map, in reading order:

    what is studied      Config Model Head Trace Path Weights
    where models come    load random_model from_tensors construct
    the algebra          Factored
    from weights alone   bigram skip_trigrams composition bandwidth
    training             Corpus train
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
    from pathsum.circuits import bandwidth, bigram, composition, skip_trigrams
    from pathsum.errors import PathsumError
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
    from pathsum.sources import load
    from pathsum.text import Corpus
    from pathsum.training import train

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
    "bandwidth": "pathsum.circuits",
    "bigram": "pathsum.circuits",
    "composition": "pathsum.circuits",
    "construct": "pathsum.model",
    "from_tensors": "pathsum.model",
    "load": "pathsum.sources",
    "random_model": "pathsum.model",
    "skip_trigrams": "pathsum.circuits",
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
    "bandwidth",
    "bigram",
    "composition",
    "construct",
    "from_tensors",
    "load",
    "random_model",
    "skip_trigrams",
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
