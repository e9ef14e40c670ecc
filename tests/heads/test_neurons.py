"""Neurons: scores against dense products and simulated rotations, contexts, cost, messages."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import pathsum as ps
from pathsum.base import Source
from pathsum.base.errors import InputError, PathsumError
from pathsum.circuits.neurons import LayerNeurons
from pathsum.circuits.virtual_weights import virtual_weights, write_end
from pathsum.model import Model
from pathsum.model.losses import run_losses
from pathsum.model.store import MemoryStore
from pathsum.model.weights import Weights

CONFIG = ps.Config(
    n_layers=2,
    n_heads=2,
    d_model=16,
    d_head=4,
    d_vocab=23,
    n_ctx=12,
    norm="rms",
    mlp="silu_gated",
    d_mlp=10,
)


def make(seed: int = 0, **changes: object) -> Model:
    config = CONFIG.replace(**changes)
    return ps.random_model(config, seed, dtype=torch.float64, gains=True, biases=True)


def text(model: Model, rows: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randint(model.config.d_vocab, (rows, 12), generator=generator)


@pytest.mark.parametrize("changes", [{}, {"mlp": "gelu", "norm": "layer"}, {"block": "parallel"}])
def test_scores_are_those_of_dense_products(changes: dict[str, object]) -> None:
    model = make(**changes)
    found = ps.neuron(model, "mlp1.n4", text(model), k=50)
    raw = model.weights.layers[1]
    assert raw.ln2_w is not None and raw.W_in is not None and raw.W_out is not None
    read = raw.ln2_w * raw.W_in[:, 4]
    if model.config.norm == "layer":
        read = read - read.mean()
    side = found.inputs[-1]
    assert {one.component for one in side.edges} == {
        *("embed", "L0H0", "L0H1", "mlp0"),
        *(() if model.config.block == "parallel" else ("L1H0", "L1H1")),
    }
    for edge in side.edges:
        if edge.component in ("embed", "mlp0"):
            rows = model.weights.W_E
            if edge.component == "mlp0":
                assert model.weights.layers[0].W_out is not None
                rows = model.weights.layers[0].W_out
        else:
            head = model.head(edge.component)
            rows = head.ov.dense()
        if model.config.norm == "layer":
            rows = rows - rows.mean(-1, keepdim=True)
        dense = (rows @ read).norm() / rows.norm() / read.norm()
        assert edge.score == pytest.approx(float(dense), rel=1e-8)
    top = side.raised[0]
    assert top.value == pytest.approx(float(model.weights.W_E[top.token.id] @ read), rel=1e-8)
    assert float((model.weights.W_E @ read).max()) == pytest.approx(top.value, rel=1e-8)
    written = model.weights.layers[1].W_out
    assert written is not None and model.weights.ln_f_w is not None
    W_U = model.weights.ln_f_w[:, None] * model.weights.W_U
    logits = written[4] @ (W_U - W_U.mean(0) if model.config.norm == "layer" else W_U)
    if model.config.norm == "layer":
        logits = (written[4] - written[4].mean()) @ W_U
    lowest = found.output.lowered[0]
    assert lowest.value == pytest.approx(float((logits - logits.mean()).min()), rel=1e-8)


def test_readers_agree_with_virtual_weights() -> None:
    model = make()
    found = ps.neuron(model, "mlp0.n3", text(model), k=50)
    assert len(found.output.edges) == found.output.tested == 2 * 3 + 1 + 1
    for edge in found.output.edges:
        same = virtual_weights(model, "mlp0.n3", edge.component)
        assert (edge.score, edge.z, edge.p) == pytest.approx((same.score, same.z, same.p), rel=1e-6)


def test_the_null_is_that_of_random_rotations() -> None:
    """Mean and spread of score², and of a token's dot product, over rotations of the read."""
    model = make()
    layer = LayerNeurons(model, Source("mlp", 1))
    vector, d = layer.reads["gate"][2], model.config.d_model
    generator = torch.Generator().manual_seed(1)
    turned = torch.randn(20_000, d, generator=generator, dtype=torch.float64)
    turned = turned / turned.norm(dim=-1, keepdim=True) * vector.norm()
    end = write_end(model, Source("embed"), False)
    scores = layer.scores(end, turned)
    assert scores is not None
    z = scores.z
    assert abs(float(z.mean())) < 0.03 and abs(float(z.std()) - 1) < 0.03
    for level in (0.05, 0.01):
        assert float((scores.p <= level).double().mean()) < 1.3 * level
    row = model.weights.W_E[3]
    unit = row.norm() * vector.norm() / d**0.5
    assert abs(float((turned @ row / unit).std()) - 1) < 0.03
    token = next(one for one in layer.inputs(2, 23)[0].raised if one.value > 0)
    unit = model.weights.W_E[token.token.id].norm() * vector.norm() / d**0.5
    assert token.z == pytest.approx(float(token.value / unit))


