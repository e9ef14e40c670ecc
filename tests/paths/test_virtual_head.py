import pytest
import torch

import pathsum as ps
from pathsum.base import schema
from pathsum.base.errors import HeadError, InputError, PathError
from pathsum.paths import VirtualHead, VirtualImportance, virtual_head
from pathsum.paths.virtual_head import TopPairs


@pytest.fixture(scope="module")
def pair() -> VirtualHead:
    return virtual_head(ps.construct.virtual_head(), "L0H0", "L1H0")


def test_it_attends_two_back_and_does_what_it_was_built_for(pair: VirtualHead) -> None:
    pattern = pair.pattern(pair.model.trace("a b c d"))[0]
    assert [int(row.argmax()) for row in pattern] == [0, 0, 0, 1, 2]
    assert pair.effect("a").raises[0].token.text == "b"
    assert pair.label == "L0H0→L1H0"
    best = pair.top_tokens(5)
    assert all(f.out.text == chr(ord(f.source.text) + 1) or f.out.text == "a" for f in best.pairs)


def test_eigenvalues_are_those_of_the_dense_circuit(pair: VirtualHead) -> None:
    model = pair.model
    centered = pair.full_ov.dense()
    assert float(centered.mean(-1).abs().max()) < 1e-5
    found = pair.eigenvalues()
    wanted = torch.linalg.eigvals(centered)
    assert float(found.abs().max()) == pytest.approx(float(wanted.abs().max()), rel=1e-3)
    assert complex(found.sum()).real == pytest.approx(float(centered.trace()), abs=1e-2)
    assert pair.ov.shape == (model.config.d_model, model.config.d_model)


def test_it_has_the_views_of_a_head(pair: VirtualHead) -> None:
    assert pair.copying().heads[0].head == "L0H0→L1H0"
    assert pair.full_ov.shape == (27, 27)


def test_its_importance_is_what_its_removal_costs(pair: VirtualHead) -> None:
    # Each word is the next one of the alphabet after the word three before it.
    tokens = torch.tensor([[0, 1, 2, 3, 2, 3, 4, 3, 4, 5], [0, 5, 6, 7, 6, 7, 8, 7, 8, 9]])
    trace = pair.model.trace(tokens)
    found = pair.importance(trace)
    assert found.cost.value == pytest.approx(found.without.value - found.loss.value)
    assert found.cost.value > 0.5
    idle = virtual_head(pair.model, "L0H1", "L1H1").importance(trace)
    assert abs(idle.cost.value) < 1e-3
    assert found.to_table().rows[2][0] == "cost"
    for record in (VirtualImportance, TopPairs):
        assert schema(record)["type"] == "object"


def test_bad_names(pair: VirtualHead) -> None:
    with pytest.raises(PathError, match="name at least one"):
        virtual_head(pair.model)
    with pytest.raises(PathError, match="out of order"):
        virtual_head(pair.model, "L1H0", "L0H0")
    with pytest.raises(HeadError, match="head L0H9 does not exist"):
        virtual_head(pair.model, "L0H9", "L1H0")
    with pytest.raises(InputError, match="a sequence of one token predicts nothing"):
        pair.importance(pair.model.trace([1]))
