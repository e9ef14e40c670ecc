"""Reasons that sentences state, tested by interventions of their own."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from benchmarks.bench_ground_truth import VARIABLE, compiled
from torch import Tensor
from torch.nn.functional import layer_norm

from pathsum.base import HeadId
from pathsum.base.sentence import signed
from pathsum.base.site import Side, Site
from pathsum.model import Config, Model, Trace, Weights, construct, random_model
from pathsum.model.store import MemoryStore
from pathsum.paths.graph import Graph
from pathsum.paths.lead import attention_kind, copying_heads, exceeds_usual
from pathsum.sources import load

TEXTS = (
    "self.quixel = quixel\n        return self.quix",
    "The quick brown fox jumps over the quick",
    "def foo(self, bar):\n    self.bar =",
    "Mr. and Mrs. T",
)


THREE_LAYERS = Config(n_layers=3, n_heads=3, d_model=24, d_head=8, d_vocab=20, n_ctx=32)


def logit(trace: Trace, graph: Graph) -> float:
    row = trace.logits[0, graph.position]
    return float(row[graph.token] - row.mean())


def without(trace: Trace, edge: Site) -> Trace:
    """The run without a part: an edge cut, or positions taken out of the read by a hook."""
    if str(edge.writer)[:3] != "pos":
        return trace.patch({str(edge): "zero"})
    head, dest, at = edge.reader, edge.to, edge.at
    assert isinstance(head, HeadId) and dest is not None and at is not None
    layer, config = trace.weights.layers[head.layer], trace.model.config
    stream, places = trace.streams[head.layer][0], trace.weights.W_pos

    def read(x: Tensor) -> Tensor:
        if config.norm == "none":
            return x
        assert config.norm == "layer"
        return layer_norm(x, x.shape[-1:], layer.ln1_w, layer.ln1_b, config.norm_eps)

    if config.positions == "qk":
        assert layer.W_pos is not None
        whole, lacking = read(stream) + layer.W_pos[: len(stream)], read(stream)
    else:
        assert places is not None
        whole, lacking = read(stream), read(stream - places[: len(stream)])
    W_Q, W_K = layer.W_Q[head.head], layer.W_K[head.head]
    query, key = whole @ W_Q, whole @ W_K
    if edge.side is Side.K:
        key[at] = lacking[at] @ W_K
    else:
        query[dest] = lacking[dest] @ W_Q
    row = (query[dest] @ key[: dest + 1].T * config.score_scale).softmax(-1)

    def changed(pattern: Tensor) -> Tensor:
        pattern = pattern.clone()
        pattern[:, dest, : dest + 1] = row
        return pattern

    return trace.model.trace(trace.tokens, hooks={f"{head}.pattern": changed})


def parts_read(trace: Trace, head: HeadId, source: int, dest: int, side: Side) -> list[Site]:
    """Every part of a head's key at a source, or of its query, that has no bias."""
    config = trace.model.config
    below = [str(one.id) for one in trace.model.heads if one.id.layer < head.layer]
    below += [f"mlp{layer}" for layer in range(head.layer) if config.mlp != "none"]
    places = {"qk": [f"pos@{head.layer}"], "residual": ["pos"]}.get(config.positions, [])
    at = source if side is Side.K else dest
    names = ["embed", *below, *places]
    return [Site.parse(f"{name}@{at}→{head}@{dest}.{side}") for name in names]


def strongest_parts(graph: Graph, head: HeadId, source: int, side: Side) -> list[Site]:
    """The parts that the graph keeps; to cut all parts of a large model takes minutes."""
    edges = [edge.edge for edge in graph.inputs(Site(head, at=graph.position), side)]
    return [edge for edge in edges if side is Side.Q or edge.at == source]


