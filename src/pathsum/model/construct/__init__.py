"""Hand-built models: weights that are computed, not trained, so that the circuits are known.

They are ground truth for tests, and the shortest way to see a claim of the paper at work.

    bigram            no layers: logits are a given table
    skip_trigrams     one layer: a given list of [source] … [destination] → [out]
    induction         two layers: a previous-token head and an induction head, by K-composition
    induction_by_q    two layers: induction by pointers to positions, by Q-composition
    virtual_head      two layers: a head pair that acts as one head, by V-composition

Each uses one-hot blocks of the residual stream: one for the current token, one for what a head
moved, one for the prediction.
"""

from pathsum.model.construct.models import (
    bigram,
    induction,
    induction_by_q,
    skip_trigrams,
    virtual_head,
)

__all__ = ["bigram", "induction", "induction_by_q", "skip_trigrams", "virtual_head"]