def test_summaries_agree_with_pages() -> None:
    model = make()
    found, tokens = ps.neurons(model, "mlp1", text(model)), text(model)
    assert len(found) == 10 and list(found)[4] == "mlp1.n4"
    assert found["mlp1.n4"] is found["n4"] is found["4"]
    assert "n9" in found and "n10" not in found
    act = model.trace(tokens)["mlp1.act"][:, 1:]
    gate = model.trace(tokens)["mlp1.gate"][:, 1:]
    W_out = model.weights.layers[1].W_out
    assert W_out is not None
    for at in (0, 7):
        summary, page = found[f"n{at}"], ps.neuron(model, f"mlp1.n{at}", tokens, k=50)
        written = act[..., at].abs().mean() * W_out[at].norm()
        assert summary.written == pytest.approx(float(written))
        assert (
            summary.open == page.open == pytest.approx(float((gate[..., at] > 0).double().mean()))
        )
        assert summary.opens == page.inputs[0].raised[0].token.text
        assert summary.raises == page.output.raised[0].token.text
        assert summary.cosine == page.cosine
        embed = next(one for one in page.inputs[0].edges if one.component == "embed")
        assert (summary.embed, summary.embed_p) == pytest.approx((embed.score, embed.p))
        assert page.mean == pytest.approx(float(act[..., at].mean()))
    assert found.to_dicts()[7]["neuron"] == "mlp1.n7"
    assert math.isclose(found.to_dicts()[7]["written"], found["n7"].written)  # pyright: ignore[reportArgumentType]
    assert len(found.to_table().rows) == 10
    assert found.to_dict()["mlp"] == "mlp1"


def test_contexts_are_the_strongest_and_their_effects_are_direct() -> None:
    model, at = make(), 5
    tokens = text(model)
    page, trace = ps.neuron(model, f"mlp0.n{at}", tokens, k=4), model.trace(tokens)
    act = trace["mlp0.act"][..., at]
    best = page.contexts[0]
    assert abs(best.activation) == pytest.approx(float(act[:, 1:].abs().max()))
    assert float(act[best.sequence, best.position]) == pytest.approx(best.activation)
    sizes = [abs(one.activation) for one in page.contexts]
    assert sizes == sorted(sizes, reverse=True)
    written, follows = trace[f"mlp0.n{at}"], next(one for one in page.contexts if one.next)
    place = (follows.sequence, follows.position)
    assert model.weights.ln_f_w is not None
    logits = (written[place] * trace.scales.final[place] * model.weights.ln_f_w) @ model.weights.W_U
    expected = (logits - logits.mean())[tokens[follows.sequence, follows.position + 1]]
    assert follows.effect == pytest.approx(float(expected))
    # The same two tokens again are one context.
    again = ps.neuron(model, f"mlp0.n{at}", torch.cat([tokens, tokens]), k=4)
    assert [one.times for one in again.contexts] == [2 * one.times for one in page.contexts]


def test_cost_is_that_of_the_edited_model() -> None:
    model = make()
    tokens = text(model)
    page = ps.neuron(model, "mlp1.n2", tokens)
    edited = model.edited({"mlp1.n2": "mean"}, text=tokens)
    assert page.cost is not None
    assert page.cost.value == pytest.approx(
        float((run_losses(edited, tokens) - run_losses(model, tokens)).mean())
    )
    zero = ps.ablate(model, ["mlp1.n2", "mlp0"], tokens)
    both = model.edited({"mlp1.n2": "zero", "mlp0": "zero"})
    assert zero.loss_without.value == pytest.approx(float(run_losses(both, tokens).mean()))


