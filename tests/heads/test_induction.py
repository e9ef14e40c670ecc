import json

import pytest
import torch

import pathsum as ps
from pathsum.cli.main import main
from pathsum.errors import InputError
from pathsum.heads import in_context_learning
from pathsum.heads.induction_record import Induction
from pathsum.result import schema

CONFIG = ps.Config(n_layers=2, n_heads=3, d_model=24, d_head=8, d_vocab=40, n_ctx=20)


def test_k_composition_is_named_and_verified() -> None:
    found = ps.induction(ps.construct.induction(n_ctx=40))
    (head,) = found.heads
    assert (str(head.head), head.mechanism, str(head.partner)) == ("L1H0", "K-composition", "L0H0")
    assert head.edges[0].share_lost > 0.8
    assert head.edges[0].p < 1e-6
    assert all(edge.share_lost < 0.01 for edge in head.edges[1:])
    assert head.ov_positivity > 0.99 and head.qk_positivity > 0.99
    assert head.k_share > 0.9 and abs(head.q_share) < 0.05
    assert head.recovered.value > 0.99 and head.partner_recovered.value > 0.99
    assert head.cost.value > 3
    assert found.second_copy.value < 0.01 < found.first_copy.value


def test_q_composition_is_told_apart() -> None:
    (head,) = ps.induction(ps.construct.induction_by_q(n_ctx=40)).heads
    assert (head.mechanism, str(head.partner)) == ("Q-composition", "L0H0")
    assert (head.edges[0].side, head.edges[0].share_lost > 0.8) == ("q", True)
    assert head.q_share > 0.9
    assert head.qk_positivity is None  # a pointer carries no token to match


def test_one_layer_cannot_and_is_told_why() -> None:
    found = ps.induction(ps.random_model(CONFIG.replace(n_layers=1)))
    assert found.heads == ()
    assert "one layer of heads matches a token with what stands at a position" in found.why_none
    assert "no layers" in ps.induction(ps.random_model(CONFIG.replace(n_layers=0))).why_none


def test_random_models_have_none() -> None:
    found = ps.induction(ps.random_model(CONFIG), draws=4)
    assert found.heads == ()
    assert "no head's stripe reaches 0.3" in found.why_none


def test_the_record_has_a_schema() -> None:
    found = ps.induction(ps.random_model(CONFIG), draws=4)
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
        in_context_learning(model, tokens)
    with pytest.raises(InputError, match="0 < early < late"):
        in_context_learning(model, tokens, early=5, late=5)


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["induction", "hand-built-induction", "--draws", "3", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["heads"][0]["mechanism"] == "K-composition"
    assert main(["induction", "hand-built-skip-trigrams", "--draws", "3"]) == 0
    assert "No induction" in capsys.readouterr().out
