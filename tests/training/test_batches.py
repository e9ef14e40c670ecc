"""Which tokens a step sees: a function of seed and step alone."""

from pathlib import Path

import pytest
import torch

from pathsum.text import Corpus
from pathsum.training.loop import Batches


@pytest.fixture
def corpus(text: Path) -> Corpus:
    return Corpus.open(text, vocabulary=280, held_out=0.1)


def test_inputs_are_targets_after_a_start_token(corpus: Corpus) -> None:
    inputs, targets = Batches(corpus, 16, 4, seed=0).at(3)
    assert inputs.shape == targets.shape == (4, 16)
    assert bool((inputs[:, 0] == corpus.start_token).all())
    assert torch.equal(inputs[:, 1:], targets[:, :-1])


def test_do_not_depend_on_the_steps_before(corpus: Corpus) -> None:
    walked = Batches(corpus, 16, 4, seed=0)
    for step in range(200):
        walked.at(step)
    assert torch.equal(walked.at(200)[0], Batches(corpus, 16, 4, seed=0).at(200)[0])


def test_parts_together_are_the_whole(corpus: Corpus) -> None:
    batches = Batches(corpus, 16, 4, seed=0)
    parts = [batches.at(7, part, 2)[1] for part in range(2)]
    assert torch.equal(torch.cat(parts), batches.at(7)[1])


def test_an_epoch_shows_every_window_once_and_the_next_cuts_elsewhere(corpus: Corpus) -> None:
    batches = Batches(corpus, 16, 1, seed=0)
    epochs = [
        [tuple(batches.at(epoch * batches.windows + step)[1][0].tolist()) for step in range(40)]
        for epoch in range(2)
    ]
    assert len(set(epochs[0])) == 40
    assert epochs[0] != epochs[1]


def test_another_seed_has_another_order(corpus: Corpus) -> None:
    one, other = (Batches(corpus, 16, 4, seed=seed).at(0)[0] for seed in (0, 1))
    assert not torch.equal(one, other)
