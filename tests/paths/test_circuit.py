"""The circuit of a prediction, on models whose circuits are known."""

import json
from types import NoneType
from typing import Any

import pytest
import torch

from pathsum.base.errors import InputError, NotExactError, PathError, TokenError
from pathsum.base.site import LOGITS, Site
from pathsum.model import Config, Trace, construct, random_model
from pathsum.model.edit import Edit
from pathsum.model.forward import run_logits
from pathsum.paths.circuit import find_circuit
from pathsum.paths.cuts import cut_effects
from pathsum.paths.graph import Graph
from pathsum.paths.score import score
from pathsum.paths.target import PredictionRun, find_target
from pathsum.sources import load


def strong(circuit: Graph, share: float = 0.2) -> set[str]:
    """Edges that carry at least that share of the prediction.

    Weaker ones are of sources whose part of a key is zero, below the mean over sources.
    """
    return {str(edge) for edge in circuit.edges if abs(edge.share) >= share * circuit.total}


def test_induction_by_k_composition() -> None:
    """[a][b] … [a] → [b]: the previous-token head writes a into the key of b."""
    found = construct.induction().trace("a b c d a").circuit(token="b", threshold=0.01)
    assert strong(found) == {
        "L1H0@5→logits@5",
        "embed@2→L1H0@5.v",
        "L0H0@2→L1H0@5.k",
        "embed@5→L1H0@5.q",
        # What it beat: the start token, on which the head rests when nothing matches.
        "embed@0→L1H0@5.k",
        "embed@1→L0H0@2.v",
        "pos@0@2→L0H0@2.q",
        "pos@0@1→L0H0@2.k",
    }
    attended = found.node("L1H0@5").attended
    assert attended is not None
    assert attended.source == 2
    assert attended.contrast == pytest.approx(20, rel=0.01)


def test_induction_by_q_composition() -> None:
    """[a][b] … [a] → [b]: the query of the last a points to the place after its first copy."""
    found = (
        construct.induction_by_q()
        .trace("a b c d a")
        .circuit(token="b", threshold=0.01, effects=False)
    )
    assert strong(found) == {
        "L1H0@5→logits@5",
        "embed@2→L1H0@5.v",
        "L0H0@5→L1H0@5.q",
        "pos@2→L1H0@5.k",
        "pos@1→L0H0@5.v",
        "embed@5→L0H0@5.q",
        "embed@1→L0H0@5.k",
    }


def test_a_virtual_head_is_two_v_edges() -> None:
    """Both heads attend one back: what stands two back is moved twice, and nothing else matters."""
    found = (
        construct.virtual_head({"a": "x", "b": "y"})
        .trace("b b a b b")
        .circuit(threshold=0.01, effects=False)
    )
    assert strong(found) == {
        "L1H0@5→logits@5",
        "L0H0@4→L1H0@5.v",
        "embed@3→L0H0@4.v",
        *("pos@1@5→L1H0@5.q", "pos@1@4→L1H0@5.k"),
        *("pos@0@4→L0H0@4.q", "pos@0@3→L0H0@4.k"),
    }


def test_the_previous_token_head_gets_credit_on_a_trained_model() -> None:
    model = load("two-layer")
    trace = model.trace("self.quixel = quixel\n        return self.quix")
    found = trace.circuit(token="el")
    head = max(found.inputs(found.top), key=lambda edge: edge.share)
    keys = found.inputs(head.edge.start, "k")
    lower = keys[0].edge.start.head
    assert lower is not None
    assert lower.layer == 0
    assert keys[0].share > 0.2 * found.total
    frozen = trace.paths().toward(-1, "el", "mean").by_head
    assert abs(frozen[lower]) < 0.2 * found.total


def near_tie(trace: Trace) -> tuple[int, int]:
    """The two likely tokens whose logits are closest to each other."""
    logits, order = trace.logits[0, -1].sort(descending=True)
    at = int((logits[:39] - logits[1:40]).argmin())
    return int(order[at]), int(order[at + 1])


def added_up(circuit: Graph, node: Site, kind: str) -> float:
    """The edges of a kind into a node, with what was left out."""
    kept = sum(edge.share for edge in circuit.inputs(node, kind))
    rest = [one for one in circuit.left_out if one.node == node and one.kind == kind]
    return kept + sum(one.share for one in rest)


