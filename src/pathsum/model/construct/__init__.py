"""Models built by hand, whose answers are known.

Their weights are computed, not trained, so what an analysis should find in them is a fact. They
are ground truth for tests, and the shortest way to see a claim of the paper at work.

    bigram            no layers: logits are a given table
    skip_trigrams     one layer: a given list of [source] … [destination] → [out]
    induction         two layers: a previous-token head and an induction head, by K-composition
    induction_by_q    two layers: induction by pointers to positions, by Q-composition
    virtual_head      two layers: a head pair that acts as one head, by V-composition

Each stores what it knows in one-hot blocks of the stream: a block for the token that stands here,
one for what a head brought, one for what is predicted.
"""

from pathsum.model.construct.bigrams import bigram
from pathsum.model.construct.inductions import induction, induction_by_q
from pathsum.model.construct.trigrams import skip_trigrams
from pathsum.model.construct.virtual import virtual_head

__all__ = ["bigram", "induction", "induction_by_q", "skip_trigrams", "virtual_head"]
