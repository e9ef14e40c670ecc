"""The guide's tables of false positives and of AUCs, by the scripts that make them."""

import importlib.util
import math
import sys
from collections import defaultdict
from pathlib import Path
from types import ModuleType

import pytest
import torch

ROOT = Path(__file__).parents[1]


def load(name: str) -> ModuleType:
    """A script as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load("calibrate")


def published() -> dict[str, dict[str, tuple[float, float]]]:
    """The guide's table: p of, kind of model, rates at .05 and .01."""
    page = (ROOT / "docs" / "calibration.md").read_text(encoding="utf-8")
    table = page[page.index("| p of | Gaussian heads") :].split("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    kinds = rows[0][1:]
    found: dict[str, dict[str, tuple[float, float]]] = defaultdict(dict)
    for name, *cells in rows[2:]:
        for kind, cell in zip(kinds, cells, strict=True):
            if cell != "–":
                five, one = (float(number) / 100 for number in cell.split(" / "))
                found[name][kind] = (five, one)
    return found


def test_the_guide_has_every_kind_and_every_p(script: ModuleType) -> None:
    found = published()
    kinds = [*script.KINDS]
    assert list(found["previous token"]) == kinds
    model = script.KINDS["Gaussian heads"][0](0)
    names = {name.replace("_", " ") for name in script.p_values(model, 0)}
    # Some need a tokenizer, held-out text or a long context, which the trained model has.
    assert names | {"word piece", "word piece weights"} <= set(found)


def test_no_rate_of_the_guide_is_above_its_level() -> None:
    """Within three binomial errors of .05 and .01; every cell is of at least 190 heads."""
    for name, row in published().items():
        for kind, rates in row.items():
            for level, rate in zip((0.05, 0.01), rates, strict=True):
                error = math.sqrt(level * (1 - level) / 190)
                assert rate <= level + 3 * error, (name, kind, level)


def test_every_score_finds_the_edge_of_the_hand_built_circuit() -> None:
    script = load("composition_auc")
    found = script.measure("hand-built-induction")
    assert (found.edges, found.causal) == (12, 1)
    assert set(found.auc.values()) == {1.0}
    page = (ROOT / "docs" / "composition.md").read_text(encoding="utf-8")
    head = page[page.index("| AUC of |") :].split("\n")[0]
    assert all(f"| {name} (" in head for name in script.MODELS)
    assert all(f"| {score} |" in page for score in found.auc)


def test_an_auc_counts_ties_half_and_needs_both() -> None:
    auc = load("composition_auc").auc
    values = torch.tensor([3.0, 1.0, 1.0, float("nan")])
    assert auc(values, torch.tensor([True, False, True, False])) == (1 + 1 + 0.5 + 1) / 4
    assert auc(values, torch.tensor([False] * 4)) is None


@pytest.mark.slow
def test_the_table_again_on_a_sample(script: ModuleType) -> None:
    """Few models of each kind: pooled over kinds each p keeps its level, and so does each cell."""
    pooled: dict[str, list[tuple[int, dict[float, float]]]] = defaultdict(list)
    for kind in script.KINDS:
        for rate in script.rates(kind, 2 if "rotated" in kind else 8):
            pooled[rate.p_of].append((rate.heads, rate.at))
            # Heads of a model share draws and embeddings, so errors are larger than binomial ones.
            assert not any(rate.exceeds(level, 6.0) for level in script.LEVELS), rate
    for name, cells in pooled.items():
        heads = sum(count for count, _ in cells)
        for level in script.LEVELS:
            rate = sum(count * at[level] for count, at in cells) / heads
            assert rate < level + 5 * math.sqrt(level * (1 - level) / heads), (name, level, rate)
