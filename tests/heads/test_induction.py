import dataclasses
import json
import math

import pytest
import torch
from tests.heads.test_atlas import own_format

import pathsum as ps
from pathsum.base import schema
from pathsum.base.errors import HeadError, InputError
from pathsum.cli.main import main
from pathsum.heads import in_context_learning
from pathsum.heads.induction import Induction
from pathsum.heads.mechanism import MOST_BY_COMPOSITION, MOST_BY_PATTERN, candidate_partners
from pathsum.model import HeadId, Weights
from pathsum.model.store import MemoryStore

CONFIG = ps.Config(n_layers=2, n_heads=3, d_model=24, d_head=8, d_vocab=40, n_ctx=20)


def test_k_composition_is_named_and_verified() -> None:
    found = ps.induction(ps.construct.induction(n_ctx=40))
    (head,) = found.heads
    assert (str(head.head), head.mechanism, str(head.partner)) == ("L1H0", "K-composition", "L0H0")
    assert head.edges[0].share_lost > 0.8
    assert head.edges[0].p <= 1e-4  # hand-built heads prefer axes
    assert all(edge.share_lost < 0.01 for edge in head.edges[1:])
    assert head.ov_positivity > 0.99 and head.qk_positivity > 0.99
    assert head.k_share > 0.9 and abs(head.q_share) < 0.05
    assert head.recovered.value > 0.99 and head.partner_recovered.value > 0.99
    assert head.cost.value > 3
    assert found.second_copy.value < 0.01 < found.first_copy.value
    assert "p only tests whether" in head.to_table().note


def test_q_composition_is_recognized() -> None:
    (head,) = ps.induction(ps.construct.induction_by_q(n_ctx=40)).heads
    assert (head.mechanism, str(head.partner)) == ("Q-composition", "L0H0")
    assert (head.edges[0].side, head.edges[0].share_lost > 0.8) == ("q", True)
    assert head.q_share > 0.9
    assert head.qk_positivity is None  # a pointer carries no token to match


def test_one_layer_cannot_and_the_result_says_why() -> None:
    found = ps.induction(ps.random_model(CONFIG.replace(n_layers=1)))
    assert found.heads == ()
    assert "in a one-layer model, keys encode the token at a position" in found.why_none
    assert "no layers" in ps.induction(ps.random_model(CONFIG.replace(n_layers=0))).why_none


def test_random_models_have_none() -> None:
    found = ps.induction(ps.random_model(CONFIG), sequences=4)
    assert found.heads == ()
    assert "no head's stripe reaches 0.3" in found.why_none


@pytest.mark.parametrize("matrix", ["W_O", "W_V"])
def test_a_head_that_writes_nothing_is_not_an_induction_head(matrix: str) -> None:
    """It attends like one, but with a zero OV it moves no token."""
    built = ps.construct.induction(n_ctx=40)
    tensors = {name: tensor.clone() for name, tensor in built.weights.items()}
    tensors[f"layers.1.{matrix}"][0] = 0.0
    silent = dataclasses.replace(built, weights=Weights(built.config, MemoryStore(tensors)))
    found = ps.induction(silent, sequences=3)
    assert found.heads == () and found.best_stripe > 0.9
    why = f"L1H0 has a stripe of 1.00 but writes nothing: its {matrix} is zero"
    assert why in found.why_none and why in found.to_table().note
    assert found.rejected == {"L1H0": why.removeprefix("L1H0 ")}
    with pytest.raises(HeadError, match=f"L1H0 is not an induction head of .*its {matrix} is zero"):
        _ = found["L1H0"]
    with pytest.raises(HeadError, match=r"L0H0 is not an induction head of .*has a stripe of 0\.0"):
        _ = found["L0H0"]
    assert ps.atlas(silent, sequences=3)["L1H0"].kind != "induction"


def test_a_head_is_found_by_its_name() -> None:
    found = ps.induction(ps.construct.induction(n_ctx=40), sequences=3)
    assert found["L1H0"] is found[1, 0] is found.heads[0]
    with pytest.raises(HeadError, match="L7H0"):
        _ = found["L7H0"]


def test_half_precision_is_computed_in_float32() -> None:
    half = ps.construct.induction(n_ctx=40).to(torch.float16)
    wide = half.to(torch.float32)
    assert ps.induction(half, sequences=3).to_dict() == ps.induction(wide, sequences=3).to_dict()