def check_sums(circuit: Graph) -> None:
    """The inputs of every node add up to its numbers."""
    for one in circuit.nodes:
        if one.node.head or one.node.writer == LOGITS:
            assert added_up(circuit, one.node, "v") == pytest.approx(one.value, abs=1e-4)
        if one.attended and not one.note:
            for kind in ("q", "k"):
                assert added_up(circuit, one.node, kind) == pytest.approx(
                    one.attended.effect, abs=1e-4
                )


def test_a_near_tie_is_not_explained_by_everything() -> None:
    """Its prediction is almost nothing, so the floor follows what cancels instead."""
    trace = load("two-layer").trace("self.quixel = quixel\n        return self.quix")
    token, versus = near_tie(trace)
    found = trace.circuit(token=token, versus=versus, effects=False)
    assert abs(found.total) < 0.01
    assert len(found.edges) < 500
    direct = float(trace.paths().toward(-1, token, versus).by_last.values.abs().sum())
    assert found.floor == pytest.approx(0.02 * 0.5 * direct, rel=1e-4)
    shares = {str(node): [node.value] for node in found.nodes}
    for edge in found.edges:
        shares[str(edge.edge.start)].append(edge.share)
    assert all(max(map(abs, each)) >= found.floor for each in shares.values() if len(each) > 1)
    check_sums(found)
    plain = trace.circuit(token="el", effects=False)
    assert plain.floor == pytest.approx(0.02 * plain.total)


def test_a_circuit_has_so_many_nodes_at_most_and_says_so() -> None:
    trace = load("two-layer").trace("self.quixel = quixel\n        return self.quix")
    whole = trace.circuit(token="el", effects=False)
    found = trace.circuit(token="el", effects=False, max_nodes=12)
    assert len(found.nodes) <= 12 < len(whole.nodes)
    assert whole.raised_from is None
    assert found.raised_from == whole.floor < found.floor
    assert "to keep at most 12 nodes" in " ".join(str(found).split())
    assert "at most" not in str(whole)
    check_sums(found)
    with pytest.raises(InputError, match="max_nodes=0 is out of range"):
        trace.circuit(token="el", max_nodes=0)


def test_circuits_of_one_run_share_what_they_are_grown_from() -> None:
    """In any order of positions and sequences, each is that of a run of its own."""
    config = Config(2, 2, 16, 8, 11, 12, norm="layer", mlp="gelu")
    model = random_model(config, seed=3, dtype=torch.float64)
    tokens = torch.randint(11, (2, 12), generator=torch.Generator().manual_seed(0))
    trace = model.trace(tokens)
    for sequence, position in ((0, 2), (0, 11), (1, 5), (0, 7), (0, 0), (1, 11)):
        shared = find_circuit(trace, position, 4, sequence=sequence)
        alone = find_circuit(model.trace(tokens[sequence, : position + 1]), position, 4)
        assert shared.total == pytest.approx(alone.total, abs=1e-9)
        assert [str(edge.edge) for edge in shared.edges] == [str(edge.edge) for edge in alone.edges]
        for one, other in zip(shared.edges, alone.edges, strict=True):
            assert one.share == pytest.approx(other.share, abs=1e-9)
            assert (one.effect is None) == (other.effect is None)
            if one.effect is not None:
                assert one.effect == pytest.approx(other.effect, abs=1e-9)


def test_a_prediction_of_exactly_nothing() -> None:
    trace = construct.induction().trace("a b c")
    found = trace.circuit(token="d", versus="d")
    assert found.total == 0
    assert found.edges == ()


def test_the_sentence_of_a_token_that_is_lowered() -> None:
    """The other way round, the same heads lower it, for the same reason."""
    trace = construct.induction().trace("a b c d a")
    found = trace.circuit(token="c", versus="b")
    assert found.total < -9
    assert found.sentence.startswith("L1H0 adds −")
    assert "L0H0 moved 'a' from the preceding position into its key" in found.sentence
    # Nothing attends before the first position, and the first token has no head that moves it.
    alone = construct.virtual_head({"a": "x"}).trace("b").circuit(0, "x", "y", threshold=1.0)
    assert alone.sentence == "No head of the circuit adds to this prediction."


