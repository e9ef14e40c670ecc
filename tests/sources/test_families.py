"""Every family: the logits of transformers from its checkpoint; a row of docs/families.md."""

import json
from pathlib import Path

import pytest
import torch
from tests.sources import tiny
from tests.sources.family_table import ANALYSES, PAGE, TOKENS, measure

import pathsum as ps
from pathsum.sources.hugging_face import _start_token, open_hugging_face

FLOAT32, FLOAT64 = 1e-4, 1e-10


@pytest.mark.parametrize("case", tiny.CASES)
def test_logits_are_those_of_transformers(case: str, tmp_path: Path) -> None:
    theirs = tiny.write(case, tmp_path)
    model = open_hugging_face(tmp_path)
    torch.testing.assert_close(model(TOKENS), theirs(TOKENS), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("case", ["qwen3", "llama", "mistral", "gemma3", "gemma2"])
@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_rope_scaling_next_to_rope_parameters(case: str, kind: str, tmp_path: Path) -> None:
    tiny.write(case, tmp_path)
    plain, file = open_hugging_face(tmp_path)(TOKENS), tmp_path / "config.json"
    values = json.loads(file.read_text())
    scaling = {"rope_type": kind, "factor": 2.0, "original_max_position_embeddings": 16}
    file.write_text(json.dumps({**values, "rope_scaling": scaling}))
    import transformers

    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, attn_implementation="eager"
    )
    with torch.no_grad():
        expected = theirs(TOKENS).logits
    found = open_hugging_face(tmp_path)(TOKENS)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert (found - plain).abs().max() > 1e-3


def rows() -> dict[str, list[str]]:
    """The table of docs/families.md."""
    lines = PAGE.read_text(encoding="utf-8").split("| checkpoint |")[1].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: row[1:] for row in cells}


def test_every_family_is_in_the_table_and_every_cell_is_rounding() -> None:
    table = rows()
    assert list(table) == list(tiny.CASES)
    for case, cells in table.items():
        assert len(cells) == 1 + len(ANALYSES), case
        assert float(cells[0]) < FLOAT32, case
        assert all(float(cell) < FLOAT64 for cell in cells[1:]), (case, cells)


@pytest.mark.parametrize("case", ["gemma2", "llama"])
def test_the_table_is_what_a_run_measures(case: str, tmp_path: Path) -> None:
    found = measure(case, tmp_path)
    assert float(found.pop("logits")) < FLOAT32
    assert {name for name, value in found.items() if not float(value) < FLOAT64} == set()


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in tiny.CASES if case not in ("gemma2", "llama")])
def test_so_are_all_others(case: str, tmp_path: Path) -> None:
    test_the_table_is_what_a_run_measures(case, tmp_path)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"add_bos_token": True, "bos_token": "b"}, 2),
        ({"add_bos_token": True, "bos_token": {"content": "c"}}, 3),
        ({"add_bos_token": True}, None),
        ({"add_bos_token": False, "bos_token": "b"}, None),
    ],
)
def test_a_checkpoint_says_what_comes_before_a_text(
    settings: dict[str, object], expected: int | None, tmp_path: Path
) -> None:
    tokenizer = ps.construct.induction().tokenizer
    assert tokenizer is not None and tokenizer.encode("b c") == [2, 3]
    file = tmp_path / "tokenizer_config.json"
    file.write_text(json.dumps(settings))
    assert _start_token(tokenizer, file) == expected
