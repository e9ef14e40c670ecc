import importlib.util
import sys
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.base import Estimate, HeadId, HeadMapping, Record
from pathsum.base.errors import FailedError, HeadError
from pathsum.circuits import copying
from pathsum.heads import atlas, induction
from pathsum.model import construct


@dataclass(frozen=True, eq=False)
class Cost(Record, kind="test-cost"):
    head: HeadId
    cost: Estimate
    scores: dict[str, Estimate]
    vector: Float[Tensor, " d"]


@dataclass(frozen=True, eq=False)
class Costs(Record, HeadMapping[Cost], kind="test-costs"):
    heads: tuple[Cost, ...]


def example() -> Costs:
    return Costs(
        tuple(
            Cost(
                HeadId(1, head),
                Estimate(0.5 + head, stderr=0.1, low=0.3, high=0.7),
                {"stripe": Estimate(0.25, null=0.1, p=0.02)},
                torch.zeros(3),
            )
            for head in range(2)
        )
    )


def test_lookup_by_label_and_by_pair() -> None:
    costs = example()
    assert costs["L1H1"] is costs[(1, 1)] is costs.heads[1]
    assert list(costs) == list(costs.keys()) == ["L1H0", "L1H1"]
    assert len(costs) == 2
    assert dict(costs.items())["L1H0"] is costs.heads[0]
    assert dict(costs) == costs.by_label()
    assert tuple(costs.values()) == costs.heads
    assert "L1H0" in costs
    assert (1, 0) in costs
    assert "L2H0" not in costs
    assert 0 not in costs
    with pytest.raises(HeadError, match="no result for L2H0, only for L1H0, L1H1"):
        costs["L2H0"]


def test_dictionaries_hold_numbers() -> None:
    assert example().to_dicts()[0] == {
        "head": "L1H0",
        "cost": 0.5,
        "cost_stderr": 0.1,
        "stripe": 0.25,
        "stripe_null": 0.1,
        "stripe_p": 0.02,
    }


@pytest.mark.skipif(importlib.util.find_spec("pandas") is not None, reason="pandas is installed")
def test_without_pandas_the_error_says_how() -> None:
    with pytest.raises(FailedError, match=r"pip install pandas.*to_dicts\(\)"):
        example().to_pandas()


def test_with_pandas_there_is_one_row_per_head(monkeypatch: pytest.MonkeyPatch) -> None:
    class Frame:
        def __init__(self, rows: list[dict[str, Any]]) -> None:
            self.rows = rows

        def set_index(self, name: str) -> tuple[str, list[dict[str, Any]]]:
            return name, self.rows

    class Pandas:
        DataFrame = Frame

    monkeypatch.setitem(sys.modules, "pandas", Pandas)
    assert example().to_pandas() == ("head", example().to_dicts())


def test_every_collection_of_heads_is_a_mapping() -> None:
    model = construct.induction()
    for found in (copying(model), atlas(model, sequences=2)):
        assert list(found) == [head.label for head in model.heads]
        assert all(found[label].head == label for label in found)
        assert len(found.to_dicts()) == len(found) == 4
    heads = induction(model, sequences=2)
    assert list(heads) == ["L1H0"]
    assert heads.to_dicts()[0]["mechanism"] == "K-composition"
