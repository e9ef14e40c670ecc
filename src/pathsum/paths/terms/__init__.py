"""Term importance: how much paths of each order reduce the loss.

truncation        the streams of a run truncated by order, in one pass
term_importance   losses and gains of every order, and of sets of terms
"""

from pathsum.paths.terms.term_importance import (
    TermImportance,
    TermSet,
    TermSetGain,
    by_head,
    by_layer,
    by_virtual_head,
    head_set,
    term_importance,
)
from pathsum.paths.terms.truncation import MlpOutputs, Scales

__all__ = [
    "MlpOutputs",
    "Scales",
    "TermImportance",
    "TermSet",
    "TermSetGain",
    "by_head",
    "by_layer",
    "by_virtual_head",
    "head_set",
    "term_importance",
]
