"""`attention`: patterns of a run as a record."""

import pytest
import torch

import pathsum as ps
from pathsum.base.errors import HeadError, InputError


def test_means_add_up_to_one() -> None:
    found = ps.attention(ps.load("two-layer").trace("Mr. and Mrs. Tiller"))
    for head in found.summary:
        total = head.current + head.previous + head.first + head.others
        assert total == pytest.approx(1.0, abs=1e-5)
    previous = next(each for each in found.summary if each.head == "L0H3")
    assert previous.previous > 0.95


def test_the_printed_map_is_shaded_where_attention_is() -> None:
    model = ps.construct.induction()
    found = ps.attention(model.trace("a b c a"), "L1H0")
    lines = str(found).splitlines()
    # The last token attends to b, at position 2 after the start token.
    strongest = int(found.patterns[0, -1].argmax())
    row = next(line for line in lines if line.split()[:2] == ["a", "4"])
    cells = row[row.index("4") + 2 :]
    assert cells[2 * strongest : 2 * strongest + 2] == "██"
    assert "attends to" in str(found)


def test_one_head_several_heads_all_heads() -> None:
    trace = ps.load("two-layer").trace("a b")
    assert ps.attention(trace, (1, 0)).heads == ("L1H0",)
    assert ps.attention(trace, ["L1H0", (0, 2)]).heads == ("L1H0", "L0H2")
    assert len(ps.attention(trace).heads) == 8
    torch.testing.assert_close(ps.attention(trace, "L0H2").patterns[0], trace.pattern("L0H2")[0])


def test_errors() -> None:
    model = ps.load("two-layer")
    with pytest.raises(HeadError, match="L9H0"):
        ps.attention(model.trace("a"), "L9H0")
    with pytest.raises(InputError, match="this run has 2; trace one of them"):
        ps.attention(model.trace([[1, 2], [3, 4]]))
    with pytest.raises(InputError, match="zero-layer has no heads"):
        ps.attention(ps.load("zero-layer").trace("a"))
