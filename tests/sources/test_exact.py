"""Expansions of every family: they add up to the model's own number."""

import functools
from collections.abc import Callable

import pytest
import torch
from tests.sources import tiny

import pathsum as ps
from pathsum.model.folding import fold

TOKENS = torch.randint(0, 61, (1, 20), generator=torch.Generator().manual_seed(5))
LoadCase = Callable[[str], ps.Model]


@pytest.fixture(scope="module")
def load_case(tmp_path_factory: pytest.TempPathFactory) -> LoadCase:
    """The model of a tiny checkpoint in float64, written and read once."""

    @functools.cache
    def load(case: str) -> ps.Model:
        folder = tmp_path_factory.mktemp(case)
        tiny.write(case, folder)
        return ps.load(folder).to(torch.float64)

    return load


@pytest.mark.parametrize("case", tiny.CASES)
def test_paths_and_scores_add_up(case: str, load_case: LoadCase) -> None:
    model = load_case(case)
    trace = model.trace(TOKENS)
    torch.testing.assert_close(trace.logits, model(TOKENS))
    paths = trace.paths()
    assert paths.remainder() < 1e-10
    for layer in range(model.config.n_layers):
        score = trace.scores((layer, 3 % model.config.n_heads))
        assert score.remainder() < 1e-10
        parts = score.none + score.q + score.k + score.qk
        torch.testing.assert_close(parts, score.total())
        torch.testing.assert_close(score.attention(), trace.pattern(score.head))
    why = paths.toward(position=-1, token=7)
    torch.testing.assert_close(
        torch.tensor(float(why.total)), torch.tensor(float(paths.total()[0, -1, 7]))
    )


@pytest.mark.parametrize("case", ["llama", "gpt_neox", "gemma2", "gemma3", "olmo2", "qwen3-yarn"])
def test_a_path_is_its_pattern_times_its_matrix(case: str, load_case: LoadCase) -> None:
    model = load_case(case)
    trace = model.trace(TOKENS)
    paths = trace.paths()
    path = next(path for path in paths.order(2) if str(path.source) == "embed")
    rows = model.weights.W_E[TOKENS[0]]
    ov = path.ov(model).dense()
    expected = path.pattern(trace)[0] @ rows @ ov
    found = paths.frozen.along(path)[0] * trace.scales.final[0][:, None]
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("case", tiny.CASES)
def test_folding_leaves_the_probabilities(case: str, load_case: LoadCase) -> None:
    model = load_case(case)
    folded = fold(model)
    torch.testing.assert_close(
        folded(TOKENS).log_softmax(-1), model(TOKENS).log_softmax(-1), rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("case", tiny.CASES)
def test_what_heads_write_is_in_the_stream(case: str, load_case: LoadCase) -> None:
    model = load_case(case)
    trace = model.trace(TOKENS)
    heads = sum(trace.written((0, head)) for head in range(model.config.n_heads))
    found = trace.streams[1] - trace.streams[0] - trace.mlp_outputs[0] - heads
    torch.testing.assert_close(found, output_bias(trace))


def output_bias(trace: ps.Trace) -> torch.Tensor:
    """What biases write in layer 0 beyond each head's own values."""
    layer = trace.weights.layers[0]
    nothing = torch.zeros_like(trace.streams[0])
    return nothing if layer.b_O is None else nothing + layer.b_O * trace.scales.write[0][..., None]


def test_sinks_take_their_share() -> None:
    config = ps.Config(
        *(2, 4, 24, 6, 61, 32),
        positions="rotary",
        norm="rms",
        sinks=True,
        n_kv_heads=2,
    )
    model = ps.random_model(config, seed=3, dtype=torch.float64, biases=True, gains=True)
    assert model.weights.layers[0].sinks is not None
    trace = model.trace(TOKENS)
    rows = trace.patterns[0].sum(-1)
    assert bool((rows < 1).all()) and bool((rows > 0).all())
    scores = trace.attention_scores(0)[0, 1, 5, :6]
    share = torch.cat((scores, model.weights.layers[0].sinks[1:2])).softmax(-1)[:-1]
    torch.testing.assert_close(trace.patterns[0][0, 1, 5, :6], share)
    torch.testing.assert_close(model(TOKENS), trace.logits)
    assert trace.paths().remainder() < 1e-10
    assert trace.scores("L1H2").remainder() < 1e-10
    torch.testing.assert_close(trace.scores("L1H2").attention(), trace.pattern("L1H2"))


@pytest.mark.parametrize("case", ["llama", "qwen3", "olmo2", "gemma3", "mistral", "llama-yarn"])
def test_qk_of_tokens_gives_the_scores_of_the_first_layer(case: str, load_case: LoadCase) -> None:
    from pathsum.circuits.qk_ov import token_qk

    model = load_case(case)
    circuit = token_qk(model, "L0H3", offset=2).dense()
    tokens = torch.tensor([[5, 9, 11], [17, 9, 11]])
    scores = model.trace(tokens).attention_scores(0)[:, 3, 2, 0]
    found = circuit[11, 5] - circuit[11, 17]
    torch.testing.assert_close(found, scores[0] - scores[1])
