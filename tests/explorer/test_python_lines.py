"""The lines of Python that views offer reproduce what the views show.

`web/src/lib/page/python.test.ts` writes the lines to copied_python.json.
"""

import contextlib
import functools
import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from pathsum.explorer.explorer import Explorer
from pathsum.explorer.params import ModelParams

LINES: dict[str, list[str]] = json.loads(
    (Path(__file__).parent / "copied_python.json").read_text(encoding="utf-8")
)
TEXT = "c a b d a b"


@functools.cache
def run_lines(view: str) -> tuple[Any, str]:
    """The result of a view's lines, and what they print."""
    space: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec("\n".join(LINES[view]), space)
    return space["shown"], printed.getvalue()


def shown(view: str) -> Any:
    """The result of a view's lines."""
    return run_lines(view)[0]


@pytest.fixture(scope="module")
def explorer() -> Explorer:
    return Explorer(["hand-built-induction"], bundled=())


@pytest.mark.parametrize("view", LINES)
def test_they_run(view: str) -> None:
    found, printed = run_lines(view)
    assert found is not None and printed


def test_text_shows_the_mean_pattern(explorer: Explorer) -> None:
    answer: Any = explorer.answer("attention", {"text": TEXT, "precision": "full"})
    assert torch.allclose(shown("text"), answer.dense.mean(0), atol=1e-6)
    effects: Any = explorer.answer(
        "attention", {"text": TEXT, "weighting": "effect", "head": "L1H0", "precision": "full"}
    )
    assert torch.equal(shown("text, effects").dense, effects.dense)


def test_text_shows_the_head_that_is_pointed_at(explorer: Explorer) -> None:
    answer: Any = explorer.answer("attention", {"text": TEXT, "head": "L1H0", "precision": "full"})
    assert torch.allclose(shown("text, a head that is pointed at"), answer.dense[0], atol=1e-6)


def test_why_shows_predictions_before_and_after(explorer: Explorer) -> None:
    off = "L0H0,L0H1@2→L1H0@5.k"
    answer: Any = explorer.answer("without", {"text": TEXT, "position": 5, "off": off})
    model = explorer.session.model(ModelParams())
    expected = {
        model.token_text(token): pytest.approx((float(before), float(after)), abs=1e-6)
        for token, before, after in zip(
            answer.top_ids, answer.top_before, answer.top_after, strict=True
        )
    }
    assert shown("why, with a head and an edge off") == expected


@pytest.mark.parametrize(
    ("view", "question", "more"),
    [
        ("why", "why", {"position": 5}),
        ("why, the last token", "why", {"position": 6}),
        ("why, a token against another", "why", {"position": 5, "token": 3, "versus": 4}),
    ],
)
def test_why_shows_the_same_circuit(
    explorer: Explorer, view: str, question: str, more: dict[str, Any]
) -> None:
    answer: Any = explorer.answer(question, {"text": TEXT, **more})
    found = shown(view)
    assert found.total == pytest.approx(answer.total, abs=1e-5)
    assert [str(edge.edge) for edge in found.edges] == [str(edge.edge) for edge in answer.edges]


def test_paths_show_the_same_sum(explorer: Explorer) -> None:
    answer: Any = explorer.answer("paths", {"text": TEXT, "position": 5, "versus": "none"})
    assert shown("paths").total == pytest.approx(answer.toward.total, abs=1e-5)


def test_the_lens_shows_the_same_parts(explorer: Explorer) -> None:
    answer: Any = explorer.answer("lens_parts", {"text": TEXT, "layer": 1, "position": 5})
    found = shown("lens, a cell")
    assert found.direct == pytest.approx(answer.direct, abs=1e-5)
    assert found.held == pytest.approx(answer.held, abs=1e-5)
    assert shown("lens").predictions[5] == found.token


def test_a_cell_shows_the_same_score(explorer: Explorer) -> None:
    pattern: Any = explorer.answer("attention", {"text": TEXT, "head": "L1H0", "precision": "full"})
    assert shown("text, a cell").attention == pytest.approx(float(pattern.dense[0, 5, 3]), abs=1e-6)


def test_the_head_page_shows_the_same_circuits(explorer: Explorer) -> None:
    answer: Any = explorer.answer("head", {"head": "L1H0"})
    assert shown("head").to_dict() == answer.to_dict()


def test_compare_shows_the_same_alignment(explorer: Explorer) -> None:
    answer: Any = explorer.answer("compare", {"other": "hand-built-induction"})
    assert torch.allclose(shown("compare").similarity, answer.similarity, atol=1e-6)
