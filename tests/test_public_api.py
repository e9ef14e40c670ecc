"""The public API: the documented names exist, and no others."""

import ast
import inspect
import re
from pathlib import Path

import pytest

import pathsum as ps

SOURCE = Path(ps.__file__)


def test_every_name_is_there() -> None:
    for name in ps.__all__:
        assert getattr(ps, name) is not None
    assert dir(ps) == sorted(ps.__all__)


def test_every_name_stands_in_the_map() -> None:
    words = set((inspect.getdoc(ps) or "").split())
    assert set(ps.__all__) - words == {"__version__"}


def test_lazy_names_are_the_ones_that_type_checkers_see() -> None:
    tree = ast.parse(SOURCE.read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.name
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen | {"__version__"} == set(ps.__all__)


def public_functions() -> list[str]:
    return [name for name in ps.__all__ if inspect.isfunction(getattr(ps, name))]


@pytest.mark.parametrize("name", public_functions())
def test_docstrings_have_all_arguments_a_result_and_an_example(name: str) -> None:
    function = getattr(ps, name)
    text = inspect.getdoc(function) or ""
    arguments = text.partition("\nArgs:\n")[2].partition("\n\n")[0]
    documented = re.findall(r"^    (\w+): ", arguments, re.MULTILINE)
    assert documented == list(inspect.signature(function).parameters)
    assert "\nReturns:\n" in text
    assert "\nExample:\n" in text


def test_functions_stay_functions_after_their_modules_are_imported() -> None:
    assert inspect.isfunction(ps.copying)
    assert inspect.isfunction(ps.virtual_head)


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = ps.nonsense
