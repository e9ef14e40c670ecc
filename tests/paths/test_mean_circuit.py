"""Circuits of many prompts, and differences of circuits."""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.training.planted import plant

from pathsum.base import Estimate, HeadId, options
from pathsum.base.errors import InputError, TokenError
from pathsum.base.site import LOGITS
from pathsum.heads import induction
from pathsum.model import Config, Model, construct, random_model
from pathsum.model.edit import Edit, Writes, cut_edges
from pathsum.paths import cuts
from pathsum.paths.circuit import mean_circuit, membership
from pathsum.paths.cuts import Edges
from pathsum.paths.edges import is_written
from pathsum.paths.graph import Graph
from pathsum.paths.prompts import Prompt, read_prompts
from pathsum.sources import load
from pathsum.text.token_pool import random_repeats
from pathsum.training.checkpoint import read_snapshots


@pytest.fixture(scope="module")
def model() -> Model:
    return construct.induction()


def test_prompts_of_one_length_are_averaged_by_position(model: Model) -> None:
    texts = ["a b c d a", "f g h i f", "j k a b j"]
    found = mean_circuit(model, texts)
    alone = [model.trace(text).circuit() for text in texts]
    edge = found["L0H0@2→L1H0@last.k"]
    shares = [one.share for each in alone for one in each.edges if str(one) == "L0H0@2→L1H0@5.k"]
    effects = [one.effect for each in alone for one in each.edges if str(one) == "L0H0@2→L1H0@5.k"]
    assert edge.prompts == 3
    assert edge.share == pytest.approx(sum(shares) / 3)
    assert edge.effect is not None
    assert edge.effect == pytest.approx(sum(filter(None, effects)) / 3, rel=1e-4)
    deviation = statistics.stdev(shares)
    assert deviation > 0
    assert edge.estimate().stderr == pytest.approx(deviation / 3**0.5, rel=1e-4)
    low, high = edge.estimate().low, edge.estimate().high
    assert low is not None
    assert high is not None
    assert low < edge.share < high
    assert found.total == pytest.approx(sum(one.total for one in alone) / 3)


def test_prompts_of_mixed_length_correspond_by_name(model: Model) -> None:
    prompts = [
        Prompt("a b c d a", names={"answer": "b"}),
        Prompt("c d e f g e", names={"answer": 4}),
        Prompt("h i h", names={"answer": (2, 3)}),
    ]
    found = mean_circuit(model, prompts)
    assert found["embed@answer→L1H0@last.v"].prompts == 3
    assert found["L0H0@answer→L1H0@last.k"].prompts == 3
    assert found["embed@first→L1H0@last.k"].prompts == 3
    # The token before the answer has no name.
    assert any(edge.name == "embed@elsewhere→L0H0@answer.v" for edge in found.edges)
    lengths = [len(circuit.tokens) for circuit in found.circuits]
    assert lengths == [6, 7, 4]


def test_edges_of_one_place_are_cut_together(model: Model) -> None:
    """Either of two keys is enough: cut one and the other takes over, cut both and it is gone."""
    text = "a b a b a"
    together = mean_circuit(model, [Prompt(text, token="b", names={"answers": (2, 5)})])
    edge = together["L0H0@answers→L1H0@last.k"]
    alone = model.trace(text).circuit(token="b")
    single = [one.effect or 0 for one in alone.inputs("L1H0@5", "k") if one.edge.start.head]
    assert edge.effect is not None
    assert len(single) >= 2
    assert edge.effect > 2 * max(single)


def test_unlikely_edges_are_not_cut() -> None:
    config = Config(2, 2, 12, 6, 17, 8, mlp="silu_gated", norm="rms")
    tokens = [[(3 * one + place) % 17 for place in range(5)] for one in range(6)]
    found = mean_circuit(random_model(config, seed=1), tokens)
    written = [edge for edge in found.edges if is_written(edge.edge.start)]
    unlikely = [edge for edge in written if (edge.probability or 0.0) < 0.05]
    assert 0 < len(unlikely) < len(written)
    assert all((edge.effect is None) == (edge in unlikely) for edge in written)