def test_induction_on_ones_own_format() -> None:
    model = ps.construct.induction()
    found = ps.induction(model, text=own_format())
    assert list(found) == ["L1H0"] and "30 sequences of the given text (19 tokens)" in found.note
    head = found["L1H0"]
    assert (head.mechanism, head.partner) == ("K-composition", "L0H0")
    assert head.stripe.value == pytest.approx(1, abs=0.01)
    assert head.stripe.p is not None and head.stripe.p < 0.01
    # The known answer of this model: ln 27 nats without the head, and nothing with it.
    assert head.cost.value == pytest.approx(math.log(27), abs=0.01)
    assert head.recovered is not None and head.recovered.value == pytest.approx(1, abs=0.01)
    assert head.k_share == pytest.approx(1, abs=0.1)
    assert found.second_copy.value < 0.01 < found.first_copy.value


def test_a_head_that_ignores_repeats_is_not_found_on_text() -> None:
    found = ps.induction(ps.random_model(CONFIG), text=own_format()[:, :19])
    assert not found.heads and "No induction" in found.why_none


def test_text_that_induction_cannot_be_seen_in() -> None:
    model = ps.construct.induction()
    with pytest.raises(InputError, match="no token of the text occurs twice before its end"):
        ps.induction(model, text=[[0, 1, 2, 3], [0, 4, 5, 4]])
    with pytest.raises(InputError, match="have 3 to 4 tokens; give sequences of one length"):
        ps.induction(model, text=[[0, 1, 1], [0, 4, 4, 5]])
    short = ps.random_model(CONFIG.replace(n_ctx=3))
    with pytest.raises(InputError, match="repeats of at least 2 tokens do not fit.*give text="):
        ps.induction(short)


def test_the_record_has_a_schema() -> None:
    found = ps.induction(ps.random_model(CONFIG), sequences=4)
    assert set(schema(Induction)["properties"]) == set(found.to_dict())


def test_in_context_learning_is_late_minus_early() -> None:
    model = ps.random_model(CONFIG, dtype=torch.float64)
    tokens = torch.randint(40, (6, 20), generator=torch.Generator().manual_seed(1))
    found = in_context_learning(model, tokens, early=3, late=15)
    logp = model(tokens).log_softmax(-1)
    early = -logp[torch.arange(6), 2, tokens[:, 3]]
    late = -logp[torch.arange(6), 14, tokens[:, 15]]
    assert found.value == pytest.approx(float((late - early).mean()))
    with pytest.raises(InputError, match="have no token 500"):
        in_context_learning(model, tokens, late=500)
    with pytest.raises(InputError, match="0 < early < late"):
        in_context_learning(model, tokens, early=5, late=5)
    with pytest.raises(InputError, match="a sequence of 2 tokens has no early and late token"):
        in_context_learning(model, tokens[:, :2])


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["induction", "hand-built-induction", "--sequences", "3", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["heads"][0]["mechanism"] == "K-composition"
    assert main(["induction", "hand-built-skip-trigrams", "--sequences", "3"]) == 0
    assert "No induction" in capsys.readouterr().out


def test_in_a_large_model_the_edges_with_the_best_evidence_are_cut() -> None:
    model = ps.random_model(CONFIG.replace(n_layers=3, n_heads=12, d_head=4), seed=1)
    composed, reader = ps.composition(model), HeadId(2, 5)
    draw = torch.Generator().manual_seed(0)
    patterns = torch.rand(36, generator=draw).tolist()
    previous = dict(zip((head.id for head in model.heads), patterns, strict=True))
    column = composed.heads.index(reader)
    expected: set[HeadId] = set()
    for side in (composed.k, composed.q):
        best = side.z[:24, column].topk(MOST_BY_COMPOSITION).indices
        expected |= {HeadId(at // 12, at % 12) for at in best.tolist()}
    best = torch.tensor(patterns[:24]).topk(MOST_BY_PATTERN).indices
    expected |= {HeadId(at // 12, at % 12) for at in best.tolist()}
    assert len(expected) < 24
    assert candidate_partners(reader, composed, previous) == sorted(expected)
    # One layer below has few enough to try all of them.
    assert candidate_partners(HeadId(1, 0), composed, previous) == list(previous)[:12]
