"""`Config(causal=False)`: attention in both directions, and the analyses that do not allow it."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import pathsum as ps
from pathsum.base.errors import ConfigError, InputError, NotExactError, PathError, TokenError
from pathsum.circuits.positional import positional
from pathsum.model import Config, Model
from pathsum.training.network import Network
from pathsum.training.recipe import Start

SIZES = {"n_layers": 2, "n_heads": 2, "d_model": 8, "d_head": 4, "d_vocab": 11, "n_ctx": 8}
TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9]])


@pytest.fixture(scope="module")
def model() -> Model:
    config = Config(**SIZES, causal=False, mlp="relu")
    return ps.random_model(config, seed=1, dtype=torch.float64, biases=True)


def test_every_position_attends_to_all_positions(model: Model) -> None:
    trace = model.trace(TOKENS)
    for layer, pattern in enumerate(trace.patterns):
        torch.testing.assert_close(pattern, trace.attention_scores(layer).softmax(-1))
    torch.testing.assert_close(model(TOKENS), trace.logits)


def test_later_tokens_change_earlier_predictions(model: Model) -> None:
    other = TOKENS.clone()
    other[0, -1] = 2
    assert float((model(TOKENS) - model(other))[:, 0].abs().max()) > 1e-3


def test_paths_and_scores_add_up(model: Model) -> None:
    trace = model.trace(TOKENS)
    assert trace.paths().remainder() < 1e-12
    assert trace.paths().toward(position=1).remainder < 1e-12
    scores = trace.scores("L1H1")
    assert scores.remainder() < 1e-12
    torch.testing.assert_close(scores.attention(), trace.pattern("L1H1"))
    cell = scores.cell(1, 4)
    assert cell.attention == pytest.approx(float(trace.pattern("L1H1")[0, 1, 4]))
    assert cell.score == pytest.approx(cell.none + cell.q + cell.k + cell.qk)


def test_a_circuit_has_edges_from_later_positions(model: Model) -> None:
    trace = model.trace(TOKENS)
    circuit = trace.circuit(position=1, threshold=0.001)
    assert len(circuit.tokens) == TOKENS.shape[1]
    later = [edge.edge for edge in circuit.edges if (edge.edge.at or 0) > (edge.edge.to or 0)]
    assert later
    for edge in later[:3]:
        patched = trace.patch({edge: "zero"})
        effect = next(one.effect for one in circuit.edges if one.edge == edge)
        token = int(trace.logits[0, 1].argmax())
        lost = (trace.logits - patched.logits)[0, 1]
        assert effect == pytest.approx(float(lost[token] - lost.mean()), abs=1e-9)


def test_effects_at_a_position_keep_the_tokens_after_it(model: Model) -> None:
    trace, other = model.trace(TOKENS), model.trace(TOKENS.flip(1))
    found = ps.causal_effects(trace, other, position=0, token=3)
    for edge in ("embed→L0H0.k", "L0H1→L1H0.v", "mlp0→logits"):
        patched = trace.patch({edge: other})
        lost = float((trace.logits - patched.logits)[0, 0, 3])
        assert found[edge] == pytest.approx(lost, abs=1e-9)


def test_the_run_of_a_prefix_is_computed_again(model: Model) -> None:
    part = model.trace(TOKENS).prefix(0, 3)
    torch.testing.assert_close(part.logits, model(TOKENS[:, :3]))


def test_offsets_go_both_ways() -> None:
    config = Config(**SIZES, causal=False, positions="rotary")
    assert config.offsets == range(-7, 8)
    with pytest.raises(InputError, match="goes from -7 to 7 in a context of 8"):
        ps.composition(ps.random_model(config), offset=8)


def test_windows_need_causal_attention() -> None:
    with pytest.raises(ConfigError, match="attends in both directions; leave windows out"):
        Config(**SIZES, causal=False, windows=(2, None))


def test_sequences_of_different_length_are_not_padded(model: Model) -> None:
    with pytest.raises(TokenError, match="have 2 to 3 tokens, but .* attends to padding"):
        model.trace([[1, 2], [1, 2, 3]])


def test_a_read_of_a_later_position_needs_keys_or_values(model: Model) -> None:
    trace = model.trace(TOKENS)
    trace.patch({"L0H0@4→L1H0@1.k": "zero"})
    with pytest.raises(PathError, match="keys and values are read at every position"):
        trace.patch({"L0H0@4→L1H0@1.q": "zero"})


def test_a_given_pattern_may_look_ahead(model: Model) -> None:
    pattern = torch.full((8, 8), 1 / 8, dtype=torch.float64)
    edited = model.edited({"L0H0.pattern": pattern})
    with pytest.raises(InputError, match="rows must be not negative"):
        model.edited({"L0H0.pattern": -pattern})
    causal = ps.random_model(Config(**SIZES))
    with pytest.raises(InputError, match=r"rows must be causal \(0 after the diagonal\)"):
        causal.edited({"L0H0.pattern": pattern})
    full = edited.trace(torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]]))
    torch.testing.assert_close(full.pattern("L0H0")[0], pattern)


ASSUME_CAUSAL: list[tuple[str, Callable[[Model], object]]] = [
    ("the atlas", ps.atlas),
    ("induction", ps.induction),
    ("decompile", lambda model: ps.decompile(model, TOKENS.expand(8, -1))),
    ("attention by offset", positional),
    ("the comparison of heads by offset", lambda model: ps.align_heads(model, model)),
    ("generating text", lambda model: model.generate([1, 2])),
    ("predicting the next token", lambda model: ps.term_importance(model, TOKENS)),
    ("the paper", ps.paper),
    ("the explorer", lambda model: ps.report(model, "unused.html")),
    (
        "a description of attention",
        lambda model: ps.replace(model, "L0H0", TOKENS, pattern="first", targets=TOKENS),
    ),
]


@pytest.mark.parametrize(("what", "call"), ASSUME_CAUSAL, ids=[what for what, _ in ASSUME_CAUSAL])
def test_analyses_that_assume_causal_attention_say_so(
    model: Model, what: str, call: Callable[[Model], object]
) -> None:
    with pytest.raises(NotExactError, match=f"{what} assumes causal attention, but the model"):
        call(model)


def test_skip_trigrams_need_causal_attention(model: Model) -> None:
    with pytest.raises(NotExactError, match="assumes causal attention"):
        ps.skip_trigrams(model, k=3)


def test_ablation_with_targets_does_not_need_it(model: Model) -> None:
    found = ps.ablate(model, "L0H0", TOKENS, targets=TOKENS)
    assert found is not None


def test_training_needs_it() -> None:
    config = Config(**SIZES, causal=False)
    with pytest.raises(ConfigError, match="causal=False cannot be trained"):
        Network(config, Start(), 0)


def test_it_is_stored(model: Model, tmp_path: Path) -> None:
    model.save(tmp_path)
    again = ps.load(tmp_path)
    assert not again.config.causal
    found: Tensor = again(TOKENS)
    torch.testing.assert_close(found, model(TOKENS))
