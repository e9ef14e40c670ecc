"""A text and a recipe so small that a run takes a second."""

import json
import random
from pathlib import Path
from typing import Any

from pathsum.training import Recipe

WORDS = (
    *("the", "cat", "sat", "on", "mat", "dog", "ran", "to", "red", "house"),
    *("and", "saw", "big", "tree", "near", "old", "blue", "river"),
)


def write_text(file: Path, documents: int = 60, seed: int = 0) -> Path:
    """Documents of random words, a few of which come again and again."""
    draw = random.Random(seed)
    lines = [
        json.dumps({"text": " ".join(draw.choice(WORDS) for _ in range(80)) + "."})
        for _ in range(documents)
    ]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def tiny_values(text: Path | str, **changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "name": "tiny",
        "steps": 30,
        "batch": 4,
        "model": {"n_layers": 2, "n_heads": 2, "d_model": 16, "d_head": 8, "n_ctx": 16},
        "data": {"corpus": str(text), "vocabulary": 280, "held_out": 0.1},
        "schedule": {"warmup": 2},
        "watching": {
            "log_every": 5,
            "probe_every": 10,
            "checkpoint_every": 10,
            "held_out_sequences": 8,
        },
    }
    for dotted, value in changes.items():
        table, _, name = dotted.rpartition("__")
        (values.setdefault(table, {}) if table else values)[name] = value
    return values


def tiny_recipe(text: Path | str, **changes: Any) -> Recipe:
    return Recipe.from_dict(tiny_values(text, **changes))
