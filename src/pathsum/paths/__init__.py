"""The paper, on a run: expansion of logits and of scores, importance, search, intervention."""

from pathsum.paths.ablation import Ablation, After, Knockout, ablate
from pathsum.paths.attribution import (
    DirectAttribution,
    LogitEffects,
    direct_attribution,
    logit_effects,
)
from pathsum.paths.beside import EdgeCredit, FrozenAndCausal
from pathsum.paths.breakdown import Breakdown, Grid
from pathsum.paths.causal import CausalEffects, PatchEffect, causal_effects, patch_effect
from pathsum.paths.cells import CellTerm, ScoreCell, ScoreSummary, SummaryTerm
from pathsum.paths.descriptions import CopyingPart, ScoreTerm, TopTokens
from pathsum.paths.edited import EditedTrace
from pathsum.paths.edits import Edge, Side
from pathsum.paths.effects import effects_by_layer, moved_by_layer
from pathsum.paths.estimates import Estimate
from pathsum.paths.importance import TermImportance, TermSetGain, term_importance
from pathsum.paths.interventions import run_edited
from pathsum.paths.logits import PathSum, expand_logits
from pathsum.paths.orders import MlpsOf, ScaleOf
from pathsum.paths.parts import Part
from pathsum.paths.patching import patch
from pathsum.paths.patterns import IdealPattern
from pathsum.paths.replacement import Replacement, replace
from pathsum.paths.routes import Routes, routes
from pathsum.paths.scores import ScorePair, ScoreSum, expand_scores
from pathsum.paths.search import RankedPath, TopPaths
from pathsum.paths.target import Target, find_target
from pathsum.paths.terms import TermSet, by_head, by_layer, by_virtual_head, head_set
from pathsum.paths.toward import Toward
from pathsum.paths.virtual import VirtualHead, VirtualImportance, virtual_head

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
    "EditedTrace",
    "Estimate",
    "FrozenAndCausal",
    "Grid",
    "IdealPattern",
    "Knockout",
    "LogitEffects",
    "MlpsOf",
    "Part",
    "PatchEffect",
    "PathSum",
    "RankedPath",
    "Replacement",
    "Routes",
    "ScaleOf",
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
    "run_edited",
    "term_importance",
    "virtual_head",
]