def check_reasons(trace: Trace, graph: Graph) -> int:
    """Cut every part of the key and the query; compare with the stated reasons, and count them."""
    lead = graph.lead
    assert lead is not None and lead.source is not None
    reasons = {str(reason.edge): reason for reason in lead.reasons}
    assert ("because" in graph.sentence) == bool(reasons)
    for side in (Side.K, Side.Q):
        lost: dict[str, float] = {}
        few = len(trace.model.heads) < 20
        every = parts_read(trace, lead.head, lead.source, graph.position, side) if few else []
        for edge in every or strongest_parts(graph, lead.head, lead.source, side):
            cut = without(trace, edge)
            effect = logit(trace, graph) - logit(cut, graph)
            weight = float(cut.pattern(lead.head)[0, graph.position, lead.source])
            reason = reasons.get(str(edge))
            if reason is not None:
                assert effect == pytest.approx(reason.effect, abs=1e-3 * abs(graph.total))
                assert weight == pytest.approx(reason.weight, abs=1e-3)
                assert effect * graph.total > 0.019 * graph.total**2
                assert weight < lead.weight
            if weight < lead.weight - 1e-6:
                lost[str(edge)] = effect if graph.total > 0 else -effect
        # Every part whose cut costs about as much as the costliest is named.
        costliest = max(lost.values(), default=0.0)
        for name, cost in lost.items():
            if cost > max(0.55 * costliest, 0.021 * abs(graph.total)):
                assert name in reasons
    return len(reasons)


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "model",
    [
        load("two-layer"),
        load("two-layer-full-positions"),
        construct.virtual_head({"a": "x", "b": "y"}),
        construct.induction(),
        construct.induction_by_q(),
        random_model(THREE_LAYERS, 1),
        random_model(THREE_LAYERS.replace(positions="residual", mlp="gelu", d_mlp=48), 2),
        random_model(THREE_LAYERS.replace(positions="residual", norm="layer"), 3),
    ],
    ids=lambda model: f"{model.name} {model.config.mlp} {model.config.norm}",
)
def test_every_stated_reason_matters(model: Model, step: int) -> None:
    """At every position, or at every fourth one of each text."""
    texts = TEXTS if model.tokenizer and "layer" in model.name else ("a b a b b a", "b a a b a")
    if model.tokenizer is None:
        texts = torch.randint(20, (3, 1, 9), generator=torch.Generator().manual_seed(0))
    stated = 0
    for start, text in enumerate(texts):
        trace = model.trace(text)
        for position in range(2 + start % step, trace.tokens.shape[1], step):
            graph = trace.circuit(position, effects=False)
            if graph.lead is not None and graph.lead.source is not None and not graph.lead.note:
                stated += check_reasons(trace, graph)
    assert stated > 3 // step


def test_reasons_of_a_logit_below_the_mean_lower_it_further() -> None:
    """The sign of a reason is that of the prediction: here, parts whose cut raises the logit."""
    trace, stated = load("two-layer").trace(TEXTS[0]), 0
    for position in range(4, trace.tokens.shape[1]):
        least = int(trace.logits[0, position].argmin())
        graph = trace.circuit(position, least, effects=False)
        assert graph.total < 0
        if graph.lead is not None and graph.lead.source is not None and not graph.lead.note:
            stated += check_reasons(trace, graph)
    assert stated > 3


@pytest.mark.real
@pytest.mark.parametrize(
    "text",
    [
        "When Mary and John went to the store, John gave a drink to",
        "1, 2, 3, 4, 5, 6, 7,",
        "Professor Quillon arrived. Everyone greeted Professor Quill",
        "The Eiffel Tower is in the city of",
        "def add(a, b):\n    return a +",
    ],
)
def test_reasons_of_a_real_model(text: str) -> None:
    trace = load("smollm2").trace(text)
    graph = trace.circuit(effects=False)
    lead = graph.lead
    assert lead is not None
    if lead.source is not None and not lead.note:
        check_reasons(trace, graph)
    # Counting repeats only commas and spaces: heads rest there, and their output is not needed.
    if text.startswith("1,"):
        assert not lead.copying and lead.kind != "induction"


@pytest.mark.slow
@pytest.mark.skipif(VARIABLE not in os.environ, reason="names the folder of compiled programs")
def test_reasons_of_compiled_programs() -> None:
    stated = 0
    for known in compiled(Path(os.environ[VARIABLE])):
        if known.versus is None:
            continue  # its one output has no mean to be compared with
        for row in known.tokens[:6]:
            trace = known.model.trace(row[None])
            for position in range(1, len(row)):
                graph = trace.circuit(position, versus=known.versus, effects=False)
                if graph.lead is not None and graph.lead.source is not None and not graph.lead.note:
                    stated += check_reasons(trace, graph)
    assert stated > 200


def test_every_writer_that_costs_as_much_is_named() -> None:
    trace = load("two-layer").trace("Mr. and Mrs. Tillerman kept the lighthouse. Mr. Tiller")
    graph = trace.circuit(effects=False)
    keys = {str(reason.writer) for reason in graph.reasons if reason.side is Side.K}
    assert {"L0H1", "L0H3"} <= keys


def test_a_sink_in_the_text_is_no_induction() -> None:
    """A head that attends to one position from everywhere does not because of a repeat."""
    trace = construct.induction().trace("a b c d a")
    there = HeadId(1, 0)
    assert attention_kind(trace, there, 5, 2) == "induction"
    for row in range(2, 6):
        trace.patterns[1][0, 0, row] = 0
        trace.patterns[1][0, 0, row, 2] = 0.5 + 0.05 * row
    assert attention_kind(trace, there, 5, 2) is None
    assert copying_heads(trace, 5, int(trace.tokens[0, 2])) == []


