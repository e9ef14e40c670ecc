"""Models whose outputs are not their tokens: algorithmic tasks."""

import json
import math
from pathlib import Path

import pytest
import torch

import pathsum as ps
from pathsum.base.errors import ConfigError, NotExactError, TokenError, WeightsError
from pathsum.circuits import effect, head_card, source_table, token_ov
from pathsum.cli.main import main
from pathsum.model import Weights
from pathsum.model.store import MemoryStore

CONFIG = ps.Config(
    n_layers=2, n_heads=2, d_model=12, d_head=6, d_vocab=20, n_ctx=16, d_vocab_out=5, start_token=0
)
TOKENS = torch.randint(1, 20, (6, 10), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def model() -> ps.Model:
    return ps.random_model(CONFIG, seed=0, dtype=torch.float64)


def test_shapes_and_defaults(model: ps.Model) -> None:
    assert model.weights.W_U.shape == (12, 5) and model(TOKENS).shape == (6, 10, 5)
    plain = CONFIG.replace(d_vocab_out=0)
    assert plain.d_vocab_out == 20 and plain.replace(d_vocab=30).d_vocab_out == 30
    assert CONFIG.replace(d_vocab=30).d_vocab_out == 5
    with pytest.raises(ConfigError, match="tied=True makes W_U the transpose"):
        CONFIG.replace(tied=True)
    tensors = dict(ps.random_model(plain).weights.items())
    with pytest.raises(WeightsError, match=r"W_U has shape \[12, 20\], but this config needs"):
        Weights(CONFIG, MemoryStore(tensors))


def test_saved_and_loaded(model: ps.Model, tmp_path: Path) -> None:
    model.save(tmp_path)
    assert torch.equal(ps.load(str(tmp_path))(TOKENS), model(TOKENS))


def test_paths_and_circuits_of_an_output(model: ps.Model) -> None:
    trace = model.trace(TOKENS[:1])
    paths = trace.paths()
    assert paths.remainder() < 1e-9
    why = paths.toward(position=-1, token=4, versus="mean")
    logits = trace.logits[0, -1]
    assert why.total == pytest.approx(float(logits[4] - logits.mean()))
    assert why.target_texts == ("<4>",)
    assert trace.circuit(position=-1, token=3, effects=False).nodes
    with pytest.raises(TokenError, match="7 is not an output: the model has 5"):
        paths.toward(position=-1, token=7)


def test_the_direct_path(model: ps.Model) -> None:
    found = ps.bigram(model)
    assert found.certain[0].next.id < 5
    assert len(found.after(3).likely) == 5
    with pytest.raises(NotExactError, match="compares outputs with tokens"):
        ps.bigram(model, TOKENS)


def test_terms_toward_given_targets(model: ps.Model) -> None:
    targets = torch.full_like(TOKENS, -1)
    targets[:, -1] = TOKENS.sum(1) % 5
    found = ps.term_importance(model, TOKENS, targets=targets)
    own = torch.nn.functional.cross_entropy(model(TOKENS)[:, -1], targets[:, -1])
    assert found.loss[-1] == pytest.approx(float(own))
    assert found.uniform == pytest.approx(math.log(5))
    with pytest.raises(NotExactError, match="give targets"):
        ps.term_importance(model, TOKENS)


def test_heads_are_removed_and_replaced_toward_given_targets(model: ps.Model) -> None:
    targets = torch.full_like(TOKENS, -1)
    targets[:, -1] = TOKENS.sum(1) % 5
    terms = ps.term_importance(model, TOKENS, targets=targets)
    for found in (
        ps.ablate(model, "L0H0", TOKENS, targets=targets, from_position=9),
        ps.ablate(model, "L0H0", TOKENS, targets=targets, reference="mean", text=TOKENS[:2]),
        ps.replace(model, "L0H0", TOKENS, pattern="previous", targets=targets),
    ):
        assert found.loss.value == pytest.approx(terms.loss[-1])
        assert found.predictions == 6 and found.unit == "nats"


def test_the_atlas_leaves_out_what_compares_outputs_with_tokens(model: ps.Model) -> None:
    found = ps.atlas(model, tokens=TOKENS, sequences=2, draws=99)
    assert "outputs are not tokens" in found.absent["copying_weights"]
    assert found.score("copying") == {} and len(found.score("previous_token")) == 4
    assert "previous token" in str(found)


def test_what_a_head_does_is_shown_by_output(model: ps.Model) -> None:
    found = effect(model, "L1H0", 17)
    row = token_ov(model, "L1H0").row(17)
    assert [one.token.id for one in found.raises] == row.argsort(descending=True).tolist()
    assert [one.value for one in found.lowers] == pytest.approx(row.sort().values.tolist())
    assert found.own is None and "its own logit" not in found.to_table().to_text()
    assert found.raises[0].token.text == f"<{int(row.argmax())}>"
    card = head_card(model, "L1H0")
    assert card.copying is None and card.clusters is None and card.profile is not None
    assert card.to_table().to_text() == card.profile.to_table().to_text()
    bare = ps.random_model(CONFIG.replace(positions="none"))
    with pytest.raises(NotExactError, match="has 5 outputs and 20 tokens"):
        head_card(bare, "L1H0")


def test_what_makes_no_sense_is_refused(model: ps.Model) -> None:
    for refused in (
        lambda: ps.copying(model),
        lambda: ps.skip_trigrams(model),
        lambda: source_table(model, 3),
        lambda: ps.induction(model),
        lambda: ps.in_context_learning(model, TOKENS),
        lambda: ps.ablate(model, "L0H0", TOKENS),
        lambda: ps.replace(model, "L0H0", TOKENS, pattern="previous"),
    ):
        with pytest.raises(NotExactError, match="has 5 outputs and 20 tokens"):
            refused()


def test_the_command_line(
    model: ps.Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model.save(tmp_path)
    arguments = ["paths", str(tmp_path), "--tokens", "3,5,7", "--token", "4", "--json"]
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["toward"]["target_tokens"] == [4]
    assert main(["head", str(tmp_path), "L0H1"]) == 0
    assert "scores by offset" in capsys.readouterr().out
    assert main(["head", str(tmp_path), "L0H1", "--token", "17"]) == 0
    assert "attending to <17>" in capsys.readouterr().out