def test_views() -> None:
    found = construct.induction().trace("a b c d a").circuit(token="b")
    tree = str(found)
    assert "K L0H0@2" in tree
    assert "attends 100% to 2" in tree
    graph = found.to_graph()
    assert {"metadata", "nodes", "links"} <= graph.keys()
    ids = {node["node_id"] for node in graph["nodes"]}
    assert all(link["source"] in ids and link["target"] in ids for link in graph["links"])
    assert json.loads(found.dumps())["format"] == "pathsum-circuit"


def test_a_rival_position_is_what_the_score_is_compared_with() -> None:
    trace = construct.induction().trace("a b c d a")
    found = trace.circuit(token="b", rival=3)
    attended = found.node("L1H0@5").attended
    assert attended is not None
    assert (attended.source, attended.rival) == (2, 3)
    scores = trace.scores("L1H0").total()[0, 5]
    assert attended.contrast == pytest.approx(float(scores[2] - scores[3]), rel=1e-5)


def test_the_first_position_has_no_scores_to_explain() -> None:
    found = load("two-layer").trace("a b").circuit(position=0, effects=False)
    heads = [node for node in found.nodes if node.node.head]
    assert heads
    assert all(node.attended is None and "no other position" in node.note for node in heads)
    assert not [edge for edge in found.edges if edge.kind != "v"]


def test_uniform_attention_says_so() -> None:
    config = Config(n_layers=1, n_heads=2, d_model=8, d_head=4, d_vocab=11, n_ctx=8)
    model = random_model(config, seed=3)
    model.weights.layers[0].W_Q[0] = 0
    found = model.trace(torch.tensor([[1, 2, 3, 4]])).circuit(threshold=1e-3, effects=False)
    notes = {str(node.node): node.note for node in found.nodes if node.node.head}
    assert notes["L0H0@3"].startswith("it attends to all 4 sources equally")
    assert "alike" not in notes["L0H1@3"]
    attended = found.node("L0H0@3").attended
    assert attended is not None
    assert attended.effect == pytest.approx(0, abs=1e-6)
    assert "it attends to all 4 sources equally" in str(found)


def test_bad_input() -> None:
    trace = construct.induction().trace("a b c")
    with pytest.raises(InputError, match="position 9 is out of range"):
        trace.circuit(position=9)
    with pytest.raises(TokenError, match="zebra"):
        trace.circuit(token="zebra")
    with pytest.raises(InputError, match="rival position 3 is out of range"):
        trace.circuit(position=2, rival=3)
    with pytest.raises(InputError, match="threshold=0 is out of range"):
        trace.circuit(threshold=0.0)
    with pytest.raises(InputError, match="sequence 1 is out of range"):
        find_circuit(trace, sequence=1)
    with pytest.raises(PathError, match="not a site"):
        trace.circuit().node("nonsense")
    with pytest.raises(InputError, match="no node L0H3"):
        trace.circuit().node("L0H3")


def test_cutting_a_k_edge_is_patching_it() -> None:
    """Where the head looks from one destination only, an edge of nodes is the whole edge."""
    trace = construct.induction().trace("a b c d a")
    found = trace.circuit(token="b")
    effect = next(edge.effect for edge in found.edges if str(edge) == "L0H0@2→L1H0@5.k")
    target = find_target(trace, -1, "b", "mean")
    written = trace.written("L0H0").clone()
    written[:, 2] = 0
    edge = Site.parse("L0H0→L1H0.k")
    patched = run_logits(trace.weights, trace.tokens, [Edit(edge, written)])
    lost = float((target.of(trace.logits) - target.of(patched))[0])
    assert effect == pytest.approx(lost, rel=1e-5)
    assert lost > 0.9 * found.total


def test_a_cut_touches_one_destination() -> None:
    """Cut for a destination that is not looked at, an edge costs nothing."""
    trace = construct.induction().trace("a b c a d a")
    of = PredictionRun(trace, find_target(trace, -1, "b", "mean"))
    there, elsewhere = cut_effects(of, [[Site.parse(f"L0H0@2→L1H0@{at}.k")] for at in (6, 4)])
    assert there is not None
    assert there > 0.01
    assert elsewhere == pytest.approx(0, abs=1e-4)


