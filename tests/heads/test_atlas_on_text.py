"""The atlas on text, by position, and on heads that no kind may be given to."""

import dataclasses
import json

import pytest
import torch

import pathsum as ps
from pathsum.base.errors import InputError
from pathsum.cli.main import main
from pathsum.heads.kinds import UNKNOWN
from pathsum.heads.probe_scores import TEXT_SCORES, similar_pairs
from pathsum.heads.score import PART, best_parts, largest_parts
from pathsum.model import Weights
from pathsum.model.store import MemoryStore

CONFIG = ps.Config(n_layers=2, n_heads=3, d_model=24, d_head=8, d_vocab=40, n_ctx=20)
# As few random heads as p ≤ 0.01 needs, and few sequences: everything here is clear.
QUICK = {"sequences": 2, "draws": 99}
LETTERS = "a b c d e f g a b c d e f g h i j k a b c d e f"


def with_weights(model: ps.Model, **changes: torch.Tensor) -> ps.Model:
    tensors = {name: tensor.clone() for name, tensor in model.weights.items()} | changes
    return dataclasses.replace(model, weights=Weights(model.config, MemoryStore(tensors)))


def test_tokens_a_text_and_held_out_text_are_measured_alike() -> None:
    model = ps.construct.induction(n_ctx=40)
    tokens = model.tokens(LETTERS)
    by_ids, by_text = (
        ps.atlas(model, tokens=tokens, **QUICK),
        ps.atlas(model, tokens=LETTERS, **QUICK),
    )
    own = ps.atlas(dataclasses.replace(model, held_out=tokens), **QUICK)
    for name in ("previous_token_text", "prefix_matching_text", "first_token_text"):
        assert by_ids.score(name) == by_text.score(name) == own.score(name)
    assert by_ids["L0H0"].scores["previous_token_text"].value > 0.99
    assert by_ids["L1H0"].scores["prefix_matching_text"].value > 0.99
    assert "1 sequences of the given tokens" in by_ids.note and "held-out text" in own.note
    silent = ps.atlas(model, **QUICK)
    assert silent.score("previous_token_text") == {}
    assert "no held-out text" in silent.absent["previous_token_text"]


def test_texts_of_different_length() -> None:
    model = ps.construct.induction(n_ctx=40)
    found = ps.atlas(model, tokens=["a b c a b c a b c d e f", "x y z"], **QUICK)
    assert found["L0H0"].scores["previous_token_text"].value > 0.99
    assert found["L0H0"].scores["previous_token_text"].part is None


def test_a_text_that_is_too_short_for_a_score_says_so() -> None:
    model = ps.construct.induction(n_ctx=40)
    found = ps.atlas(model, tokens="a b c", **QUICK)
    assert "has an earlier copy of its token" in found.absent["prefix_matching_text"]
    assert "has more than 5 positions before it" in found.absent["local_window_text"]
    assert "prefix_matching_text" not in found["L1H0"].scores
    with pytest.raises(InputError, match="one token has no next token"):
        ps.atlas(ps.random_model(CONFIG), tokens=torch.tensor([[3]]))


def test_the_probe_and_text_agree_on_what_a_score_is() -> None:
    """Random tokens that are given as text have the same scores as the probe."""
    from pathsum.heads.probe import repeats_probe

    model = ps.random_model(CONFIG.replace(n_ctx=60), seed=1)
    found = ps.atlas(model, tokens=repeats_probe(model, 3).tokens, sequences=3)
    assert all(score.info.name in found["L0H0"].scores for score in TEXT_SCORES)
    for name in ("previous_token", "current_token", "duplicate_token", "prefix_matching"):
        for head, value in found.score(name).items():
            assert found.score(f"{name}_text")[head] == pytest.approx(value, abs=1e-6)


def sharp_early(model: ps.Model, until: int) -> ps.Model:
    """The hand-built induction model, whose previous-token head attends evenly from `until` on."""
    table = model.weights.layers[0].W_pos
    assert table is not None
    faded = table.clone()
    faded[until:] *= 0.0
    return with_weights(model, **{"layers.0.W_pos": faded, "layers.1.W_pos": table})


def test_a_head_that_is_sharp_in_part_of_the_context_is_found() -> None:
    model = sharp_early(ps.construct.induction(n_ctx=64, words="abcdefghijklmnop"), 24)
    found = ps.atlas(model, **QUICK)["L0H0"]
    score = found.scores["previous_token"]
    assert score.value < 0.5 and score.part is not None
    assert score.part.value > 0.9 and score.part.p <= 0.01
    assert (score.part.first, score.part.last) == (1, 23)
    assert "previous token" in found.kinds
    # The atlas shows the mean over the whole context, so the evidence names it too.
    whole = f"({score.value:.2f} over the whole context)"
    assert any("at positions 1–23" in line and whole in line for line in found.evidence)


def test_the_best_part_is_paid_for() -> None:
    """Random heads are searched like real ones, so p is uniform for a head that is one of them."""
    generator = torch.Generator().manual_seed(0)
    profile = torch.rand(400, 80, generator=generator)
    null = largest_parts(torch.rand(99, 400, 80, generator=generator))
    parts = best_parts(profile, largest_parts(profile), null)
    for level in (0.05, 0.2):
        share = sum(part.p <= level for part in parts) / 400
        assert abs(share - level) < 4 * (level * (1 - level) / 400) ** 0.5
    assert largest_parts(profile[:, : 2 * PART - 1]) is None


