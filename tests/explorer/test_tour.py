"""What the tour measures by itself."""

import torch

from pathsum.explorer.claims.zero_layers import frequency_drift
from pathsum.model import Model, construct
from pathsum.sources import load


def test_a_bigram_table_leaves_frequencies_where_they_are() -> None:
    table = torch.tensor([[0.9, 0.1], [0.5, 0.5]])
    stays = torch.tensor([5000, 1000])  # 5/6 and 1/6 are what this table leaves alone
    plain = construct.bigram(table, ["a", "b"])
    settled = Model(plain.weights, tokenizer=plain.tokenizer, token_counts=stays)
    drift = frequency_drift(settled)
    assert drift is not None and abs(drift) < 1e-6
    moved = Model(plain.weights, tokenizer=plain.tokenizer, token_counts=stays.flip(0))
    drift = frequency_drift(moved)
    assert drift is not None and drift > 0.2
    assert frequency_drift(Model(plain.weights)) is None


def test_the_bundled_model_without_layers_leaves_frequencies_where_they_are() -> None:
    drift = frequency_drift(load("zero-layer"))
    assert drift is not None and 0 <= drift < 0.1
