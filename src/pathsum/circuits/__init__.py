"""The paper, from weights alone: circuits of a model before it has read any text.

    bigram        the direct path W_E W_U        bigram_fit   how well it matches a text's bigrams
    tokens/       QK and OV in the token basis: token_qk, attention, token_ov, effect, clusters,
                  head_card
    copying       eigenvalues of full OV with their null, the diagonal, top-1
    trigrams/     skip_trigrams: [source] … [destination] → [out], their patterns, evidence and bugs
    positional    attention by offset alone      offset_parts the position part of scores
    composition/  Q-, K- and V-composition of all pairs of heads, virtual_weights, with their nulls
    matching      eigenvalues of QK through a lower head, the induction heads' other axis
    stream/       bandwidth: which dimensions of the residual stream are used by what, and deletion
    alignment     align_heads: which heads of two models do the same; head_functions: what they do,
                  rotated_heads: what they would do in random directions

No vocabulary × vocabulary matrix is ever formed: circuits between tokens stay factored, and their
largest entries, rows and spectra are found from the factors.
"""

from pathsum.circuits.alignment import HeadAlignment, HeadMatch, align_heads
from pathsum.circuits.bigram import Bigram, Continuations, bigram, continuations
from pathsum.circuits.composition.composition import Composition, CompositionScores, composition
from pathsum.circuits.composition.edges import Edges, ScoredEdge
from pathsum.circuits.composition.empirical import EmpiricalComposition, empirical_composition
from pathsum.circuits.composition.pair_components import PairComponents, pair_components
from pathsum.circuits.composition.projection_kernel import ProjectionKernel, projection_kernel
from pathsum.circuits.composition.virtual_weights import VirtualWeights, virtual_weights
from pathsum.circuits.copying import Copying, HeadCopying, copying
from pathsum.circuits.positional import OffsetProfile, Positional, positional
from pathsum.circuits.stream.bandwidth import Bandwidth, bandwidth
from pathsum.circuits.tokens.clusters import Clusters, Mode, clusters
from pathsum.circuits.tokens.head_card import HeadCard, TokenCard, head_card, token_card
from pathsum.circuits.tokens.ov import Effect, effect, token_ov
from pathsum.circuits.tokens.qk import Attention, attention, token_qk
from pathsum.circuits.tokens.token import Scored, Token
from pathsum.circuits.trigrams.bug_cost import BugCost, bug_cost
from pathsum.circuits.trigrams.bugs import Bug, Bugs, forced_bugs
from pathsum.circuits.trigrams.skip_trigrams import SkipTrigram, SkipTrigrams, skip_trigrams
from pathsum.circuits.trigrams.source_table import SourceTable, source_table
from pathsum.circuits.trigrams.triple import Evidence, Pattern
from pathsum.model.sequences import open_text

__all__ = [
    "Attention",
    "Bandwidth",
    "Bigram",
    "Bug",
    "BugCost",
    "Bugs",
    "Clusters",
    "Composition",
    "CompositionScores",
    "Continuations",
    "Copying",
    "Edges",
    "Effect",
    "EmpiricalComposition",
    "Evidence",
    "HeadAlignment",
    "HeadCard",
    "HeadCopying",
    "HeadMatch",
    "Mode",
    "OffsetProfile",
    "PairComponents",
    "Pattern",
    "Positional",
    "ProjectionKernel",
    "Scored",
    "ScoredEdge",
    "SkipTrigram",
    "SkipTrigrams",
    "SourceTable",
    "Token",
    "TokenCard",
    "VirtualWeights",
    "align_heads",
    "attention",
    "bandwidth",
    "bigram",
    "bug_cost",
    "clusters",
    "composition",
    "continuations",
    "copying",
    "effect",
    "empirical_composition",
    "forced_bugs",
    "head_card",
    "open_text",
    "pair_components",
    "positional",
    "projection_kernel",
    "skip_trigrams",
    "source_table",
    "token_card",
    "token_ov",
    "token_qk",
    "virtual_weights",
]
