"""The guide's tables of false positives and of AUCs, by the scripts that make them."""

import dataclasses
import importlib
import importlib.util
import inspect
import math
import pkgutil
import re
import sys
from collections import defaultdict
from pathlib import Path
from types import ModuleType

import pytest
import torch

import pathsum

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


def fields_of_p() -> set[str]:
    """Every field of a dataclass of the library that is a p, as Class.field."""
    found: set[str] = set()
    for info in pkgutil.walk_packages(pathsum.__path__, "pathsum."):
        if info.name.endswith("__main__"):
            continue
        for value in vars(importlib.import_module(info.name)).values():
            if isinstance(value, type) and dataclasses.is_dataclass(value):
                own = inspect.get_annotations(value)
                names = (name for name in own if re.fullmatch(r"p|p_\w+|\w+_p", name))
                found |= {f"{value.__name__}.{name}" for name in names}
    return found


def test_every_p_of_the_library_is_a_row_of_the_guide(script: ModuleType) -> None:
    assert fields_of_p() == {*script.PRINTED}
    rows = {name for names in script.PRINTED.values() for name in names}
    assert rows == {rate.p_of for rate in script.read_kept()}


def test_the_script_gives_every_p_that_it_lists(script: ModuleType) -> None:
    """On a random model, but for those that need a tokenizer."""
    make = script.KINDS["Gaussian heads"][0]
    found = {name for group in script.GROUPS.values() for name in group(make(0), make(1), 5)}
    rows = {name for names in script.PRINTED.values() for name in names}
    assert found == rows - {"word_piece", "word_piece_weights"}


def test_the_table_of_the_guide_is_that_of_the_rates(script: ModuleType) -> None:
    kept = script.read_kept()
    page = (ROOT / "docs" / "calibration.md").read_text(encoding="utf-8")
    assert script.table(kept) in page
    assert {rate.kind for rate in kept} == set(script.KINDS)


def test_no_rate_of_the_guide_is_above_its_level(script: ModuleType) -> None:
    """By each cell's own number of heads, and pooled over kinds."""
    kept = script.read_kept()
    assert [rate for rate in kept if any(rate.exceeds(level) for level in script.LEVELS)] == []
    for name in {rate.p_of for rate in kept}:
        pooled = script.pooled([rate for rate in kept if rate.p_of == name])
        assert not any(pooled.exceeds(level) for level in script.LEVELS), pooled


def test_a_rate_exceeds_its_level_by_its_own_count(script: ModuleType) -> None:
    few = script.Rate("heads", "rotary", "copying", 1, 20, {0.05: 0.2, 0.01: 0.1})
    assert not few.exceeds(0.05) and not few.exceeds(0.01)
    assert dataclasses.replace(few, heads=640).exceeds(0.05)
    exact = dataclasses.replace(few, heads=640, at={0.05: 0.05, 0.01: 0.01})
    assert not exact.exceeds(0.05) and not exact.exceeds(0.01)


def test_a_run_that_was_stopped_goes_on(script: ModuleType, tmp_path: Path) -> None:
    rate = script.Rate("heads", "rotary", "copying", 1, 20, {0.05: 0.25, 0.01: 0.0})
    script.keep([rate], tmp_path / "kept.json")
    assert script.read_kept(tmp_path / "kept.json") == [rate]
    page = tmp_path / "page.md"
    page.write_text("before\n\n| p-value of | p ≤ 0.05 |\n|---|\n| old | 1 |\n\nafter\n")
    script.write_page([rate], page)
    text = page.read_text()
    assert "| copying | 25.0 | 0.0 | 25.0, rotary |\n\nafter" in text and "old" not in text


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
    for group in script.GROUPS:
        for kind in script.KINDS:
            for rate in script.rates(group, kind, 2 if "rotated" in kind else 8):
                pooled[rate.p_of].append((rate.heads, rate.at))
                # Heads of a model share draws and embeddings: errors are larger than binomial ones.
                assert not any(rate.exceeds(level, 1e-7) for level in script.LEVELS), rate
    for name, cells in pooled.items():
        heads = sum(count for count, _ in cells)
        for level in script.LEVELS:
            rate = sum(count * at[level] for count, at in cells) / heads
            assert rate < level + 5 * math.sqrt(level * (1 - level) / heads), (name, level, rate)
