"""The paper, on a run: logits and attention scores as exact sums over paths.

In reading order:

    frozen        a run with patterns and scales held fixed is a linear model; its sources
    sweep         the one linear sweep: streams carried up, gradients carried down, by order
    path_sum      PathSum: the logits as a sum over paths (`trace.paths()`)
    score_sum     ScoreSum: a head's scores as a sum over pairs of parts (`trace.scores(head)`)
    score_sides   one side of these pairs, a query or a key
    target        Target: the logit, or difference of logits, that is explained
    explain/      why a token was predicted, why a head attended where it did
    circuit/      the circuit of a prediction: V, Q and K edges down to the tokens
    terms/        term importance: what paths of each order do for the loss
    intervene/    ablating, replacing and patching: runs with parts exchanged
    virtual_head  chains of heads as heads
"""

from pathsum.base import Edge, Part, Side
from pathsum.base.estimate import Estimate
from pathsum.paths.explain.answer import answer, routes
from pathsum.paths.explain.attribution import (
    DirectAttribution,
    LogitEffects,
    direct_attribution,
    effects_by_layer,
    logit_effects,
    moved_by_layer,
)
from pathsum.paths.explain.breakdown import Breakdown, Grid
from pathsum.paths.explain.score_cells import ScoreCell, ScoreSummary
from pathsum.paths.explain.search import TopPaths
from pathsum.paths.explain.toward import Toward
from pathsum.paths.intervene.ablation import Ablation, After, Knockout, ablate
from pathsum.paths.intervene.causal import CausalEffects, PatchEffect, causal_effects, patch_effect
from pathsum.paths.intervene.descriptions import CopyingPart, IdealPattern, ScoreTerm, TopTokens
from pathsum.paths.intervene.patch_sweep import PatchSweep, patch_sweep
from pathsum.paths.intervene.patching import patch, without
from pathsum.paths.intervene.replacement import Replacement, replace
from pathsum.paths.path_sum import PathSum, expand_logits
from pathsum.paths.score_sum import ScoreSum, expand_scores
from pathsum.paths.target import find_target
from pathsum.paths.terms.term_importance import (
    TermImportance,
    TermSet,
    by_head,
    by_layer,
    by_virtual_head,
    head_set,
    term_importance,
)
from pathsum.paths.terms.truncation import MlpOutputs, Scales
from pathsum.paths.virtual_head import VirtualHead, VirtualImportance, virtual_head

__all__ = [
    "Ablation",
    "After",
    "Breakdown",
    "CausalEffects",
    "CopyingPart",
    "DirectAttribution",
    "Edge",
    "Estimate",
    "Grid",
    "IdealPattern",
    "Knockout",
    "LogitEffects",
    "MlpOutputs",
    "Part",
    "PatchEffect",
    "PatchSweep",
    "PathSum",
    "Replacement",
    "Scales",
    "ScoreCell",
    "ScoreSum",
    "ScoreSummary",
    "ScoreTerm",
    "Side",
    "TermImportance",
    "TermSet",
    "TopPaths",
    "TopTokens",
    "Toward",
    "VirtualHead",
    "VirtualImportance",
    "ablate",
    "answer",
    "by_head",
    "by_layer",
    "by_virtual_head",
    "causal_effects",
    "direct_attribution",
    "effects_by_layer",
    "expand_logits",
    "expand_scores",
    "find_target",
    "head_set",
    "logit_effects",
    "moved_by_layer",
    "patch",
    "patch_effect",
    "patch_sweep",
    "replace",
    "routes",
    "term_importance",
    "virtual_head",
    "without",
]
