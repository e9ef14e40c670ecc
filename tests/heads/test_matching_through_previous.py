"""The vertical axis of the paper's scatter: matching through a previous-token head."""

import json

import pytest
import torch

import pathsum as ps
from pathsum.base.errors import InputError
from pathsum.circuits.matching import embedding_product, matching_spectra
from pathsum.cli.main import main
from pathsum.explorer import Explorer
from pathsum.heads.circuit_scores import (
    MATCHING_THROUGH_PREVIOUS,
    through_previous,
)
from pathsum.heads.kinds import KINDS
from pathsum.model import HeadId
from pathsum.model.symmetries import scrambled

NAME = MATCHING_THROUGH_PREVIOUS.name
CONFIG = ps.Config(n_layers=2, n_heads=3, d_model=24, d_head=8, d_vocab=40, n_ctx=20)


def test_an_induction_head_sits_in_the_positive_corner() -> None:
    found = ps.atlas(ps.construct.induction(n_ctx=40), sequences=2)
    score = found["L1H0"].scores[NAME]
    assert score.p is not None
    assert score.value > 0.99 and score.p <= 0.01 and score.through == "L0H0"
    assert found["L1H0"].scores["copying_weights"].value > 0.9
    assert NAME not in found["L0H0"].scores and NAME not in found.absent
    idle = found["L1H1"].scores[NAME].p
    assert idle is not None and idle > 0.05
    assert set(found.score(NAME)) == {HeadId(1, 0), HeadId(1, 1)}
    said = next(line for line in found["L1H0"].evidence if line.startswith("matching through"))
    assert "through L0H0" in said and "p < 0.005" in said
    assert "read through L0H0" in found.note


def test_the_bundled_two_layer_models_induction_head_matches() -> None:
    found = ps.atlas(ps.load("two-layer"), sequences=4, draws=99, tokens="def f(self):")
    previous = {str(entry.head) for entry in found.heads if "previous token" in entry.kinds}
    heads = [entry for entry in found.heads if "induction" in entry.kinds]
    assert heads
    for entry in heads:
        assert entry.scores[NAME].value > 0.5 and entry.scores[NAME].through in previous
        # Two K edges have a p at its floor; the evidence names the one with the larger z.
        said = " ".join(entry.evidence)
        assert any(f"K-composition with {head}" in said for head in previous)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"n_layers": 1}, "one layer of heads has no layer below"),
        ({}, "no head is a previous-token head"),
    ],
)
def test_where_there_is_none_it_says_why(changes: dict[str, object], why: str) -> None:
    model = ps.random_model(CONFIG.replace(**changes))
    assert why in through_previous(model, {}).absent
    found = ps.atlas(model, sequences=2)
    assert why in found.absent[NAME] and why in found.note
    assert found.score(NAME) == {} and all(NAME not in entry.scores for entry in found.heads)


def test_only_heads_above_one_have_it_and_each_reads_the_best_below() -> None:
    model = ps.random_model(CONFIG.replace(n_layers=4))
    previous = {HeadId(1, 2): 0.6, HeadId(2, 0): 0.9, HeadId(1, 0): 0.55}
    found = through_previous(model, previous)
    assert {str(head): score.through for head, score in found.scores.items()} == {
        **{f"L2H{head}": "L1H2" for head in range(3)},
        **{f"L3H{head}": "L2H0" for head in range(3)},
    }
    assert "no head is above" in through_previous(model, {HeadId(3, 0): 0.9}).absent


def test_it_names_no_head() -> None:
    """A score on its own gives no kind: random heads that match keep being unknown."""
    for seed in range(6):
        model = ps.random_model(CONFIG, seed=seed)
        found = through_previous(model, {HeadId(0, 0): 0.9}, seed)
        assert len(found.scores) == 3
        for score in found.scores.values():
            assert score.p is not None
            assert -1 <= score.value <= 1 and 0 < score.p <= 1
    assert NAME not in {kind.score for kind in KINDS}


def test_p_is_fair_on_random_models() -> None:
    p = torch.tensor(
        [
            score.p
            for seed in range(25)
            for score in through_previous(
                ps.random_model(CONFIG.replace(n_heads=8, d_head=4), seed=seed), {HeadId(0, 0): 0.9}
            ).scores.values()
        ]
    )
    assert (p <= 0.05).float().mean() < 0.12
    assert 0.4 < p.median() < 0.6


def test_it_does_not_depend_on_the_basis() -> None:
    model = ps.random_model(CONFIG, seed=4, dtype=torch.float64)
    one, other = (
        through_previous(each, {HeadId(0, 1): 0.9}).scores
        for each in (model, scrambled(model, seed=2))
    )
    for head, score in one.items():
        assert other[head].value == pytest.approx(score.value, abs=1e-7)
        assert other[head].p == score.p


def test_heads_that_do_not_read_each_other() -> None:
    model = ps.random_model(CONFIG)
    with pytest.raises(InputError, match="L1H0 cannot read what L1H1 writes.*layer 2 or above"):
        matching_spectra(model, ["L1H0"], "L1H1", embedding_product(model, 1))


def test_pages_show_it_where_it_exists() -> None:
    answer = Explorer(["hand-built-induction"]).answer("atlas").to_dict()["atlas"]
    scores = {head["head"]: head["scores"] for head in answer["heads"]}
    assert scores["L1H0"][NAME]["through"] == "L0H0" and NAME not in answer["absent"]
    answer = Explorer([ps.random_model(CONFIG)]).answer("atlas").to_dict()["atlas"]
    assert NAME in answer["absent"]
    for head in answer["heads"]:
        assert NAME not in head["scores"] and "matching_weights" in head["scores"]


def test_the_command_shows_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["atlas", "hand-built-induction", "--sequences", "2"]) == 0
    assert "Matching is read through L0H0" in " ".join(capsys.readouterr().out.split())
    assert main(["atlas", "hand-built-induction", "--sequences", "2", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["heads"][2]["scores"][NAME]
    assert shown["through"] == "L0H0" and shown["value"] > 0.99