def test_edited_models() -> None:
    model, tokens = ps.random_model(CONFIG), [[1, 2, 3, 4]]
    edited = model.edited({"L0H0": "zero"})
    assert len(ps.neurons(edited, "mlp0", tokens)) == 10
    with pytest.raises(PathsumError, match="L0H0→mlp0 was edited"):
        ps.neurons(model.edited({"L0H0→mlp0": "zero"}), "mlp0", tokens)


def test_a_permutation_of_neurons_changes_names_alone() -> None:
    model, order = make(), torch.tensor([3, 1, 4, 0, 5, 9, 2, 6, 8, 7])
    flat = dict(model.weights.items())
    for name in flat:
        if name.endswith((".W_in", ".W_gate", ".b_in", ".b_gate")):
            flat[name] = flat[name][..., order].contiguous()
        elif name.endswith(".W_out"):
            flat[name] = flat[name][order].contiguous()
    moved = replace(model, weights=Weights(model.config, MemoryStore(flat)))
    tokens = text(model)
    for before, after in ((4, 2), (0, 3)):
        one, other = (
            ps.neuron(each, f"mlp1.n{at}", tokens) for each, at in ((model, before), (moved, after))
        )
        assert one.inputs[0].raised == pytest.approx(other.inputs[0].raised)
        assert [e.p for e in one.output.edges] == pytest.approx([e.p for e in other.output.edges])
        assert one.contexts[0].activation == pytest.approx(other.contexts[0].activation)


def test_the_memory_model_reads_its_head_and_writes_one_token() -> None:
    page = ps.neuron(ps.construct.memory(), "mlp0.n0", "a b c d")
    assert page.inputs[0].edges[0].component == "L0H0"
    assert page.inputs[0].edges[0].p <= 1e-6 < 0.5 < page.inputs[0].edges[1].p
    assert [one.token.text for one in page.output.raised] == ["b"]
    assert page.contexts[0].tokens[-2:] == ("a", "b")  # the head moves the previous token


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: ps.neurons(m, "mlp2"), "there is no mlp2: this model has layers 0 to 1"),
        (lambda m: ps.neuron(m, "mlp1.n10"), "mlp1 has 10 neurons, n0 to n9"),
        (lambda m: ps.neuron(m, "mlp1"), "mlp1 is an MLP; use neurons"),
        (lambda m: ps.neurons(m, "mlp1.n3"), "mlp1.n3 is one neuron; use neuron"),
        (lambda m: ps.neurons(m, "L0H0"), "'L0H0' does not name neurons"),
        (lambda m: ps.neurons(m, "mlp1@3"), "'mlp1@3' does not name neurons"),
        (lambda m: ps.neurons(m, "mlp1.act"), "'mlp1.act' does not name neurons"),
        (lambda m: ps.neuron(m, "mlp1.n0", k=0), "0 rows"),
        (lambda m: ps.neurons(m, "mlp1", [[1, 2, 3]])["n10"], "has neurons n0 to n9"),
        (lambda m: ps.neurons(m, "mlp1", [[1, 2, 3]])["L0H0"], "does not name a neuron of mlp1"),
        (lambda m: ps.neurons(m, "mlp1", [[1]]), "a sequence of one token"),
        (lambda m: ps.ablate(m, "mlp1", [[1, 2]], reference="first_token"), "does not attend"),
        (lambda m: ps.ablate(m, "mlp1@2", [[1, 2]]), "cannot be ablated"),
    ],
)
def test_bad_input_is_explained(call: object, message: str) -> None:
    assert callable(call)
    with pytest.raises(PathsumError, match=message):
        call(make())


def test_a_model_without_mlps_has_no_page() -> None:
    with pytest.raises(InputError, match="there is no mlp0: this model has no MLPs"):
        ps.neurons(ps.construct.induction(), "mlp0")
