"""Path expansion of a run: logits and attention scores as exact sums over paths.

In reading order:

    frozen         a run with patterns and scales (and gates) held fixed is a linear model
    order_sweep    sweeps over it: streams up, gradients down, by order; streams truncated by order
    path_sum       PathSum: the logits as a sum over paths (`trace.paths()`)
    score_sum      ScoreSum: a head's scores as a sum over pairs of parts (`trace.scores(head)`)
    score_cells    the strongest terms of a head's attention scores
    target         Target and PredictionRun: the explained logit, or difference of logits
    flows          all totals toward a target, and direct attribution
    breakdown      named shares of a number
    attribution    LogitAttribution: totals by order, head, edge, source (`paths.toward(...)`)
    path_bounds    bounds on the contributions of single paths
    search         the strongest single paths, with a proof or a bound
    explanation    PathExplanation: one prediction as a sum over paths, and the routes of paths
    lens           Lens: the stream of each layer and position read as logits (`trace.lens()`)
    mean_lens      MeanLens: the map from each layer to the logits, averaged over a text
    logit_effects  direct attribution and logit effects of the next token at every position
    graph          Graph: nodes and edges with their scores, of one prompt or of many
    lead           the head that explains most of a prediction, and the kind of its attention
    reasons        why a head attends where it does: parts of its key and query, tested by cutting
    removal        drops by removing one writer from a head's scores
    graph_text     a graph in words: its sentence, its table, and notes
    tree           a graph as a tree, with the MLPs of one position as one node
    comparison     the difference of two graphs; several models on one text
    edges          nodes and edges of a graph: records, names, and orders in which they join it
    cuts           runs with edges cut, and with only some edges
    gradients      scores of edges by gradients (EAP, EAP-IG)
    score_weights  attention along a line of scores: the contribution of one unit of each score
    attention      attention of head nodes: scores, their contributions and writers
    mlp_nodes      MLP nodes: the writers of their values and of their gates
    growth         growing a circuit from the prediction down
    score          `score`: the one attribution, by share, integrated, gradient, ig, cut, keep
    prompts        Prompt: a text, the prediction to explain, and names of positions
    circuit        `trace.circuit(...)`, and `mean_circuit` over prompts
    component_edges  edges between whole components: runs with some of them, EAP and EAP-IG
    edge_curve     the share that n% of these edges keep (MIB)
    exchange       graphs and scores in the files of circuit-tracer, EAP-IG and MIB
    rule_agreement  shares of edges into MLPs under five rules, against effects of cutting
    faithfulness   the share of a prediction that a circuit keeps on its own
    terms          term importance: the loss saved by paths of each order
    virtual_head   chains of heads as heads
    patching       runs with edges or nodes taken from another run (`trace.patch(...)`)
    causal         the effect of every edge on a prediction
    sweep          every node at every position, patched or ablated
    ablation       the loss without some heads
    descriptions   patterns and OVs that a head can be replaced by
    replacement    the loss with a description in place of a head
"""

from pathsum.base import Part, Side
from pathsum.base.estimate import Estimate
from pathsum.model.reference import Reference
from pathsum.paths.ablation import Ablation, After, ablate
from pathsum.paths.attribution import LogitAttribution
from pathsum.paths.breakdown import Breakdown, Grid
from pathsum.paths.causal import CausalEffects, causal_effects
from pathsum.paths.circuit import find_circuit, mean_circuit
from pathsum.paths.descriptions import CopyingPart, IdealPattern, ScoreTerm, TopTokens
from pathsum.paths.explanation import explain_prediction, routes
from pathsum.paths.graph import Graph
from pathsum.paths.lens import Lens, LensParts
from pathsum.paths.logit_effects import (
    DirectAttribution,
    LogitEffects,
    direct_attribution,
    effects_by_layer,
    logit_effects,
    moved_by_layer,
)
from pathsum.paths.order_sweep import MlpOutputs, Scales
from pathsum.paths.patching import PatchEffect, patch, patch_effect, without
from pathsum.paths.path_sum import Mlps, PathSum, expand_logits
from pathsum.paths.prompts import Prompt
from pathsum.paths.replacement import Replacement, replace
from pathsum.paths.score import score
from pathsum.paths.score_cells import ScoreCell, ScoreSummary
from pathsum.paths.score_sum import ScoreSum, expand_scores
from pathsum.paths.search import TopPaths
from pathsum.paths.sweep import PatchSweep, patch_sweep
from pathsum.paths.target import find_target
from pathsum.paths.terms import (
    TermImportance,
    TermSet,
    by_head,
    by_layer,
    by_mlp,
    by_virtual_head,
    head_set,
    term_importance,
)
from pathsum.paths.virtual_head import VirtualHead, VirtualImportance, virtual_head

__all__ = [
    "Ablation",
    "After",
    "Breakdown",
    "CausalEffects",
    "CopyingPart",
    "DirectAttribution",
    "Estimate",
    "Graph",
    "Grid",
    "IdealPattern",
    "Lens",
    "LensParts",
    "LogitAttribution",
    "LogitEffects",
    "MlpOutputs",
    "Mlps",
    "Part",
    "PatchEffect",
    "PatchSweep",
    "PathSum",
    "Prompt",
    "Reference",
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
    "by_mlp",
    "by_virtual_head",
    "causal_effects",
    "direct_attribution",
    "effects_by_layer",
    "expand_logits",
    "expand_scores",
    "explain_prediction",
    "find_circuit",
    "find_target",
    "head_set",
    "logit_effects",
    "mean_circuit",
    "moved_by_layer",
    "patch",
    "patch_effect",
    "patch_sweep",
    "replace",
    "routes",
    "score",
    "term_importance",
    "virtual_head",
    "without",
]
