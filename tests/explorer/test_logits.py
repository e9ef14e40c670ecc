"""Answers about a text take logits at the positions that they are about, never all at once."""

import math
from typing import Any

import pytest
import torch
from tests.explorer.variants import ALL, CAPPED

from pathsum.explorer.answers.interventions import WithoutAnswer
from pathsum.explorer.answers.text import TextRun
from pathsum.explorer.explorer import Explorer
from pathsum.model import Model, trace, transformer

IDS = [1, 5, 7, 9, 1, 5, 7, 3, 2, 8, 1]
TEXT: dict[str, Any] = {"ids": ",".join(map(str, IDS))}
ROWS = 4


@pytest.fixture(params=["rotary, shared keys, MLPs, rms", CAPPED], ids=str)
def model(request: pytest.FixtureRequest) -> Model:
    return ALL[request.param]()


@pytest.fixture
def unembedded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of positions per sequence in each product with the unembedding."""
    found: list[int] = []
    plain = transformer.unembed_uncapped

    def counted(weights: Any, stream: torch.Tensor) -> Any:
        found.append(stream.shape[1])
        return plain(weights, stream)

    monkeypatch.setattr(transformer, "unembed_uncapped", counted)
    monkeypatch.setattr(trace, "LOGITS_AT_ONCE", ROWS * 40)
    return found


def test_a_text_is_unembedded_once_in_parts(model: Model, unembedded: list[int]) -> None:
    explorer = Explorer([model])
    found = explorer.answer("run", TEXT)
    assert unembedded == [4, 4, 3]
    assert isinstance(found, TextRun)
    logits = model(torch.tensor(IDS))
    best = logits.topk(10)
    torch.testing.assert_close(found.top_logits, best.values)
    torch.testing.assert_close(found.top_probs, logits.softmax(-1).gather(-1, found.top_ids))
    loss = torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(IDS[1:]), reduction="none")
    torch.testing.assert_close(found.loss[:-1], loss)
    torch.testing.assert_close(found.next_prob[:-1], (-loss).exp())
    assert math.isnan(float(found.loss[-1]))
    own = logits[:-1].gather(-1, torch.tensor(IDS[1:])[:, None])
    assert found.next_rank.tolist() == [*((logits[:-1] > own).sum(-1) + 1).tolist(), 0]
    assert found.remainder == pytest.approx(model.trace(IDS).paths().remainder(), abs=1e-6)


@pytest.mark.parametrize(
    ("question", "params"),
    [
        ("paths", {}),
        ("why", {}),
        ("paths", {"token": 4}),
        ("texts", {}),
    ],
)
def test_a_prediction_is_unembedded_where_it_is(
    model: Model, unembedded: list[int], question: str, params: dict[str, Any]
) -> None:
    """One row at a time, at the end of the text too, where the model's prediction is asked for."""
    for position in (6, len(IDS) - 1):
        Explorer([model]).answer(question, {**TEXT, "position": position, **params})
    assert set(unembedded) == {1}


@pytest.mark.parametrize("weighting", ["attention", "information", "effect"])
def test_patterns_need_no_logits_but_the_last(
    model: Model, unembedded: list[int], weighting: str
) -> None:
    Explorer([model]).answer("attention", {**TEXT, "weighting": weighting})
    assert sum(unembedded) <= 1


def test_switching_off_unembeds_the_text_once_more(model: Model, unembedded: list[int]) -> None:
    explorer = Explorer([model])
    explorer.answer("run", TEXT)
    unembedded.clear()
    params = {**TEXT, "position": 6, "off": "L0H1,L1H0→logits"}
    found = explorer.answer("without", params)
    assert max(unembedded) <= ROWS
    assert sum(unembedded) - unembedded.count(1) == len(IDS)
    assert isinstance(found, WithoutAnswer)
    cut = model.trace(IDS).patch({"L0H1": "zero", "L1H0→logits": "zero"})
    loss = torch.nn.functional.cross_entropy(
        cut.logits[0, :-1], torch.tensor(IDS[1:]), reduction="none"
    )
    torch.testing.assert_close(found.loss_after[:-1], loss)
    row = cut.logits_at(6)[0]
    assert found.after.probability == pytest.approx(float(row.softmax(-1)[found.token]))
    torch.testing.assert_close(
        found.parts_after.sum(), torch.tensor(found.after.total), atol=1e-4, rtol=1e-4
    )