def test_a_head_of_the_first_layer_does_no_induction() -> None:
    """Its keys do not see the token before, however it attends in other rows."""
    model = random_model(THREE_LAYERS, 1)
    generator = torch.Generator().manual_seed(0)
    unusual = 0
    for _ in range(40):
        block = torch.randint(1, 20, (1, 4), generator=generator)
        trace = model.trace(torch.cat((block, block[:, :2]), 1))
        for head in (one.id for one in model.heads if one.id.layer == 0):
            unusual += exceeds_usual(trace, head, 5, 2)
            assert attention_kind(trace, head, 5, 2) is None
    assert unusual > 5


def test_a_repeat_of_a_long_text_is_induction() -> None:
    """Other rows that look as far back, by induction too, do not speak against it."""
    trace = construct.induction().trace("a b c d e a b c d e")
    assert {attention_kind(trace, HeadId(1, 0), at, at - 4) for at in range(6, 10)} == {"induction"}


def test_the_sentence_states_a_low_coverage() -> None:
    graph = load("two-layer").trace("The quick brown fox").circuit(effects=False)
    kept = sum(edge.share for edge in graph.inputs(graph.top))
    assert graph.coverage == pytest.approx(1 - abs(1 - kept / graph.total), rel=1e-4)
    assert graph.coverage > 0.9 and "less than half" not in graph.sentence
    (rest,) = [rest for rest in graph.left_out if rest.node == graph.top]
    half = replace(graph, left_out=(replace(rest, share=-0.6 * graph.total),))
    total = f"{signed(graph.total)} logits"
    assert half.sentence.endswith(f" The graph explains less than half of the {total} (40%).")


def test_the_largest_part_is_named_whatever_it_is() -> None:
    model = construct.virtual_head({"a": "x", "b": "y"})
    graph = model.trace("b b a b b").circuit()
    sides = {reason.side: str(reason.writer) for reason in graph.reasons}
    assert sides == {Side.K: "pos@1", Side.Q: "pos@1"}
    assert "its key encodes position 4 (cut: +" in graph.sentence
    assert "moved" not in graph.sentence and "induction" not in graph.sentence


def test_a_bias_of_the_keys_that_changes_no_logit_is_no_reason() -> None:
    """It adds one number to all scores of a row, though its cut at one source is a large change."""
    plain, draws = construct.induction().to(torch.float64), torch.Generator().manual_seed(3)
    tensors = dict(plain.weights.items())
    for layer in (0, 1):
        shape = tensors[f"layers.{layer}.W_K"].shape[::2]
        bias = 4 * torch.randn(shape, generator=draws, dtype=torch.float64)
        tensors[f"layers.{layer}.b_K"] = bias
    weights = Weights(plain.config, MemoryStore(tensors))
    traces = [model.trace("a b c d a") for model in (plain, replace(plain, weights=weights))]
    torch.testing.assert_close(traces[0].logits, traces[1].logits)
    sentences = [trace.circuit(effects=False).sentence for trace in traces]
    assert sentences[0] == sentences[1] and "bias" not in sentences[1]


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


def test_a_first_token_that_is_looked_up_is_no_sink() -> None:
    """Decided by the attention that any other first token gets, unless it is the start token."""
    kinds: list[tuple[bool, str | None]] = []
    for seed in range(40):
        model = random_model(Config(1, 2, 16, 8, 20, 12), seed=seed)
        tokens = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6])
        others = tokens.repeat(20, 1)
        others[:, 0] = torch.arange(20)
        trace, kept = model.trace(tokens), model.trace(others).patterns[0][:, :, :, 0].mean(0)
        for head in range(2):
            for at in range(4, 8):
                weight, left = float(trace.patterns[0][0, head, at, 0]), float(kept[head, at])
                if weight > 0.6 and not 0.25 * weight < left < 0.75 * weight:
                    kind = attention_kind(trace, HeadId(0, head), at, 0)
                    kinds.append((left > 0.5 * weight, kind))
    assert set(kinds) == {(True, "sink"), (False, None)}


def test_heads_without_which_the_token_is_as_likely_do_not_make_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As L23H7 of SmolLM2, without which " Solomon" is likelier."""
    trace = construct.induction().trace("a b c d a")
    lead = trace.circuit(token="b", effects=False).lead
    assert lead is not None and lead.copying
    monkeypatch.setattr(
        "pathsum.paths.lead.probabilities_without", lambda _, groups, *__: [1.0] * len(groups)
    )
    lead = trace.circuit(token="b", effects=False).lead
    assert lead is not None and not lead.copying
