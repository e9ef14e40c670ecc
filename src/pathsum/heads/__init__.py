"""Kinds of heads: scores with their nulls, the atlas, induction; and neurons of MLPs.

In reading order:

score                a score: its description (scores.toml), its value with p; heads on a probe
probe                repeated random tokens, scores of their attention patterns, losses on each
                     copy; `in_context_learning`
null                 scores on runs, compared with random heads
circuit_scores       copying, deleting and matching, from data and from weights
probe_scores         scores by probe: repeats, text, similar tokens, split words
kinds                the table of kinds, and `judge`, which decides the kind of a head
atlas                `atlas`: every head, every score, its kind; as tables, heat maps and HTML
mechanism            the edge that an induction head depends on, and its score terms
induction            `induction`: which heads do induction, through which lower head, at what cost
attention            `attention`: the patterns of a run, as a heat map and as a table
contexts             `top_contexts`: the contexts of a text in which a head is most active
neurons              `neurons`: all neurons of an MLP; `neuron`: the page of one
"""

from pathsum.heads.atlas import Atlas, atlas
from pathsum.heads.attention import Attention, attention
from pathsum.heads.contexts import Context, TopContexts, top_contexts
from pathsum.heads.induction import Induction, InductionHead, induction
from pathsum.heads.kinds import HeadEntry
from pathsum.heads.neurons import Neuron, Neurons, neuron, neurons
from pathsum.heads.probe import in_context_learning
from pathsum.heads.score import Score, ScoreInfo

__all__ = [
    "Atlas",
    "Attention",
    "Context",
    "HeadEntry",
    "Induction",
    "InductionHead",
    "Neuron",
    "Neurons",
    "Score",
    "ScoreInfo",
    "TopContexts",
    "atlas",
    "attention",
    "in_context_learning",
    "induction",
    "neuron",
    "neurons",
    "top_contexts",
]