def test_edges_can_be_taken_from_another_run() -> None:
    model = construct.induction()
    trace, other = model.trace("a b c d a"), model.trace("c b a d a")
    found = trace.circuit(token="b", other=other)
    effect = next(edge.effect for edge in found.edges if str(edge) == "L0H0@2→L1H0@5.k")
    assert effect is not None
    assert effect > 0.9 * found.total
    with pytest.raises(InputError, match="6 and 3 tokens"):
        trace.circuit(token="b", other=model.trace("a b"))


def test_edges_are_not_taken_from_a_run_of_another_model() -> None:
    trace = construct.induction().trace("a b c d a")
    other = construct.induction_by_q().trace("a b c d a")
    with pytest.raises(InputError, match="of another model"):
        trace.circuit(token="b", other=other)
    with pytest.raises(InputError, match="of another model"):
        score(trace, find_target(trace, -1, "b", "mean"), by="cut", reference=other)


def test_an_edited_run_has_no_circuit() -> None:
    trace = construct.induction().trace("a b c d a")
    with pytest.raises(NotExactError, match="was edited"):
        trace.patch({("L0H0", "L1H0", "k"): trace}).circuit()


def test_padding_of_a_shorter_text_is_not_part_of_its_circuit() -> None:
    model = construct.induction()
    padded = model.trace(["a b c d a", "a b a"]).circuit(token="b", sequence=1)
    alone = model.trace("a b a").circuit(token="b")
    assert (padded.position, padded.tokens) == (alone.position, alone.tokens)
    assert [str(edge) for edge in padded.edges] == [str(edge) for edge in alone.edges]
    assert [edge.share for edge in padded.edges] == pytest.approx(
        [edge.share for edge in alone.edges], abs=1e-4
    )


