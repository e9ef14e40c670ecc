"""The paper, on a run: logits and attention scores as exact sums over paths.

In reading order:

    frozen         a run with patterns and scales held fixed is a linear model; its sweeps
    path_sum       PathSum: the logits as a sum over paths (`trace.paths()`)
    score_sum      ScoreSum: a head's scores as a sum over pairs of parts (`trace.scores(head)`)
    score_cells    the strongest terms of a head's attention scores
    target         Target: the logit, or difference of logits, that is explained
    breakdown      named shares of a number
    flows          every total toward a target, from one sweep up and one down
    attribution    LogitAttribution: these totals (`trace.paths().toward(...)`)
    search         the strongest single paths, with a proof or a bound
    explanation    PathExplanation: one prediction as a sum over paths, and where paths came from
    logit_effects  direct attribution and logit effects of the next token at every position
    circuit/       the circuit of a prediction: V, Q and K edges down to the tokens
    truncation     streams truncated by order, all in one pass
    terms          term importance: what paths of each order do for the loss
    intervene/     ablating, replacing and patching: runs with parts exchanged
    virtual_head   chains of heads as heads
"""

from pathsum.base import Part, Side
from pathsum.base.estimate import Estimate
from pathsum.paths.attribution import LogitAttribution
from pathsum.paths.breakdown import Breakdown, Grid
from pathsum.paths.explanation import explain_prediction, routes
from pathsum.paths.intervene.ablation import Ablation, After, Knockout, ablate
from pathsum.paths.intervene.causal import CausalEffects, PatchEffect, causal_effects, patch_effect
from pathsum.paths.intervene.descriptions import CopyingPart, IdealPattern, ScoreTerm, TopTokens
from pathsum.paths.intervene.patch_sweep import PatchSweep, patch_sweep
from pathsum.paths.intervene.patching import patch, without
from pathsum.paths.intervene.replacement import Replacement, replace
from pathsum.paths.logit_effects import (
    DirectAttribution,
    LogitEffects,
    direct_attribution,
    effects_by_layer,
    logit_effects,
    moved_by_layer,
)
from pathsum.paths.path_sum import PathSum, expand_logits
from pathsum.paths.score_cells import ScoreCell, ScoreSummary
from pathsum.paths.score_sum import ScoreSum, expand_scores
from pathsum.paths.search import TopPaths
from pathsum.paths.target import find_target
from pathsum.paths.terms import (
    TermImportance,
    TermSet,
    by_head,
    by_layer,
    by_virtual_head,
    head_set,
    term_importance,
)
from pathsum.paths.truncation import MlpOutputs, Scales
from pathsum.paths.virtual_head import VirtualHead, VirtualImportance, virtual_head

__all__ = [
    "Ablation",
    "After",
    "Breakdown",
    "CausalEffects",
    "CopyingPart",
    "DirectAttribution",
    "Estimate",
    "Grid",
    "IdealPattern",
    "Knockout",
    "LogitAttribution",
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
    "VirtualHead",
    "VirtualImportance",
    "ablate",
    "by_head",
    "by_layer",
    "by_virtual_head",
    "causal_effects",
    "direct_attribution",
    "effects_by_layer",
    "expand_logits",
    "expand_scores",
    "explain_prediction",
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
