"""MLP nodes of a circuit by neuron, and the page of one neuron, on the page and in the CLI."""

import json

import pytest
from tests.explorer.test_questions import check_types
from tests.explorer.variants import VARIANTS

from pathsum.base.errors import InputError
from pathsum.cli.main import main
from pathsum.explorer.answers.prediction import SourceTotals
from pathsum.explorer.explorer import Explorer, find_question
from pathsum.explorer.params import decode
from pathsum.heads import Neuron
from pathsum.model import construct, random_model
from pathsum.paths.breakdown import NodeNeurons
from pathsum.paths.graph import Graph

WITH_MLPS = {
    "silu, gated": VARIANTS["rotary, shared keys, MLPs, rms"],
    "gelu, parallel": VARIANTS["residual positions, LayerNorm, parallel"],
    "memory": construct.memory,
}
ABOUT = {"ids": "1,2,3,1,2,3,1", "position": 5}


@pytest.mark.parametrize("versus", ["mean", "none", 7])
@pytest.mark.parametrize("variant", [*VARIANTS, "memory"])
def test_tokens_positions_and_biases_add_up_to_the_prediction(
    variant: str, versus: str | int
) -> None:
    model = (WITH_MLPS | VARIANTS)[variant]()
    explorer = Explorer([model], bundled=())
    shown = explorer.answer("sources", {**ABOUT, "token": 4, "versus": versus})
    assert isinstance(shown, SourceTotals) and len(shown.tokens) == 6
    logits = model.trace([1, 2, 3, 1, 2, 3, 1]).uncapped_logits_at(5)[0]
    rivals = {"mean": logits.mean(), "none": 0.0}
    total = float(logits[4] - (logits[versus] if isinstance(versus, int) else rivals[versus]))
    near = pytest.approx(total, abs=1e-5 * (1 + float(logits.abs().max())))
    assert shown.total == near and float(shown.tokens.sum()) + shown.rest == near


def test_without_biases_the_tokens_are_the_whole_prediction() -> None:
    plain = WITH_MLPS["silu, gated"]().config
    explorer = Explorer([random_model(plain, seed=1)], bundled=())
    shown = explorer.answer("sources", ABOUT)
    assert isinstance(shown, SourceTotals) and shown.rest == pytest.approx(0, abs=1e-6)
    assert abs(shown.total) > 1e-3


@pytest.mark.parametrize("variant", WITH_MLPS)
def test_neurons_and_the_rest_add_up_to_their_node(variant: str) -> None:
    explorer = Explorer([WITH_MLPS[variant]()], bundled=())
    found = explorer.answer("why", ABOUT)
    assert isinstance(found, Graph)
    nodes = [one for one in found.nodes if str(one.node).startswith("mlp")]
    assert nodes
    for one in nodes:
        asked = {**ABOUT, "node": str(one.node)}
        shown = explorer.answer("neurons", asked)
        assert isinstance(shown, NodeNeurons)
        total = sum(each.share for each in shown.neurons) + shown.rest
        assert total == pytest.approx(one.value, abs=1e-4 * (1 + abs(found.total)))
        sizes = [abs(each.share) for each in shown.neurons]
        assert sizes == sorted(sizes, reverse=True)
        check_types(decode(explorer.ask("neurons", asked)), find_question("neurons").answer, "it")


@pytest.mark.parametrize("variant", WITH_MLPS)
def test_a_neuron_has_a_page(variant: str) -> None:
    explorer = Explorer([WITH_MLPS[variant]()], bundled=())
    shown = explorer.answer("neuron", {"neuron": "mlp0.n2"})
    assert isinstance(shown, Neuron) and shown.neuron == "mlp0.n2"
    got = decode(explorer.ask("neuron", {"neuron": "mlp0.n2"}))
    check_types(got, find_question("neuron").answer, "neuron")


def test_what_has_no_neurons_is_refused() -> None:
    plain, mlps = Explorer(["hand-built-induction"], bundled=()), Explorer([construct.memory()])
    with pytest.raises(InputError, match="has no MLPs"):
        plain.answer("neuron", {"neuron": "mlp0.n2"})
    with pytest.raises(InputError, match="has no neurons; name an MLP of the graph"):
        mlps.answer("neurons", {**ABOUT, "node": "logits@5"})
    with pytest.raises(InputError, match="neuron"):
        mlps.answer("neuron", {"neuron": "mlp0.n99999"})


def test_the_command_line_prints_the_same_neurons(capsys: pytest.CaptureFixture[str]) -> None:
    explorer = Explorer(["hand-built-memory"], bundled=())
    trace = explorer.session.models[0].model.trace("a b")
    node = next(str(one.node) for one in trace.circuit().nodes if str(one.node).startswith("mlp"))
    shown = explorer.answer("neurons", {"text": "a b", "position": 2, "node": node})
    assert isinstance(shown, NodeNeurons)
    command = ["why", "hand-built-memory", "a b", "--neurons", node]
    assert main([*command, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [one["neuron"] for one in printed["neurons"]] == [one.neuron for one in shown.neurons]
    assert printed["value"] == pytest.approx(shown.value, abs=1e-5)
    assert main(command) == 0
    assert shown.neurons[0].neuron in capsys.readouterr().out
    assert main([*command[:3], "--neurons", "logits@2"]) == 2
    assert "has no neurons" in capsys.readouterr().err
