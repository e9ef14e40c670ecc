"""QK and OV between tokens: queries by token, offsets, and what is refused."""

from typing import Any

import numpy as np
import pytest
import torch

from pathsum.base import schema
from pathsum.base.errors import HeadError, InputError, TokenError
from pathsum.circuits import effect, head_card, token_attention, token_card, token_ov, token_qk
from pathsum.circuits.token_basis import find_token
from pathsum.model import Config, Model, Path, construct, random_model
from pathsum.text import Tokenizer

TRIPLES = [("keep", "in", "mind"), ("keep", "at", "bay"), ("open", "the", "door")]


@pytest.fixture
def model() -> Model:
    return construct.skip_trigrams(TRIPLES)


def test_what_attends_and_what_is_raised(model: Model):
    looks = token_attention(model, "L0H0", "keep", k=3)
    assert looks.attended_by[0].token.text == "in"
    assert token_attention(model, "L0H1", "at", k=3).attends_to[0].token.text == "keep"
    does = effect(model, "L0H0", "keep", k=2)
    assert does.raises[0].token.text == "mind"
    assert does.raises[0].value > 0 > does.lowers[0].value
    assert does.own < 0


def test_rows_are_centered(model: Model):
    assert float(token_qk(model, "L0H0").dense().sum(1).abs().max()) < 1e-3
    assert float(token_ov(model, "L0H0").dense().sum(1).abs().max()) < 1e-4


def test_values_are_entries_of_the_dense_circuits():
    model = random_model(Config(2, 2, 16, 8, 30, 12, norm="layer"), seed=4, biases=True, gains=True)
    dense = token_qk(model, "L0H1").dense()
    looks = token_attention(model, "L0H1", 7, k=30)
    for scored in looks.attends_to:
        assert scored.value == pytest.approx(float(dense[7, scored.token.id]), abs=1e-5)
    for scored in looks.attended_by:
        assert scored.value == pytest.approx(float(dense[scored.token.id, 7]), abs=1e-5)
    row = token_ov(model, "L1H0").dense()[7]
    does = effect(model, "L1H0", 7, k=30)
    assert [s.token.id for s in does.raises] == row.argsort(descending=True).tolist()
    assert [s.token.id for s in does.lowers] == row.argsort().tolist()
    assert does.note == "direct path, scale omitted"


def test_rotary_circuits_depend_on_the_offset():
    model = random_model(Config(1, 1, 16, 8, 20, 12, positions="rotary"), seed=1)
    near, far = (
        token_attention(model, "L0H0", 3, offset=0),
        token_attention(model, "L0H0", 3, offset=9),
    )
    assert near.attends_to != far.attends_to
    assert far.note == "rotary: at offset 9"
    assert token_attention(model, "L0H0", 3).note == "rotary: averaged over offsets 0 to 11"
    with pytest.raises(InputError, match="offset=12 is out of range"):
        token_attention(model, "L0H0", 3, offset=12)


def test_a_virtual_head_has_the_same_views():
    model = construct.virtual_head(words="abcdefgh", n_ctx=12)
    path = Path("embed", ["L0H0", "L1H0"])
    assert effect(model, path, "a").raises[0].token.text == "b"
    card = token_card(model, path, "a")
    assert card.attention is None
    assert card.head == "L0H0→L1H0"
    assert head_card(model, path).profile is None
    with pytest.raises(InputError, match="has no QK circuit; name one head"):
        token_card(model, path, "a", offset=1)


def test_bad_input_raises(model: Model):
    with pytest.raises(TokenError, match="'kepe' is not a word .* did you mean 'keep'"):
        effect(model, "L0H0", "kepe")
    with pytest.raises(HeadError, match="L0H1 is the nearest"):
        token_attention(model, "L0H7", "keep")
    with pytest.raises(InputError, match="k=0 tokens were requested"):
        token_attention(model, "L0H0", "keep", k=0)
    with pytest.raises(InputError, match="the same at every offset"):
        token_attention(model, "L0H0", "keep", offset=1)
    two = random_model(Config(2, 1, 8, 4, 10, 8))
    with pytest.raises(InputError, match="L0H0 cannot read its key through L1H0"):
        token_qk(two, "L0H0", key_through=Path("embed", ["L1H0"]))
    with pytest.raises(TokenError, match="has no tokenizer"):
        effect(two, "L0H0", "word")


def test_a_token_is_found_by_text_by_its_visible_form_and_by_number(model: Model):
    assert find_token(model, "keep") == find_token(model, 1) == find_token(model, "1") == 1
    numpy_id: Any = np.int64(1)
    assert find_token(model, numpy_id) == 1
    assert find_token(random_model(Config(1, 1, 8, 4, 10, 8)), "7") == 7
    with pytest.raises(TokenError):
        find_token(model, "99")
    for digits in ("9" * 5000, "²"):  # which Python does not convert
        with pytest.raises(TokenError):
            find_token(model, digits)
        with pytest.raises(TokenError):
            find_token(random_model(Config(1, 1, 8, 4, 10, 8)), digits)


def test_the_error_for_several_tokens_lists_its_pieces():
    from dataclasses import replace

    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers

    pieces = {"Ġ": 0, "k": 1, "e": 2, "p": 3, "ke": 4, "ep": 5, "keep": 6, "Ġkeep": 7}
    merges = [("k", "e"), ("e", "p"), ("ke", "ep"), ("Ġ", "keep")]
    backend = Backend(models.BPE(pieces, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    model = replace(random_model(Config(1, 1, 8, 4, 8, 8)), tokenizer=Tokenizer(backend))
    assert find_token(model, "·keep") == find_token(model, " keep") == 7
    with pytest.raises(TokenError, match=r"'kek' is 2 tokens in this tokenizer \('ke' \+ 'k'\)"):
        find_token(model, "kek")


def test_records_have_schemas_and_fit_a_terminal(model: Model):
    card = token_card(model, "L0H0", "keep")
    whole = head_card(construct.induction("abcdefgh", n_ctx=12), "L0H0")
    for record in (card, whole, card.effect, card.attention):
        assert record is not None
        assert schema(type(record))["title"]
        record.dumps()
        assert all(len(line) <= 80 for line in record.to_table().to_text(80).splitlines())
    assert whole.profile is not None
    assert whole.profile.peak == 1
    assert torch.is_tensor(whole.profile.score)
