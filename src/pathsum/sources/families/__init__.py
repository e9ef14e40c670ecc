"""Architectures, relatives in one file: what config.json means, where each tensor is stored.

A family is a table of facts. To add one, copy the nearest file, write down what its config.json
calls each field of `Config` and where each tensor is, and add a tiny random checkpoint to
tests/sources/test_families.py, which compares logits with those of transformers.
"""

import importlib
import pkgutil
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from pathsum.errors import FileError, near_misses
from pathsum.sources.facts import Facts
from pathsum.sources.mapped_store import Layout

# Buffers that follow from the config: causal masks, rotary frequencies.
_BUFFERS = re.compile(
    r"(attn|attention)\.(bias|masked_bias)$|rotary_emb\.(inv_freq|(cos|sin)_cached)$"
)


@dataclass(frozen=True)
class Family:
    """An architecture: its name, what config.json calls it, and how to describe a checkpoint."""

    name: str
    model_types: tuple[str, ...]
    describe: Callable[[Facts], Layout]


@cache
def families() -> tuple[Family, ...]:
    """Every known family: those of every file in this folder."""
    found: list[Family] = []
    for module in pkgutil.iter_modules(__path__, __name__ + "."):
        values = vars(importlib.import_module(module.name)).values()
        found += [value for value in values if isinstance(value, Family)]
    return tuple(sorted(set(found), key=lambda family: family.name))


def find_family(facts: Facts) -> Family:
    """The family of a config.json, or an error that lists those known and the closest."""
    known = {kind: family for family in families() for kind in family.model_types}
    kind = facts.values.get("model_type")
    if isinstance(kind, str) and kind in known:
        return known[kind]
    listed = ", ".join(family.name for family in families())
    if not isinstance(kind, str):
        raise FileError(
            f"{facts.where} has no model_type, so it does not say which architecture this is; "
            f"pathsum knows {listed}"
        )
    raise FileError(
        f"{facts.where} is of the architecture {kind!r}, which pathsum does not know"
        f"{near_misses(kind, known)} (it knows {listed}); convert the tensors to our names with "
        "pathsum.from_tensors"
    )


def is_buffer(name: str) -> bool:
    """Whether a tensor of a checkpoint is a constant that follows from its config."""
    return _BUFFERS.search(name) is not None
