"""Texts and token ids of every form, and sequences of different length."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import pathsum as ps
from pathsum.base.errors import FailedError, InputError, PathError, TokenError
from pathsum.model.sequences import open_text, split_corpus, token_batches
from pathsum.paths import direct_attribution

CONFIG = ps.Config(n_layers=2, n_heads=3, d_model=24, d_head=8, d_vocab=40, n_ctx=20)
RAGGED = [[1, 2, 3, 4, 5, 6], [7, 8], [9, 10, 11, 12]]


@pytest.fixture(scope="module")
def model() -> ps.Model:
    return ps.random_model(CONFIG, seed=0, dtype=torch.float64)


@pytest.fixture(scope="module")
def letters() -> ps.Model:
    return ps.construct.induction()


def test_a_trace_of_different_lengths_is_the_traces_one_by_one(model: ps.Model) -> None:
    trace = model.trace(RAGGED)
    assert trace.tokens.shape == (3, 6) and trace.lengths.tolist() == [6, 2, 4]
    for row, ids in enumerate(RAGGED):
        alone = model.trace(ids)
        torch.testing.assert_close(trace.logits[row, : len(ids)], alone.logits[0])
    assert trace.paths().remainder() < 1e-12
    assert model.trace(RAGGED[0]).lengths.tolist() == [6]


def test_texts_of_different_length(letters: ps.Model) -> None:
    trace = letters.trace(["a b c a", "d e"])
    assert trace.lengths.tolist() == [5, 3]
    one = letters.trace("d e")
    torch.testing.assert_close(trace.logits[1, :3], one.logits[0])


def test_positions_count_from_each_sequences_own_end(model: ps.Model) -> None:
    why = model.trace(RAGGED).paths().toward(position=-1, token=7)
    each = [model.trace(ids).paths().toward(position=-1, token=7).total for ids in RAGGED]
    assert why.total == pytest.approx(sum(each) / 3)
    with pytest.raises(InputError, match="position 3 is out of range: sequence 1 has 2 tokens"):
        model.trace(RAGGED).paths().toward(position=3, token=7)


def test_losses_leave_padding_out(model: ps.Model) -> None:
    loss = ps.ablate(model, "L1H0", RAGGED)
    assert loss.sequences == 3 and loss.predictions == 5 + 1 + 3
    total = 0.0
    for ids in RAGGED:
        logits = model(torch.tensor(ids))
        total += float(
            torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(ids[1:]), reduction="sum")
        )
    assert loss.loss.value == pytest.approx(total / 9)
    terms = ps.term_importance(model, RAGGED)
    assert terms.loss[-1] == pytest.approx(total / 9)
    importance = ps.virtual_head(model, "L0H0", "L1H0").importance(model.trace(RAGGED))
    assert importance.loss.value == pytest.approx(total / 9)


def test_every_form_of_text_and_tokens(letters: ps.Model) -> None:
    text = "a b " * 8
    ids = letters.encode(text)
    forms = [text, [text], ids, [ids], torch.tensor(ids), torch.tensor([ids]), iter([text])]
    costs = [ps.ablate(letters, "L1H0", form).cost.value for form in forms]
    assert costs == pytest.approx([costs[0]] * len(forms)) and costs[0] > 1
    mixed = [text, torch.tensor(ids), torch.tensor([ids, ids])]
    assert [len(batch) for batch in token_batches(letters, mixed)] == [2, 2]


def test_a_text_longer_than_the_context_is_cut_into_windows(letters: ps.Model) -> None:
    room = letters.config.n_ctx
    batches = token_batches(letters, "a b " * room)
    assert len(batches) == 1 and batches[0].shape[1] == room
    assert bool((batches[0][:, 0] == letters.config.start_token).all())


def test_a_corpus_is_its_held_out_part(tmp_path: Path) -> None:
    model = ps.load("two-layer")
    file = tmp_path / "text.txt"
    file.write_text("the cat sat on the mat, and the dog sat on the log. " * 2000)
    corpus = open_text(model, str(file))
    (batch,) = token_batches(model, corpus)
    assert batch.shape[1] == model.config.n_ctx
    torch.testing.assert_close(batch, split_corpus(model, corpus).held_out[0])


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ([], InputError, "there are no sequences"),
        ("", InputError, "sequence of one token"),
        ([[1, 2], []], TokenError, "is empty"),
        ([[1, 2], [50, 3]], TokenError, "token id 50 is out of range"),
        ([0.5, 1.0], TokenError, "whole numbers"),
        (torch.zeros(2, 3, 4, dtype=torch.long), TokenError, "shape"),
        (3, InputError, "3 is neither text nor token ids"),
    ],
)
def test_what_cannot_be_read(
    letters: ps.Model, given: object, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        token_batches(letters, given, first=0)  # pyright: ignore[reportArgumentType]


def test_ragged_ids_are_not_padded_silently(model: ps.Model) -> None:
    with pytest.raises(TokenError, match="2 to 6 tokens.*model.trace"):
        model.tokens(RAGGED)


def test_patches_between_different_lengths_are_refused(model: ps.Model) -> None:
    trace, other = model.trace(RAGGED), model.trace([[1, 2, 3, 4, 5, 6]] * 3)
    with pytest.raises(InputError, match="different lengths"):
        trace.patch({"L0H0": other})


def test_a_position_is_not_a_read(model: ps.Model) -> None:
    trace = model.trace(RAGGED[0])
    with pytest.raises(PathError, match="3 does not name a read"):
        trace.patch({("L0H2", 3): trace})


def test_a_device_that_is_not_there(model: ps.Model) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    with pytest.raises(FailedError, match="device 'cuda' is not available"):
        model.to(device="cuda")
    with pytest.raises(InputError, match="'gpu' is not a device"):
        model.to(device="gpu")
    assert model.to("cpu").weights.device.type == "cpu"
    assert model.to(torch.float32)(torch.tensor([1, 2])).dtype == torch.float32


def test_summaries_over_cells_leave_padding_out(model: ps.Model) -> None:
    found = model.trace(RAGGED).scores("L1H0").summary().groups[0]
    cells, squares = 0, 0.0
    for ids in RAGGED:
        one = model.trace(ids).scores("L1H0").summary().groups[0]
        cells += len(ids) * (len(ids) + 1) // 2
        squares += one.spread**2 * len(ids) * (len(ids) + 1) / 2
    assert found.spread == pytest.approx((squares / cells) ** 0.5)


def test_attribution_leaves_padding_out(model: ps.Model) -> None:
    found = direct_attribution(model.trace(RAGGED)).total
    for row, ids in enumerate(RAGGED):
        one = direct_attribution(model.trace(ids)).total[0]
        torch.testing.assert_close(found[row, : len(ids)], one, equal_nan=True)
        assert bool(found[row, len(ids) :].isnan().all())


def test_held_out_text_stays_with_a_model(tmp_path: Path) -> None:
    config = ps.Config(n_layers=1, n_heads=2, d_model=8, d_head=4, d_vocab=12, n_ctx=6)
    tokens = torch.arange(12).view(2, 6)
    model = replace(ps.random_model(config), held_out=tokens)
    model.to(torch.float64).save(tmp_path)
    assert torch.equal(ps.load(str(tmp_path)).held_out, tokens)
    assert ps.random_model(config).held_out is None
    with pytest.raises(TokenError, match="token id 12 is out of range"):
        replace(model, held_out=tokens + 1)