def test_groups_of_edges_are_cut_in_parts_that_fit_in_memory(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["a b c d a", "f g h i f"]
    whole = mean_circuit(model, texts)
    sizes: list[int] = []

    def counted(rows: Sequence[Edges], writes: Writes) -> list[Edit]:
        sizes.append(len(rows))
        return cut_edges(rows, writes)

    monkeypatch.setattr(cuts, "cut_edges", counted)
    monkeypatch.setattr(options, "BYTES", 2 * 4 * 4 * 6 * model.config.d_model)
    found = mean_circuit(model, texts)
    assert max(sizes) == 2
    assert sum(sizes) > len([edge for edge in found.edges if edge.effect is not None])
    for edge in found.edges:
        assert (edge.effect is None) == (whole[edge.name].effect is None)
        if edge.effect is not None:
            assert edge.effect == pytest.approx(whole[edge.name].effect, abs=1e-4)


def test_the_position_of_the_prediction_may_have_a_name(model: Model) -> None:
    prompt = Prompt("a b c a d e", token="b", position="again", names={"again": 4})
    found = mean_circuit(model, [prompt])
    assert found.circuits[0].position == 4
    assert found["L1H0@again→logits@again"].share > 0.9 * found.total
    assert mean_circuit(model, ["a b a"], position=1).circuits[0].position == 1


def test_an_edge_that_a_prompt_does_not_keep_counts_as_nothing(model: Model) -> None:
    found = mean_circuit(model, ["a b c d a", "d a b c a"], token="b", effects=False)
    for edge in found.edges:
        shares = found.shares[edge.name]
        assert edge.share == pytest.approx(sum(shares) / 2)
        assert edge.prompts == sum(share != 0 for share in shares)
    assert any(edge.prompts == 1 for edge in found.edges)


def test_a_corrupted_prompt_is_what_edges_are_cut_to_and_a_reference(model: Model) -> None:
    prompts = [
        Prompt("a b c d a", token="b", corrupted="e b c d a"),
        Prompt("f g h f", token="g", corrupted="i g h f"),
    ]
    found = mean_circuit(model, prompts)
    kept = found.faithfulness("other", draws=5)
    assert kept.prompts == 2
    assert kept.kept.value > 0.98
    assert kept.kept.low is not None
    assert kept.reference == "another prompt"
    assert kept.points[-1].eap_ig is not None
    with pytest.raises(InputError, match="prompt 0: reference is 'other'"):
        mean_circuit(model, ["a b a"]).faithfulness("other")


def test_the_interval_of_a_probability_is_within_0_and_1(model: Model) -> None:
    """Two prompts of which one is predicted: Student's interval is many times as wide."""
    found = mean_circuit(model, ["a b c d a", "a b c d e"], token="b", effects=False)
    probability, total = found.estimate("probability"), found.estimate()
    assert (probability.low, probability.high) == (0.0, 1.0)
    assert total.low is not None
    assert total.low < 0


def test_edges_belong_to_the_circuit_with_a_probability(model: Model) -> None:
    """Of two prompts, three of four bootstrap samples contain a given one."""
    texts = ["a b c d a", "d a b c a"]
    found = mean_circuit(model, texts, token="b", effects=False, threshold=0.2)
    for edge in found.edges:
        assert edge.probability is not None
        expected = 1.0 if edge.prompts == 2 else 0.75
        if abs(edge.share) < found.floor:
            continue
        assert edge.probability == pytest.approx(expected, abs=0.05), edge
    names = [edge.name for edge in found.shared]
    assert names[0] == "L1H0@last→logits@last"
    assert {found[name].prompts for name in names} == {1, 2}
    kept = found.faithfulness("zero", baselines=())
    assert [point.edges for point in kept.points][-1] == len(written(names))
    assert kept.kept.value > 0.98
    assert mean_circuit(model, texts[:1]).circuits[0].edges[0].probability is None


def test_rewordings_count_as_one_observation() -> None:
    """An edge of one wording in three is missing where that wording was not drawn."""
    shares = {"edge": [1.0] * 10 + [0.0] * 20}
    floors, templates = [0.25] * 30, ["a"] * 10 + ["b"] * 10 + ["c"] * 10
    alone = membership(shares, floors)["edge"]
    assert alone > 0.8
    reworded = membership(shares, floors, templates)["edge"]
    # 1 − (2/3)³ of the samples contain the wording, with a third of the weight or more.
    assert reworded == pytest.approx(1 - (2 / 3) ** 3, abs=0.05)
    assert membership({"edge": [0.0] * 3}, [0.1] * 3) == {"edge": 0.0}


def written(names: list[str]) -> list[str]:
    """Without positions, which no component writes."""
    return [name for name in names if not name.startswith("pos")]


def test_prompts_that_share_no_edge_have_no_shared_circuit(model: Model) -> None:
    found = mean_circuit(model, ["a b a", "a b"], token="b", effects=False, threshold=1.0)
    with pytest.raises(
        InputError, match="no edge belongs to the circuit of most samples of the prompts"
    ):
        found.faithfulness("zero")


def test_a_mean_as_tree_and_graph(model: Model, tmp_path: Path) -> None:
    prompts = [
        Prompt("a b c d a", names={"answer": "b"}),
        Prompt("f g h f", names={"answer": "g"}),
    ]
    found = mean_circuit(model, prompts)
    shown = str(found)
    assert "K L0H0@answer" in shown
    graph = found.to_graph()
    assert graph["metadata"]["prompt_tokens"] == ["first", "answer", "elsewhere", "last"]
    ids = {node["node_id"]: node for node in graph["nodes"]}
    assert ids["L0H0@answer"]["ctx_idx"] == 1
    assert graph["nodes"][0]["node_id"] == "logits@last"
    for name in ("logits@last", "L1H0@last", "L0H0@answer"):
        links = [one for one in graph["links"] if one["target"] == name and one["kind"] == "v"]
        assert sum(one["weight"] for one in links) == pytest.approx(
            ids[name]["activation"], abs=1e-4
        )
    assert ids["logits@last"]["activation"] == pytest.approx(found.total, abs=1e-4)
    found.write_graph(str(tmp_path / "why.json"))
    assert json.loads((tmp_path / "why.json").read_text(encoding="utf-8")) == graph


def test_bad_prompts(model: Model) -> None:
    with pytest.raises(InputError, match="no prompts"):
        mean_circuit(model, [])
    with pytest.raises(InputError, match="prompt 1: 'x', 'q', occurs 0 times"):
        mean_circuit(model, ["a b", Prompt("a b", names={"x": "q"})])
    with pytest.raises(InputError, match="prompt 0: 'x', 'a', occurs 2 times"):
        mean_circuit(model, [Prompt("a b a", names={"x": "a"})])
    with pytest.raises(InputError, match="'x' is at 9, which is out of range"):
        mean_circuit(model, [Prompt("a b", names={"x": 9})])
    with pytest.raises(InputError, match="prompt 0: position 'lats' is not defined"):
        mean_circuit(model, ["a b"], position="lats")
    with pytest.raises(InputError, match="prompt 1: position 7 is out of range"):
        mean_circuit(model, ["a b", Prompt("a b", position=7)])
    with pytest.raises(TokenError, match="prompt 0: .*zebra"):
        mean_circuit(model, ["a b"], token="zebra")
    with pytest.raises(InputError, match="prompt 0: the runs have 4 and 2 tokens"):
        mean_circuit(model, [Prompt("a b a", corrupted="a")])
    with pytest.raises(InputError, match="no prompt's circuit keeps"):
        mean_circuit(model, ["a b a"])["L0H9@last→logits@last"]
    with pytest.raises(InputError, match="given as token ids"):
        mean_circuit(model, [Prompt([1, 2, 1], names={"x": "a"})])


def test_a_piece_of_text_is_its_tokens() -> None:
    model = load("two-layer")
    text = "def zorble(self): return zor"
    spans = Prompt(text, names={"name": "zorble", "all": text}).spans(model, 99)
    tokens = model.encode(text)
    named = "".join(model.token_text(tokens[at]) for at in spans["name"])
    assert "zorble" in named
    assert len(named) <= len("·zorble(")
    assert spans["all"] == range(1, len(tokens))


def test_diff_of_two_prompts(model: Model) -> None:
    one = model.trace("a b c d a").circuit(token="b", threshold=0.2)
    same = one.diff(model.trace("a b c d a").circuit(token="b", threshold=0.2))
    assert all(edge.difference.value == 0 for edge in same.edges)
    assert same.only_in_this == same.only_in_other == ()
    moved = one.diff(model.trace("d a b c a").circuit(token="b", threshold=0.2))
    assert "L0H0@2→L1H0@5.k" in moved.only_in_this
    assert "L0H0@3→L1H0@5.k" in moved.only_in_other
    edge = moved["L0H0@3→L1H0@5.k"]
    assert edge.here is None
    assert edge.there is not None
    assert edge.difference.value == pytest.approx(-edge.there.value)
    assert "kept by" in str(moved)
    with pytest.raises(InputError, match="do not correspond"):
        one.diff(model.trace("a b a").circuit())


def test_diff_of_means_is_paired_over_the_same_prompts(model: Model) -> None:
    texts = ["a b c d a", "f g h i f", "j k a b j"]
    one = mean_circuit(model, texts, effects=False)
    two = mean_circuit(construct.induction_by_q(), texts, effects=False)
    found = one.diff(two)
    assert "L0H0@2→L1H0@last.k" in found.only_in_this
    assert "L0H0@last→L1H0@last.q" in found.only_in_other
    paired = found["L1H0@last→logits@last"].difference
    here, there = (each["L1H0@last→logits@last"].share for each in (one, two))
    assert paired.value == pytest.approx(here - there)
    other = one.diff(mean_circuit(model, ["a c a", "b d b"], effects=False))
    apart = other["L1H0@last→logits@last"].difference
    assert isinstance(apart, Estimate)
    assert apart.stderr is not None


def test_diff_of_two_training_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Early on the weights are mostly noise; the edge that finds the answer is there at the end."""
    monkeypatch.setattr("pathsum.base.files._flush_to_disk", lambda file: None)
    early, late = read_snapshots(plant(tmp_path, {64: 0.2, 1024: 1.0}))
    texts = ["a b c d a", "f g h i f", "j k a b j"]
    here, there = (mean_circuit(one.model, texts, effects=False) for one in (late, early))
    found = here.diff(there)
    assert "L0H0@2→L1H0@last.k" in found.only_in_this
    edge = found["L1H0@last→logits@last"]
    assert edge.difference.value > 0.5 * here.total
    assert edge.difference.low is not None
    assert edge.difference.low > 0
    alone = late.model.trace(texts[0]).circuit(token="b", effects=False)
    before = early.model.trace(texts[0]).circuit(token="b", effects=False)
    assert "L0H0@2→L1H0@5.k" in alone.diff(before).only_in_this


def of_induction(circuits: tuple[Graph, ...], total: dict[HeadId, float]) -> HeadId:
    """The head that adds most to the predictions, over all prompts."""
    for circuit in circuits:
        for edge in circuit.edges:
            head = edge.edge.start.head
            if edge.edge.reader == LOGITS and head is not None:
                total[head] = total.get(head, 0.0) + edge.share
    return max(total, key=lambda head: total[head])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["two-layer", "two-layer-seed-1"])
def test_the_circuit_of_induction_is_the_one_that_cutting_proves(name: str) -> None:
    """On repeated random tokens: the same head, the same partner, through the same read."""
    model = load(name)
    proven = {head.head: head for head in induction(model, sequences=8, draws=99).heads}
    probe = random_repeats(model.token_pool().ids(), 12, 2, 6, 3, model.config.start_token)
    prompts = [Prompt(row[:-1].tolist(), token=int(row[-1])) for row in probe.tokens]
    found = mean_circuit(model, prompts, threshold=0.05)
    head = of_induction(found.circuits, {})
    assert head in proven
    side = proven[head].mechanism[0].lower()
    strength: dict[str, float] = {}
    for edge in found.edges:
        writer, _, reader = edge.name.partition("→")
        if reader.startswith(f"{head}@last") and edge.kind in ("q", "k") and "H" in writer:
            label = f"{writer.split('@')[0]}.{edge.kind}"
            strength[label] = strength.get(label, 0.0) + edge.share
    assert max(strength, key=lambda label: strength[label]) == f"{proven[head].partner}.{side}"


PROMPTS = sorted((Path(__file__).parents[2] / "examples" / "prompts").glob("*.jsonl"))


@pytest.mark.parametrize("file", PROMPTS, ids=[file.stem for file in PROMPTS])
def test_example_prompts_have_corrupted_partners(file: Path) -> None:
    prompts = read_prompts(file)
    assert len(prompts) >= 30
    assert len({prompt.text for prompt in prompts}) == len(prompts)
    assert len({prompt.template for prompt in prompts}) >= 2
    for prompt in prompts:
        assert isinstance(prompt.text, str)
        assert isinstance(prompt.corrupted, str)
        assert prompt.text != prompt.corrupted
        assert len(prompt.text.split()) == len(prompt.corrupted.split())
        assert prompt.token != prompt.versus


def test_there_are_prompts_for_five_tasks() -> None:
    assert len(PROMPTS) == 5
