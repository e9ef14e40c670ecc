"""Planted circuits compute what they claim, and by the edges that they claim."""

import pytest
import torch

import pathsum as ps
from pathsum.base.errors import InputError
from pathsum.model import construct
from pathsum.model.planted import PlantedCircuit, planted_circuits
from pathsum.paths.causal import edges_of

CIRCUITS = planted_circuits()
each = pytest.mark.parametrize("circuit", CIRCUITS, ids=[one.name for one in CIRCUITS])


@each
def test_the_model_computes_the_outputs(circuit: PlantedCircuit) -> None:
    known = circuit.outputs >= 0
    assert int(known.sum()) >= 30
    predicted = circuit.model(circuit.tokens).argmax(-1)
    assert torch.equal(predicted[known], circuit.outputs[known])


@each
def test_true_edges_matter_and_all_others_do_not(circuit: PlantedCircuit) -> None:
    """Each edge is taken from other inputs: true ones change logits, all others leave them."""
    model, known = circuit.model, circuit.outputs >= 0
    trace, other = model.trace(circuit.tokens), model.trace(circuit.tokens.roll(1, 0))
    every = {str(edge) for edge in edges_of(model)}
    true = {str(edge) for edge in circuit.edges}
    assert true <= every
    assert not true & {str(edge) for edge in circuit.constants}
    for edge in sorted(every):
        changed = float((trace.patch({edge: other}).logits - trace.logits)[known].abs().max())
        if edge in true:
            assert changed > 3, edge
        else:
            # Idle heads write 1e-4 of a token; closed gates leak less.
            assert changed < 0.02, edge


def test_a_gate_and_a_value_come_from_different_heads() -> None:
    """With values held, only the switch moves the gate; with the gate held, only the other head."""
    model = construct.gated_value(tuple("abc"), n_ctx=8)
    open_, shut = model.trace("a ! b c"), model.trace("a b b c")
    assert float(open_.logits[0, -1].max()) == pytest.approx(10.0, rel=1e-5)
    assert float(shut.logits[0, -1].abs().max()) < 1e-4
    moved = open_.patch({"L0H0→mlp0": shut})
    assert float(moved.logits[0, -1].abs().max()) < 1e-4
    other = model.trace("a ! a c")
    moved = open_.patch({"L0H1→mlp0": other})
    assert model.token_text(int(moved.logits[0, -1].argmax())) == "a"


def test_a_memory_has_only_its_entries() -> None:
    model = construct.memory({"a": "c"}, tuple("abc"), n_ctx=8)
    assert model.token_text(int(model("a b")[-1].argmax())) == "c"
    assert float(model("b b")[-1].abs().max()) == 0.0


def test_a_conjunction_needs_both_tokens() -> None:
    model = construct.conjunction({("a", "b"): "c"}, tuple("abc"), n_ctx=8)
    assert model.token_text(int(model("a b")[-1].argmax())) == "c"
    for text in ("a a", "b b", "c a"):
        assert float(model(text)[-1].abs().max()) < 1e-4


def test_messages() -> None:
    with pytest.raises(InputError, match="switch 'a' is one of the words; choose another one"):
        ps.construct.gated_value(("a", "b"), "a")
    with pytest.raises(InputError, match="sequences=0 is out of range; use 1 or more"):
        planted_circuits(0)
