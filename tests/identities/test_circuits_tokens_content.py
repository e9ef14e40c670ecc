"""The content part of a head's scores, from moments of the embeddings: against every token."""

import torch
from hypothesis import given, settings
from tests.identities.configs import models

from pathsum.circuits.offset_parts import offset_parts
from pathsum.circuits.tokens.qk import token_keys, token_queries
from pathsum.circuits.tokens.token import token_frequencies
from pathsum.model import Model


@settings(derandomize=True, deadline=None, max_examples=40)
@given(model=models(min_layers=1, max_layers=2, positions=("qk", "residual")))
def test_content_is_the_spread_of_scores_over_tokens(model: Model) -> None:
    """√(Σ p(a) p(b) (q_a · (k_b − k̄))²), over pairs of tokens."""
    p = token_frequencies(model)
    for head in model.heads:
        queries, keys = token_queries(head), token_keys(head)
        scores = queries @ (keys - p @ keys).T * model.config.score_scale
        expected = (p[:, None] * p[None] * scores.square()).sum().sqrt()
        found = torch.tensor(offset_parts(head, 2).content, dtype=torch.float64)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)
