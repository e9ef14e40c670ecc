"""Trees and sentences of models with MLPs: the MLPs of one position are one node."""

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from tests.identities.configs import Drawn, mlp_models_with_tokens

from pathsum.base.sentence import signed
from pathsum.model import Config, Model, construct, random_model
from pathsum.paths.circuit import find_circuit
from pathsum.paths.graph import Graph
from pathsum.paths.graph_text import write_tokens
from pathsum.paths.tree import mlp_groups, view_part
from pathsum.sources import load


def deep_circuit(threshold: float = 0.02) -> Graph:
    config = Config(*(3, 2, 16, 8, 30, 12), norm="rms", mlp="silu_gated", d_mlp=24)
    trace = random_model(config, seed=2, dtype=torch.float64).trace([[3, 1, 4, 1, 5, 9]])
    return find_circuit(trace, -1, 7, "mean", threshold, effects=False)


@given(mlp_models_with_tokens(), st.integers(0, 2**16), st.booleans())
@settings(max_examples=20)
def test_inputs_of_a_group_add_up_to_what_leaves_it(drawn: Drawn, seed: int, other: bool) -> None:
    model, tokens = drawn
    trace, token = model.trace(tokens[:1]), seed % model.config.d_vocab
    there = model.trace((3 * trace.tokens + 1) % model.config.d_vocab) if other else None
    found = find_circuit(trace, -1, token, "mean", 0.02, other=there, effects=False)
    allowed = found.quadrature_error + 1e-9 * max(1.0, *(abs(one.value) for one in found.nodes))
    for group in {one.name: one for one in mlp_groups(found).values()}.values():
        inside = {one.node for one in group.nodes}
        inputs = sum(share for _, share in group.inputs(found))
        inputs += sum(
            rest.share * view_part(found, rest.kind)
            for rest in found.left_out
            if rest.node in inside
        )
        leaving = sum(
            edge.share * view_part(found, edge.kind)
            for edge in found.edges
            if edge.edge.start in inside and edge.edge.end not in inside
        )
        assert inputs == pytest.approx(leaving, abs=allowed)


def test_the_tree_has_one_node_for_the_mlps_of_a_position() -> None:
    found = deep_circuit()
    console = Console(width=200, color_system=None)
    with console.capture() as printed:
        console.print(found.tree())
    text = printed.get()
    assert "V mlp0–mlp2@5" in text
    assert "V mlp2@5" not in text and "U mlp0@5" not in text
    assert any(str(edge).startswith("mlp0@5→mlp1@5") for edge in found.edges)


def test_mlps_at_the_first_position_are_one_row() -> None:
    found = deep_circuit(0.001)
    table = found.to_table()
    rows = {str(row[0]): row for row in table.rows if str(row[0]).startswith("attention sink")}
    assert rows
    for name, row in rows.items():
        reader = name.partition("→")[2]
        whole = [
            edge.share
            for edge in found.edges
            if edge.edge.at == 0
            and edge.name.startswith("mlp")
            and edge.name.endswith(f"→{reader}")
        ]
        assert len(whole) > 1
        assert row[4] == pytest.approx(sum(whole))


def test_a_head_that_acts_through_an_mlp_is_named() -> None:
    sentence = construct.gated_value().trace("a ! b c").circuit(effects=False).sentence
    assert "through MLPs, attending to '!' (100%, position 2)." in sentence
    named = "Tokens whose replacement costs most, of 3 tried: 'b' (+10.00), '!' (+9.64)."
    assert named in sentence


# In the last, the last token enters a query that is the same for all tokens: removed, it costs as
# much as the two that decide, and replaced by another token, nothing.
KNOWN = [
    (construct.memory(), "c d b a"),
    (construct.conjunction(), "a b"),
    (construct.gated_value(), "a ! b c"),
]


@pytest.mark.parametrize(("model", "text"), KNOWN, ids=["memory", "pair", "gate"])
def test_the_tokens_named_are_those_whose_substitution_costs_most(model: Model, text: str) -> None:
    found = model.trace(text).circuit(effects=False)
    named = {span.position for span in write_tokens(found) if span.position is not None}
    drops = substitution_drops(model, found)
    largest = {at for at, drop in drops.items() if drop > 0.5 * max(drops.values())}
    assert named == largest


def test_on_a_trained_model_the_first_token_named_costs_most_to_substitute() -> None:
    model = load("one-layer-bilinear")
    texts = (
        "Once upon a time there was a",
        "The king sat on his throne and the",
        "She said that he would never go to the",
    )
    for text in texts:
        found = model.trace(text).circuit(effects=False)
        first = next(span.position for span in write_tokens(found) if span.position is not None)
        drops = substitution_drops(model, found, count=100)
        assert first == max(drops, key=lambda at: drops[at])


