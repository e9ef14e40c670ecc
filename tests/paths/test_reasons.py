"""Reasons that sentences state, tested by interventions of their own."""

import pytest
import torch
from torch import Tensor

from pathsum.base import HeadId
from pathsum.base.site import Side, Site
from pathsum.model import Model, Trace, construct
from pathsum.paths.graph import Graph
from pathsum.paths.reasons import Reason, attention_kind
from pathsum.sources import load

TEXTS = (
    "self.quixel = quixel\n        return self.quix",
    "The quick brown fox jumps over the quick",
    "def foo(self, bar):\n    self.bar =",
)


def logit(trace: Trace, graph: Graph) -> float:
    row = trace.logits[0, graph.position]
    return float(row[graph.token] - row.mean())


def without(trace: Trace, reason: Reason) -> Trace:
    """The run without a part: an edge cut, or positions taken out of the read by a hook."""
    if str(reason.writer)[:3] != "pos":
        return trace.patch({str(reason.edge): "zero"})
    head, dest, at = reason.edge.reader, reason.edge.to, reason.edge.at
    assert isinstance(head, HeadId) and dest is not None and at is not None
    layer, config = trace.weights.layers[head.layer], trace.model.config
    read, places = trace.streams[head.layer][0], trace.weights.W_pos
    if config.positions == "qk":
        assert config.norm == "none" and layer.W_pos is not None
        places = layer.W_pos
        read = read + places[: len(read)]
    assert places is not None
    W_Q, W_K = layer.W_Q[head.head], layer.W_K[head.head]
    query, key = read @ W_Q, read @ W_K
    if reason.side is Side.K:
        key[at] = (read[at] - places[at]) @ W_K
    else:
        query[dest] = (read[dest] - places[dest]) @ W_Q
    row = (query[dest] @ key[: dest + 1].T * config.score_scale).softmax(-1)

    def changed(pattern: Tensor) -> Tensor:
        pattern = pattern.clone()
        pattern[:, dest, : dest + 1] = row
        return pattern

    return trace.model.trace(trace.tokens, hooks={f"{head}.pattern": changed})


@pytest.mark.parametrize(
    "model",
    [
        load("two-layer"),
        load("two-layer-full-positions"),
        construct.virtual_head({"a": "x", "b": "y"}),
        construct.induction(),
        construct.induction_by_q(),
    ],
    ids=lambda model: model.name,
)
def test_every_stated_reason_matters(model: Model) -> None:
    texts = TEXTS if model.tokenizer and "layer" in model.name else ("a b a b b a", "b a a b a")
    stated = 0
    for text in texts:
        trace = model.trace(text)
        for position in range(2, trace.tokens.shape[1]):
            graph = trace.circuit(position, effects=False)
            for reason in graph.reasons:
                stated += 1
                lost = logit(trace, graph) - logit(without(trace, reason), graph)
                assert lost == pytest.approx(reason.effect, abs=1e-3 * abs(graph.total))
                assert abs(lost) > 0.02 * abs(graph.total)
                assert str(reason.edge.end) in map(str, graph.nodes)
            if "because" in graph.sentence:
                assert graph.reasons
    assert stated > 3


def test_the_largest_part_is_named_whatever_it_is() -> None:
    model = construct.virtual_head({"a": "x", "b": "y"})
    graph = model.trace("b b a b b").circuit()
    sides = {reason.side: str(reason.writer) for reason in graph.reasons}
    assert sides == {Side.K: "pos@1", Side.Q: "pos@1"}
    assert "its key has position 4 (cut: +" in graph.sentence
    assert "wrote" not in graph.sentence and "induction" not in graph.sentence


def test_no_single_part_explains() -> None:
    trace = load("two-layer-full-positions").trace("The quick brown fox jumps over the")
    graph = trace.circuit(effects=False)
    assert not graph.reasons
    assert "attention sink); no single part of its key or query explains why." in graph.sentence


def test_a_previous_token_head_does_no_induction() -> None:
    trace = construct.virtual_head({"a": "x", "b": "y"}).trace("a b b a b a b a")
    length = trace.tokens.shape[1]
    kinds = {attention_kind(trace, HeadId(0, 0), at, at - 1) for at in range(2, length)}
    assert kinds == {None}
    trace = construct.induction().trace("a b c d a")
    assert attention_kind(trace, HeadId(1, 0), 5, 2) == "induction"
    assert attention_kind(trace, HeadId(1, 0), 4, 0) == "sink"
    assert float(trace.patterns[1][0, 0, 5, 2]) > 0.99
    assert Site.parse("L1H0@5").head == HeadId(1, 0)
    assert torch.equal(trace.tokens[0, 1], trace.tokens[0, 5])
