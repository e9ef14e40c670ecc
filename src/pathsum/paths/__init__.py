"""The paper, on a run: expansion of logits and of scores, importance, search, intervention."""

from pathsum.names import Edge, Part, Side
from pathsum.paths.explain.attribution import (
    DirectAttribution,
    LogitEffects,
    direct_attribution,
    effects_by_layer,
    logit_effects,
    moved_by_layer,
)
from pathsum.paths.explain.breakdown import Breakdown, Grid
from pathsum.paths.explain.frozen_and_causal import EdgeCredit, FrozenAndCausal
from pathsum.paths.explain.routes import Routes, routes
from pathsum.paths.explain.score_cells import CellTerm, ScoreCell, ScoreSummary, SummaryTerm
from pathsum.paths.explain.search import RankedPath, TopPaths
from pathsum.paths.explain.target import Target, find_target
from pathsum.paths.explain.toward import Toward
from pathsum.paths.intervene.ablation import Ablation, After, Knockout, ablate
from pathsum.paths.intervene.causal import CausalEffects, PatchEffect, causal_effects, patch_effect
from pathsum.paths.intervene.descriptions import CopyingPart, ScoreTerm, TopTokens
from pathsum.paths.intervene.ideal_patterns import IdealPattern
from pathsum.paths.intervene.patching import patch
from pathsum.paths.intervene.replacement import Replacement, replace
from pathsum.paths.path_sum import PathSum, expand_logits
from pathsum.paths.score_sum import ScorePair, ScoreSum, expand_scores
from pathsum.paths.terms.term_importance import TermImportance, TermSetGain, term_importance
from pathsum.paths.terms.term_sets import TermSet, by_head, by_layer, by_virtual_head, head_set
from pathsum.paths.terms.truncation import MlpOutputs, Scales
from pathsum.paths.virtual_head import VirtualHead, VirtualImportance, virtual_head
from pathsum.result.estimate import Estimate

__all__ = [
    "Ablation",
    "After",
    "Breakdown",
    "CausalEffects",
    "CellTerm",
    "CopyingPart",
    "DirectAttribution",
    "Edge",
    "EdgeCredit",
    "Estimate",
    "FrozenAndCausal",
    "Grid",
    "IdealPattern",
    "Knockout",
    "LogitEffects",
    "MlpOutputs",
    "Part",
    "PatchEffect",
    "PathSum",
    "RankedPath",
    "Replacement",
    "Routes",
    "Scales",
    "ScoreCell",
    "ScorePair",
    "ScoreSum",
    "ScoreSummary",
    "ScoreTerm",
    "Side",
    "SummaryTerm",
    "Target",
    "TermImportance",
    "TermSet",
    "TermSetGain",
    "TopPaths",
    "TopTokens",
    "Toward",
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
    "find_target",
    "head_set",
    "logit_effects",
    "moved_by_layer",
    "patch",
    "patch_effect",
    "replace",
    "routes",
    "term_importance",
    "virtual_head",
]