def test_thresholds_are_arguments() -> None:
    model = sharp_early(ps.construct.induction(n_ctx=64, words="abcdefghijklmnop"), 24)
    strict = ps.atlas(model, thresholds={"previous_token": 2.0}, **QUICK)
    assert "previous token" not in strict["L0H0"].kinds
    info = {info.name: info.threshold for info in strict.infos}
    assert info["previous_token"] == info["previous_token_text"] == 2.0
    assert ps.atlas(model, alpha=0.02).alpha == 0.02
    with pytest.raises(InputError, match="no score 'previous_tokn'.*did you mean"):
        ps.atlas(model, thresholds={"previous_tokn": 0.3})
    with pytest.raises(InputError, match="alpha=2.0 is not a probability"):
        ps.atlas(model, alpha=2.0)
    with pytest.raises(InputError, match=r"p could not fall below 0.005; use at least 999"):
        ps.atlas(model, alpha=0.001)


def test_a_head_that_rests_is_named() -> None:
    """A key that only the start token has, and a query that every token has."""
    config = ps.Config(1, 2, 8, 2, 30, 60, positions="none", start_token=0)
    model = ps.random_model(config, seed=0)
    W_E = model.weights.W_E.clone()
    W_E[:, 0], W_E[0, 0], W_E[:, 1] = 0.0, 1.0, 1.0
    W_Q, W_K = torch.zeros(2, 8, 2), torch.zeros(2, 8, 2)
    W_Q[0, 1, 0], W_K[0, 0, 0] = 20.0, 20.0
    rests = with_weights(model, W_E=W_E, **{"layers.0.W_Q": W_Q, "layers.0.W_K": W_K})
    found = ps.atlas(rests, **QUICK)
    assert found["L0H0"].kind == "first token" and found["L0H1"].kind == UNKNOWN
    assert "by tokens and positions alone" in found["L0H0"].evidence[0]


@pytest.mark.parametrize("part", ["W_O", "W_V"])
def test_a_head_without_output_has_no_kind(part: str) -> None:
    model = ps.construct.induction(n_ctx=40)
    weight = getattr(model.weights.layers[0], part).clone()
    weight[0] = 0.0
    entry = ps.atlas(with_weights(model, **{f"layers.0.{part}": weight}), **QUICK)["L0H0"]
    assert entry.scores["previous_token"].value > 0.99
    assert (entry.kind, entry.kinds) == (UNKNOWN, ())
    assert f"it writes nothing (its {part} is zero)" in entry.evidence[0]


def test_identical_heads_have_no_kind() -> None:
    model = ps.construct.induction(n_ctx=40)
    names = ("W_Q", "W_K", "W_V", "W_O")
    copied = {
        f"layers.0.{name}": getattr(model.weights.layers[0], name)[[0, 0]].clone() for name in names
    }
    found = ps.atlas(with_weights(model, **copied), **QUICK)
    assert found["L0H0"].kind == found["L0H1"].kind == UNKNOWN
    assert "its weights equal those of L0H1" in found["L0H0"].evidence[0]


def test_fuzzy_induction_matches_tokens_with_similar_embeddings() -> None:
    """Pairs of letters get nearly the same embedding: the induction head cannot tell them apart."""
    model = ps.construct.induction(n_ctx=60)
    assert "have embeddings with a cosine" in ps.atlas(model, **QUICK).absent["fuzzy_induction"]
    W_E = model.weights.W_E.clone()
    W_E[2::2] = 0.8 * W_E[1:-1:2] + 0.2 * W_E[2::2]
    alike = with_weights(model, W_E=W_E)
    pairs = similar_pairs(alike)
    assert {tuple(sorted(pair)) for pair in pairs.tolist()} == {(i, i + 1) for i in range(1, 26, 2)}
    found = ps.atlas(alike, **QUICK)
    assert found["L1H0"].scores["fuzzy_induction"].value > 0.5
    assert found["L1H0"].scores["fuzzy_induction"].p <= 0.01
    assert found["L0H0"].scores["fuzzy_induction"].value < 0.1


def test_print_shows_every_score_next_to_its_null() -> None:
    found = ps.atlas(ps.construct.induction(n_ctx=40), tokens=LETTERS, **QUICK)
    shown = str(found)
    for info in found.infos:
        assert info.name in found.absent or info.title in shown
    stripe = found["L1H0"].scores["induction"]
    assert f"{stripe.value:.2f} ({stripe.null:.2f})*" in shown
    rows = found.to_table().to_dicts()
    assert len(rows) == sum(len(entry.scores) for entry in found.heads)
    row = next(r for r in rows if r["head"] == "L1H0" and r["score"] == "induction stripe")
    assert (row["value"], row["low"], row["high"]) == (stripe.value, stripe.low, stripe.high)
    assert (row["null"], row["p"]) == (stripe.null, stripe.p)


def test_the_command_takes_text_tokens_and_thresholds(
    tmp_path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "text.txt"
    file.write_text(LETTERS)
    base = ["atlas", "hand-built-induction", "--sequences", "2", "--json"]
    assert main([*base, "--text", str(file)]) == 0
    by_file = json.loads(capsys.readouterr().out)
    assert main([*base, "--tokens", "1,2,3,1,2,3,1", "--threshold", "previous_token=2"]) == 0
    by_ids = json.loads(capsys.readouterr().out)
    assert by_file["heads"][0]["kind"] == "previous token"
    assert "previous token" not in by_ids["heads"][0]["kinds"]
    assert by_ids["heads"][0]["scores"]["previous_token_text"]["value"] > 0.99
    assert main([*base, "--threshold", "previous_token"]) == 2
    assert "previous_token=0.4" in capsys.readouterr().err
