"""The compiled programs of the benchmarks compute what they say, through the edges they list."""

from collections.abc import Callable

import pytest
import torch
from benchmarks.compiled import Program
from benchmarks.programs import LENGTH, all_programs

PROGRAMS = {program.name: program for program in all_programs()}
Row = list[int]

# Outputs in plain Python, as the number of the output; None where there is no output.
PLAIN: dict[str, Callable[[Row, int], int | None]] = {
    "count of a": lambda row, at: row[: at + 1].count(1),
    "parity of a": lambda row, at: row[: at + 1].count(1) % 2,
    "largest": lambda row, _: max(row) - 1,
    "modular addition": lambda row, at: (row[at - 1] + row[at] - 2) % 4 if at else None,
    "conditional copy": lambda row, at: (
        (row[at - 1 if row[at] == 1 else at - 2]) - 1 if at >= 2 else None
    ),
    "reversed": lambda row, _: row[0] - 1,
}


def inputs() -> torch.Tensor:
    """Random words after the start token."""
    x = torch.randint(1, 5, (12, 1 + LENGTH), generator=torch.Generator().manual_seed(0))
    x[:, 0] = 0
    return x


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=list(PROGRAMS))
def test_the_model_computes_the_program(program: Program) -> None:
    x = inputs()
    wanted = torch.stack([program.run(row[1:]) for row in x.tolist()])
    found = program.model(x)[:, 1:]
    if wanted.shape[-1] == 1:
        torch.testing.assert_close(found, wanted, atol=1e-9, rtol=0)
        return
    # Two candidates that a head selects together have no single answer.
    best = wanted.topk(2, -1).values
    clear = best[..., 0] - best[..., 1] > 0.1
    assert clear.any()
    assert torch.equal(found.argmax(-1)[clear], wanted.argmax(-1)[clear])


@pytest.mark.parametrize("name", PLAIN)
def test_programs_are_what_their_names_say(name: str) -> None:
    program = PROGRAMS[name]
    for row in inputs()[:, 1:].tolist():
        logits = program.run(row)
        values = list(program.output.values)
        for at in range(LENGTH):
            wanted = PLAIN[name](row, at)
            if wanted is None:
                assert not logits[at].any()
                continue
            found = values[int(logits[at].argmax())]
            assert ("abcd".index(found) if isinstance(found, str) else found) == wanted


def test_edges_follow_from_dimensions() -> None:
    true, unused = PROGRAMS["conditional copy"].edges
    assert set(true) == {
        *("embed→L0H0.v", "embed→L0H1.v", "embed→mlp0"),
        *("L0H0→mlp0", "L0H1→mlp0", "mlp0→logits"),
    }
    assert set(unused) == {"embed→logits", "L0H0→logits", "L0H1→logits"}


def test_constants_are_neither_true_nor_unused() -> None:
    # The query of a counting head reads the dimension that is always 1, and positions.
    true, unused = PROGRAMS["count of a"].edges
    assert set(true) == {"embed→L0H0.k", "L0H0→mlp0", "mlp0→logits"}
    assert not {"embed→L0H0.q", "embed→L0H0.v", "embed→mlp0"} & {*true, *unused}


def test_a_head_that_selects_nothing_writes_nothing() -> None:
    # The first word has no earlier copy.
    logits = PROGRAMS["shifted induction"].model(inputs())[:, 1]
    torch.testing.assert_close(logits, torch.zeros_like(logits), atol=1e-9, rtol=0)