def test_a_run_that_overflowed_has_no_circuit(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = construct.induction().trace("a b c d a")
    monkeypatch.setattr(
        Trace, "uncapped_logits_at", lambda trace, at: trace.logits_at(at) * float("inf")
    )
    with pytest.raises(InputError, match="the run overflowed"):
        trace.circuit(token="b")


# What circuit-tracer's viewer reads, and the types it takes them to have; our own fields after it.
METADATA: dict[str, Any] = {
    "slug": str,
    "scan": str,
    "transcoder_list": list,
    "prompt_tokens": list,
    "prompt": str,
    "node_threshold": float,
    "schema_version": int,
}
PARAMS: dict[str, Any] = {
    "pinnedIds": list,
    "supernodes": list,
    "linkType": str,
    "clickedId": str,
    "sg_pos": str,
}
NODE: dict[str, Any] = {
    "node_id": str,
    "feature": int,
    "layer": str,
    "ctx_idx": int,
    "feature_type": str,
    "token_prob": float,
    "is_target_logit": bool,
    "run_idx": int,
    "reverse_ctx_idx": int,
    "jsNodeId": str,
    "clerp": str,
    "influence": (float, NoneType),
    "activation": float,
}
LINK: dict[str, Any] = {
    "source": str,
    "target": str,
    "weight": float,
    "kind": str,
    "exact": float,
    "unit": str,
    "effect": (float, NoneType),
}


def check_types(found: dict[str, Any], types: dict[str, Any]) -> None:
    assert found.keys() == types.keys()
    for name, kind in types.items():
        assert isinstance(found[name], kind), name
        assert kind is bool or not isinstance(found[name], bool), name


def test_the_graph_has_the_types_that_the_viewer_expects() -> None:
    found = load("two-layer").trace("self.quixel = quixel\n        return self.quix").circuit()
    graph = json.loads(json.dumps(found.to_graph(), allow_nan=False))
    assert graph.keys() == {"metadata", "qParams", "nodes", "links"}
    check_types(graph["metadata"], METADATA)
    check_types(graph["qParams"], PARAMS)
    for node in graph["nodes"]:
        check_types(node, NODE)
        assert node["layer"] == "E" or 0 <= int(node["layer"]) <= 2
        assert 0 <= node["ctx_idx"] < len(graph["metadata"]["prompt_tokens"])
        assert node["influence"] is None or 0 <= node["influence"] <= 1
    for link in graph["links"]:
        check_types(link, LINK)
    (logit,) = [node for node in graph["nodes"] if node["feature_type"] == "logit"]
    assert logit["layer"] == "2"
    assert logit["is_target_logit"]
    # The viewer reads the probability and the token out of this text.
    shown = float(logit["clerp"].split("(p=")[1].split(")")[0])
    assert shown == pytest.approx(found.probability, abs=1e-3)
    assert logit["clerp"].split('"')[1] == "el"


def test_the_viewer_keeps_every_node_of_the_graph_apart() -> None:
    """It deletes features of more than 2/3 of the tokens, and gives nodes of one feature one text.

    A feature is a layer and a number, so that no two nodes may share them.
    """
    found = construct.induction().trace("a b c d a").circuit(token="b", threshold=1e-3)
    graph = found.to_graph()
    for name in ("node_id", "jsNodeId"):
        assert len({node[name] for node in graph["nodes"]}) == len(graph["nodes"])
    features = {(node["layer"], node["feature"]) for node in graph["nodes"]}
    assert len(features) == len(graph["nodes"])
    ids = {node["node_id"] for node in graph["nodes"]}
    assert all(link["source"] in ids and link["target"] in ids for link in graph["links"])
    links = [(link["source"], link["target"], link["kind"]) for link in graph["links"]]
    assert len(set(links)) == len(links)


def test_inputs_add_up_in_the_graph_with_what_was_left_out() -> None:
    found = load("two-layer").trace("a b c a").circuit(effects=False)
    graph = found.to_graph()
    rest = [node["node_id"] for node in graph["nodes"] if node["node_id"].startswith("omitted@")]
    assert rest
    inner = [one for one in found.nodes if one.node.head or one.node.writer == LOGITS]
    assert set(rest) <= {f"omitted@{one.node}" for one in inner}

    def into(node: Site, kind: str) -> float:
        here = [link for link in graph["links"] if link["target"] == str(node)]
        return sum(link["weight"] for link in here if link["kind"] == kind)

    for one in inner:
        assert into(one.node, "v") == pytest.approx(one.value, abs=1e-4)
        if one.attended is not None and not one.note:
            assert into(one.node, "k") == pytest.approx(one.attended.effect, abs=1e-4)


def test_a_token_in_the_graph_cannot_break_the_viewer() -> None:
    model = construct.induction(['(p="', "a/b", "c"])
    found = model.trace('(p=" a/b c (p="').circuit(token='(p="')
    (logit,) = [node for node in found.to_graph()["nodes"] if node["feature_type"] == "logit"]
    assert float(logit["clerp"].split("(p=")[1].split(")")[0]) == pytest.approx(
        found.probability, abs=1e-3
    )
    assert "/" not in found.to_graph()["metadata"]["slug"]


def test_a_token_that_looks_like_terminal_markup_is_printed() -> None:
    found = construct.induction(["[/b]", "[red]", "c"]).trace("[/b] [red] c [/b]")
    shown = str(found.circuit(token="[red]"))
    assert "'[red]'" in shown
    assert "'[/b]'" in shown


def test_a_run_whose_logits_are_all_zero_has_a_circuit() -> None:
    found = load("hand-built-skip-trigrams").trace([0]).circuit(token=1)
    assert found.total == 0.0 and found.remainder == 0.0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_any_precision(dtype: torch.dtype) -> None:
    model = construct.induction().to(dtype)
    found = model.trace("a b c d a").circuit(token="b")
    assert "L0H0@2→L1H0@5.k" in {str(edge) for edge in found.edges}
    # Shares are rounded one by one, to the precision of the model.
    whole = added_up(found, found.top, "v")
    assert abs(whole - found.total) <= 8 * torch.finfo(dtype).eps * abs(found.total)


def test_given_edges_are_scored_however_many_they_are() -> None:
    trace = construct.induction().trace("a b c d a")
    edges = ["L1H0@5→logits@5", "L0H0@2→L1H0@5.k"]
    found = score(trace, find_target(trace, -1, "b", "mean"), edges, max_nodes=1)
    assert found[edges[1]].share == pytest.approx(9.3, abs=0.1)
