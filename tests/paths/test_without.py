"""Runs with heads and edges switched off, against other ways to compute the same."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.identities.configs import models

from pathsum.base.errors import InputError, NotExactError, PathError
from pathsum.model import Model, Trace, construct
from pathsum.paths.circuit import find_circuit
from pathsum.paths.patching import without


def trace_of(model: Model) -> Trace:
    config = model.config
    return model.trace([number % config.d_vocab for number in (1, 0, 1, 1, 0, 1)])


def close(a: Trace, b: Trace) -> bool:
    size = max(float(trace.logits.abs().max()) for trace in (a, b))
    return torch.allclose(a.logits, b.logits, atol=1e-9 * max(1.0, size))


@settings(max_examples=6, deadline=None)
@given(models(min_layers=2, max_layers=3, max_heads=2), st.data())
def test_positions_one_by_one_are_the_whole(model: Model, data: st.DataObject) -> None:
    """A head off at each position is off; so is an edge, cut for each pair of positions."""
    trace = trace_of(model)
    length = trace.tokens.shape[1]
    reader = data.draw(st.sampled_from([h.label for h in model.heads if h.id.layer > 0]))
    writer = data.draw(st.sampled_from([h.label for h in model.heads if h.id.layer == 0]))
    side = data.draw(st.sampled_from("qkv"))
    assert close(
        without(trace, [f"{writer}@{at}" for at in range(length)]), without(trace, [writer])
    )
    pairs = [
        f"{writer}@{at}→{reader}@{to}.{side}"
        for to in range(length)
        for at in ([to] if side == "q" else model.config.sources(1, to, length))
    ]
    whole = without(trace, [f"{writer}→{reader}.{side}"])
    assert close(without(trace, pairs), whole)
    # Both at once are no more than one of them, and order does not matter.
    assert close(without(trace, [*pairs, f"{writer}→{reader}.{side}"]), whole)
    mixed = [f"{reader}@{length - 1}", *pairs[:3], f"{writer}@1"]
    assert close(without(trace, mixed), without(trace, mixed[::-1]))


@settings(max_examples=6, deadline=None)
@given(models(min_layers=2, max_layers=2, max_heads=2))
def test_one_cut_costs_what_the_circuit_says(model: Model) -> None:
    trace = trace_of(model)
    found = find_circuit(trace, threshold=0.3)
    for edge in found.edges[:6]:
        if edge.effect is None:
            continue
        cut = without(trace, [str(edge)])
        at = cut.logits[0, -1]
        left = float(at[found.token] - at.mean())
        logits = trace.logits[0, -1]
        before = float(logits[found.token] - logits.mean())
        assert before - left == pytest.approx(edge.effect, abs=1e-9 * max(1.0, abs(before)))


def test_all_edges_of_a_head_are_the_head() -> None:
    trace = construct.induction().trace("a b c d a")
    edges = [f"L0H0→L1H{head}.{side}" for head in (0, 1) for side in "qkv"]
    cut = without(trace, [*edges, "L0H0→logits"])
    assert torch.allclose(cut.logits, without(trace, ["L0H0"]).logits, atol=1e-4)
    # What is cut shows in the pattern of the reader, not in that of the writer.
    k_edge = without(trace, ["L0H0@2→L1H0@5.k"])
    assert float(trace.patterns[1][0, 0, 5, 2]) > 0.9 > 0.5 > float(k_edge.patterns[1][0, 0, 5, 2])
    assert torch.equal(k_edge.patterns[0], trace.patterns[0])
    assert torch.equal(k_edge.patterns[1][0, 0, :5], trace.patterns[1][0, 0, :5])


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("L0H0@9", InputError, "positions 0 to 5"),
        ("L0H0@1→L1H0@9.k", InputError, "positions 0 to 5"),
        ("L7H0@1", PathError, "L7H0"),
        ("embed@1", PathError, "not a head"),
        ("pos@0@1→L0H0@2.k", PathError, "cannot be cut"),
        ("L0H0@3→L1H0@2.k", PathError, "does not exist"),
        ("L0H0@1→L1H0@2.q", PathError, "does not exist"),
        ("L1H0@1→L0H0@2.k", PathError, "data flows upwards"),
        ("nonsense", PathError, "is not a site of a run"),
    ],
)
def test_what_cannot_be_switched_off_is_said(name: str, error: type, words: str) -> None:
    trace = construct.induction().trace("a b c d a")
    with pytest.raises(Exception, match=words) as caught:
        without(trace, [name])
    assert isinstance(caught.value, error | InputError)


def test_only_an_unedited_run_of_one_sequence() -> None:
    model = construct.induction()
    trace = model.trace("a b")
    with pytest.raises(NotExactError, match="edited already"):
        without(without(trace, ["L0H0"]), ["L0H1"])
    with pytest.raises(InputError, match="2 sequences"):
        without(model.trace(["a b", "b a"]), ["L0H0"])
