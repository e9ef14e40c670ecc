"""The paper, from weights alone: circuits of a model before it has read any text.

    token_basis        tokens in results; W_E and W_U around a circuit
    bigram             the direct path W_E W_U
    bigram_fit         its fit to the bigrams of a text
    qk_ov              QK and OV in the token basis: token_qk, attention, token_ov, effect
    copying            eigenvalues of full OV with their null, the diagonal, top-1
    matching           eigenvalues of QK through a lower head, induction heads' other axis
    positional         attention by offset alone
    reads_and_writes   factors and Gram matrices of the reads and writes of heads
    composition        Q-, K- and V-composition of all pairs of heads, with its null
    composition_edges  scored edges, ranked; the cost of cutting them
    composition_pairs  composition by subspaces, single directions and other heads
    virtual_weights    any write times any later read: heads, MLPs, embedding, unembedding
    neurons            reads and writes of neurons against random rotations
    bandwidth          use of the residual stream by heads, and heads that delete
    dimensions         used dimensions of the stream: by one matrix, by two, layer by layer
    trigrams           skip_trigrams: [source] … [destination] → [out], ranked by text or weights
    trigram_text       their patterns, their counts in text, and the loss they save
    trigram_bugs       cross terms that QK and OV force, and their cost
    head_card          token clusters, cards of a head and of a token, the paper's source table
    head_functions     heads as functions of tokens and offsets; random rotations of them
    align_heads        one-to-one matching of the heads of two models, with its null

No vocabulary × vocabulary matrix is ever formed: circuits between tokens stay factored, and their
largest entries, rows and spectra are found from the factors.
"""

from pathsum.circuits.align_heads import HeadAlignment, align_heads
from pathsum.circuits.bandwidth import bandwidth
from pathsum.circuits.bigram import bigram, continuations
from pathsum.circuits.composition import Composition, composition
from pathsum.circuits.composition_edges import ScoredEdge
from pathsum.circuits.composition_pairs import composition_by
from pathsum.circuits.copying import Copying, copying
from pathsum.circuits.head_card import HeadCard, clusters, head_card, source_table, token_card
from pathsum.circuits.positional import OffsetProfile, positional
from pathsum.circuits.qk_ov import Effect, effect, token_attention, token_ov, token_qk
from pathsum.circuits.trigram_bugs import bug_cost, forced_bugs
from pathsum.circuits.trigrams import SkipTrigrams, skip_trigrams
from pathsum.circuits.virtual_weights import VirtualWeights, virtual_weights

__all__ = [
    "Composition",
    "Copying",
    "Effect",
    "HeadAlignment",
    "HeadCard",
    "OffsetProfile",
    "ScoredEdge",
    "SkipTrigrams",
    "VirtualWeights",
    "align_heads",
    "bandwidth",
    "bigram",
    "bug_cost",
    "clusters",
    "composition",
    "composition_by",
    "continuations",
    "copying",
    "effect",
    "forced_bugs",
    "head_card",
    "positional",
    "skip_trigrams",
    "source_table",
    "token_attention",
    "token_card",
    "token_ov",
    "token_qk",
    "virtual_weights",
]
