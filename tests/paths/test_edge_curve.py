"""Curves over n% of the edges between components, and files of other tools."""

import json
from pathlib import Path

import pytest
import torch

from pathsum.base import Site
from pathsum.base.errors import FileError, InputError, NotExactError
from pathsum.model import Config, Model, construct, random_model
from pathsum.paths.circuit import find_circuit, mean_circuit
from pathsum.paths.component_edges import ComponentGraph, score_matrix
from pathsum.paths.edge_curve import edge_curve
from pathsum.paths.exchange import read_links, read_mib, write_mib
from pathsum.paths.prompts import Prompt

PROMPTS = [
    Prompt("a b c d a", token="b", corrupted="e b c d a"),
    Prompt("f g h i f", token="g", corrupted="c g h i f"),
]
TRUE = ("L1H0→logits", "embed→L1H0.q", "embed→L1H0.v", "L0H0→L1H0.k", "embed→L0H0.v")


@pytest.fixture(scope="module")
def model() -> Model:
    return construct.induction()


def test_the_true_edges_keep_everything(model: Model) -> None:
    found = edge_curve(model, PROMPTS, dict.fromkeys(TRUE, 1.0), fractions=(1.0, 5 / 27))
    given = found["given"]
    assert [round(one.value, 3) for one in given.kept] == [1.0, 1.0]
    assert given.cpr == pytest.approx(1 - 5 / 27, abs=1e-3)
    assert given.cmd == pytest.approx(0.0, abs=1e-3)
    assert found["random"].kept[0].value < 0.5
    assert found["random"].kept[1].value == pytest.approx(1.0, abs=1e-4)
    assert found.clean.value > 9
    assert "given: CPR" in str(found.to_table().note)
    assert found.to_json()["rankings"][0]["ranking"] == "given"


def test_a_graph_ranks_by_effect(model: Model) -> None:
    graph = mean_circuit(model, PROMPTS)
    scores = score_matrix(ComponentGraph(model.config), graph)
    place = ComponentGraph(model.config).entry
    edges = [edge for edge in graph.edges if "L0H0" in edge.name and edge.name.endswith(".k")]
    total = sum(abs(edge.effect or 0.0) for edge in edges)
    assert float(scores[place(Site.parse("L0H0→L1H0.k"))]) == pytest.approx(total)
    found = edge_curve(model, PROMPTS, graph, fractions=(0.3, 1.0))
    assert found["given"].kept[0].value > 0.95


def test_shares_between_two_runs_are_added_with_their_signs() -> None:
    config = Config(*(2, 2, 16, 8, 30, 8), norm="rms", mlp="silu_gated", d_mlp=24)
    model = random_model(config, seed=3, dtype=torch.float64)
    trace, other = model.trace([[3, 1, 4, 1, 5]]), model.trace([[2, 7, 1, 8, 2]])
    circuit = find_circuit(trace, -1, 7, threshold=0.001, other=other, effects=False)
    into = [e for e in circuit.edges if str(e.edge).startswith("L0H1@") and "→mlp1@" in e.name]
    graph, shares = ComponentGraph(config), torch.tensor([edge.share for edge in into])
    found = score_matrix(graph, circuit)[graph.entry(Site.parse("L0H1→mlp1"))]
    assert float(found) == pytest.approx(float(shares.sum()), rel=1e-5)
    assert abs(float(found)) < 0.9 * float(shares.abs().sum())


def test_held_mlps_leave_fewer_edges() -> None:
    model = construct.conjunction(tuple_table(), tuple("abc"), n_ctx=8)
    prompts = [Prompt("a b", token="c", corrupted="b b")]
    whole = edge_curve(model, prompts, fractions=(1.0,))
    held = edge_curve(model, prompts, fractions=(1.0,), mlps="held")
    assert held.edges == whole.edges - 2
    assert whole["EAP"].kept[0].value == pytest.approx(1.0, abs=1e-4)


def tuple_table() -> dict[tuple[str, str], str]:
    return {("a", "b"): "c"}


def test_scores_are_exchanged_with_mib(model: Model, tmp_path: Path) -> None:
    graph = ComponentGraph(model.config)
    scores = torch.randn(graph.exists.shape, dtype=torch.float64) * graph.exists
    write_mib(tmp_path / "circuit.json", model, scores, 4)
    torch.testing.assert_close(read_mib(tmp_path / "circuit.json", model), scores)
    stored = json.loads((tmp_path / "circuit.json").read_text())
    assert stored["cfg"] == {
        "n_layers": 2,
        "n_heads": 2,
        "parallel_attn_mlp": False,
        "d_model": model.config.d_model,
    }
    assert sum(edge["in_graph"] for edge in stored["edges"].values()) == 4
    assert "a0.h1->a1.h0<k>" in stored["edges"]
    assert "input->logits" in stored["edges"]
    assert stored["nodes"]["logits"]["in_graph"]


def test_links_of_a_graph_are_read_back(model: Model, tmp_path: Path) -> None:
    graph = model.trace("a b c d a").circuit(token="b", effects=False)
    graph.write_graph(tmp_path / "graph.json")
    links = read_links(tmp_path / "graph.json")
    assert links["L1H0@5", "logits@5"] == pytest.approx(graph["L1H0@5→logits@5"].share)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "has no 'edges'; give a circuit written by EAP-IG"),
        ('{"edges": {"x->y": {"score": 1}}}', "'x->y' is not an edge; use names such as"),
        ('{"edges": {"input->logits": {}}}', "the edge 'input->logits' has no score"),
    ],
)
def test_malformed_circuits(model: Model, tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "circuit.json").write_text(content)
    with pytest.raises(FileError, match=message):
        read_mib(tmp_path / "circuit.json", model)


def test_malformed_links(tmp_path: Path) -> None:
    (tmp_path / "graph.json").write_text('{"links": [{"source": "a", "target": "b"}]}')
    with pytest.raises(FileError, match="link 0 needs a source, a target and a weight"):
        read_links(tmp_path / "graph.json")
    (tmp_path / "graph.json").write_text("{}")
    with pytest.raises(FileError, match="has no list of 'links'"):
        read_links(tmp_path / "graph.json")


def test_edited_edges_are_refused(model: Model) -> None:
    with pytest.raises(NotExactError, match="where no edge or pattern was edited"):
        edge_curve(model.edited({"L0H0→L1H0.k": "zero"}), PROMPTS)
    assert edge_curve(model.edited({"L0H1": "zero"}), PROMPTS, fractions=(1.0,)).clean.value > 9


def test_messages(model: Model) -> None:
    with pytest.raises(InputError, match="there are no prompts; give at least one"):
        edge_curve(model, [])
    with pytest.raises(InputError, match="prompt 0: it has no corrupted partner"):
        edge_curve(model, [Prompt("a b a")])
    with pytest.raises(InputError, match=r"fractions=\[2\.0\] are not shares of edges"):
        edge_curve(model, PROMPTS, fractions=(2.0,))
    with pytest.raises(InputError, match="'L1H0→L0H0.k' does not exist"):
        edge_curve(model, PROMPTS, {"L1H0→L0H0.k": 1.0})
    for name in ("embed→L9H0.k", "L0H0"):
        with pytest.raises(InputError, match=f"'{name}' is not an edge between components"):
            edge_curve(model, PROMPTS, {name: 1.0})
    with pytest.raises(InputError, match="there is no ranking 'best'; this curve has EAP"):
        _ = edge_curve(model, PROMPTS, fractions=(1.0,))["best"]
