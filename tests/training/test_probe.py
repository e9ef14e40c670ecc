"""What a run is watched with sees what hand-built models are known to do."""

from pathlib import Path

import pytest
import torch

from pathsum.model import construct
from pathsum.text import Corpus
from pathsum.text.token_pool import TokenPool, random_repeats
from pathsum.training import metrics
from pathsum.training.metrics import Probe, warn_of_slow_precision


def test_sees_a_hand_built_induction_head(text: Path) -> None:
    words = tuple(f"w{number}" for number in range(30))
    model = construct.induction(words)
    start = model.config.start_token
    assert start is not None
    probe = Probe(Corpus.open(text, vocabulary=280, held_out=0.1), n_ctx=16, sequences=2)
    probe.repeats = random_repeats(
        [token for token in range(model.config.d_vocab) if token != start],
        length=min(10, (model.config.n_ctx - 1) // 2),
        repeats=2,
        sequences=4,
        start_token=start,
    )
    probe.held_out = probe.repeats.tokens
    found = probe.measure(model)
    assert found.previous_token_head == "L0H0"
    assert found.previous_token > 0.9
    assert found.induction_head == "L1H0"
    assert found.induction > 0.9
    assert found.repeat_second < found.repeat_first - 1


def test_a_model_without_heads_has_no_scores(text: Path) -> None:
    from pathsum.model import Config, random_model

    corpus = Corpus.open(text, vocabulary=280, held_out=0.1)
    model = random_model(Config(0, 1, 8, 4, 280, 16, start_token=0))
    found = Probe(corpus, 16, 4).measure(model)
    assert found.induction_head == ""
    assert found.induction != found.induction


@pytest.mark.parametrize(("least", "expected"), [(1, [2, 3]), (3, [1, 2, 3])])
def test_tokens_that_were_hardly_seen_are_left_out(least: int, expected: list[int]) -> None:
    counts = torch.tensor([900, 5, 101, 400, 0])
    assert TokenPool(5, counts, excluded=(0,)).ids(at_least=least).tolist() == expected


def test_warns_of_bfloat16_where_it_is_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {torch.float32: 90e9, torch.bfloat16: 4e9}
    monkeypatch.setattr(metrics, "gemm_rate", lambda device, dtype: rates[dtype])
    with pytest.warns(UserWarning, match=r"slower here \(4 GFLOP/s\) than in float32 \(90\)"):
        warn_of_slow_precision("bfloat16", "cpu")
    warn_of_slow_precision("float32", "cpu")
    rates[torch.bfloat16] = 200e9
    warn_of_slow_precision("bfloat16", "cpu")