def substitution_drops(model: Model, found: Graph, count: int | None = None) -> dict[int, float]:
    """The mean drop of the prediction if a token is another one, at each position but the start."""
    tokens, generator = found.prediction.trace.tokens[0], torch.Generator().manual_seed(0)
    drops: dict[int, float] = {}
    for at in range(1, len(tokens)):
        drawn = torch.randperm(model.config.d_vocab, generator=generator)
        others = drawn[(drawn != tokens[at]) & (drawn != tokens[0])][:count]
        runs = tokens.repeat(len(others), 1)
        runs[:, at] = others
        values = found.prediction.target.of_runs(model(runs)[:, found.position])
        drops[at] = found.total - float(values.mean())
    return drops


def test_a_node_that_is_read_twice_is_opened_once_and_shows_what_its_inputs_add_up_to() -> None:
    config = Config(2, 2, 16, 8, 30, 12)
    trace = random_model(config, seed=2, dtype=torch.float64).trace([[3, 1, 4, 1, 5, 9]])
    found = find_circuit(trace, -1, 7, "mean", 0.02, effects=False)
    starts = [one.edge.start for one in found.edges]
    twice = [one for one in found.nodes if one.node.head is not None and starts.count(one.node) > 1]
    console = Console(width=200, color_system=None)
    with console.capture() as printed:
        console.print(found.tree())
    lines = printed.get().splitlines()
    assert twice
    for node in twice:
        first, *others = [line for line in lines if f" {node.node} " in line]
        assert f"(node total {node.value:+.2f})" in first
        assert others and all(line.endswith("(above)") for line in others)


def test_a_printed_circuit_has_its_strongest_edges_and_adds_up_the_others() -> None:
    found = construct.induction().trace("a b c d a").circuit(token="b")
    assert len(found.edges) > 6
    console = Console(width=200, color_system=None)
    with console.capture() as captured:
        console.print(found.printed(4))
    lines = captured.get().splitlines()
    drawn = [str(edge.edge.start) for edge in found.ranked[:4]]
    branches = [line for line in lines if "── " in line]
    edges = [line for line in branches if "omitted" not in line and "carried" not in line]
    assert sorted(line.split("── ")[1].split()[1] for line in edges) == sorted(drawn)
    assert f"The 4 strongest of {len(found.edges)} edges are printed." in " ".join(lines)
    # The edges into the logits, drawn and omitted, add up to the prediction.
    into = [line for line in branches if line.startswith(("├──", "└──"))]
    parts = [float(re.findall(r"[+-][\d.]+(?= logits|$)", line)[0]) for line in into]
    assert sum(parts) == pytest.approx(found.total, abs=0.02)


def test_the_last_tokens_are_tried_even_if_no_path_carries_them() -> None:
    model = random_model(Config(2, 2, 12, 6, 15, 10, norm="layer", mlp="gelu"), seed=49)
    found = model.trace([[3, 10, 5, 10, 5, 5, 7]]).circuit(effects=False)
    drops = substitution_drops(model, found)
    assert max(drops, key=lambda at: drops[at]) == 6
    assert "replacement costs most: '<7>' (" in found.sentence


def test_the_sentence_states_if_the_head_is_not_needed() -> None:
    trace = load("two-layer-mlp").trace("try:\n    run()\nexcept ValueError as")
    found = trace.circuit(effects=False)
    without = trace.patch({"L0H2": "zero"}).logits[0, -1].softmax(-1)[found.token]
    assert found.lead is not None
    assert str(found.lead.head) == "L0H2"
    assert float(without) > found.probability
    kept = f"(but without it the probability does not fall: {without:.0%}, with it 25%)"
    assert f"of +14.15 logits {kept}, attending" in found.sentence


@pytest.mark.parametrize("head", ["L0H0", "L0H3"])
def test_the_sentence_about_a_difference_from_another_run_is_about_the_difference(
    head: str,
) -> None:
    """A head that writes the same in both runs explains nothing of their difference."""
    built = construct.gated_value() if head == "L0H0" else load("two-layer-mlp")
    texts = ("a ! b c", "a b b c") if head == "L0H0" else ("He took the key", "He saw an key")
    trace, other = map(built.trace, texts)
    found = trace.circuit(other=other, effects=False)
    there = float(found.prediction.target.of_runs(other.logits[:, -1])[0])
    assert found.explained == pytest.approx(found.total - there, abs=1e-3)
    assert f" of {signed(found.explained)} logits vs. reference" in found.sentence
    omitted = sum(rest.share for rest in found.left_out if rest.node == found.top)
    assert found.coverage == pytest.approx(1 - abs(omitted / found.explained), abs=1e-6)
    if found.lead is not None:
        into = {str(edge.edge.start.head): edge.share for edge in found.inputs(found.top)}
        assert found.lead.share == into[str(found.lead.head)]
