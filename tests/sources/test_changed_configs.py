"""Every value of a config.json left out or inverted: transformers' logits, or an error."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests.sources import tiny
from tests.sources.family_table import TOKENS

import pathsum as ps

pytestmark = pytest.mark.slow

# Values of neither program's forward pass, and sizes without which weights do not fit.
UNREAD = {"architectures", "dtype", "transformers_version", "model_type", "vocab_size"}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}
# Where transformers differs from the files that these families were released with.
EXCEPTIONS = {
    ("phi3-longrope", "without original_max_position_embeddings"),
    ("olmo3", "old rotations"),
}


def changed(values: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, value in values.items():
        if name not in UNREAD and not name.endswith("_token_id"):
            yield f"without {name}", {k: v for k, v in values.items() if k != name}
        if isinstance(value, bool):
            yield f"{name}={not value}", {**values, name: not value}
    rope = values.get("rope_parameters")
    for name in rope or ():
        kept = {k: v for k, v in rope.items() if k != name}
        yield f"without rope_parameters.{name}", {**values, "rope_parameters": kept}
    if rope:
        yield "also rope_scaling", {**values, "rope_scaling": YARN}
        plain = {k: v for k, v in values.items() if k != "rope_parameters"}
        yield "old rotations", {**plain, "rope_theta": 300.0}
    yield "partial rotary", {**values, "partial_rotary_factor": 0.5}
    windows = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}
    yield "windows", {**values, **windows}


def theirs(folder: Path) -> torch.Tensor | None:
    """The logits of transformers; None if it refuses the config or draws weights at random."""
    kind = transformers.AutoModelForCausalLM
    kernel = tiny.attention_kernel(json.loads((folder / "config.json").read_text()))
    options = {"attn_implementation": kernel, "output_loading_info": True}
    try:
        model, info = kind.from_pretrained(folder, **options)
        with torch.no_grad():
            logits = model(TOKENS).logits
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError):
        return None
    return None if info["missing_keys"] or info["unexpected_keys"] else logits


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", tiny.CASES)
def test_a_changed_config_gives_the_logits_of_transformers_or_an_error(
    case: str, tmp_path: Path
) -> None:
    tiny.write(case, tmp_path)
    file, compared = tmp_path / "config.json", 0
    for name, values in changed(json.loads(file.read_text())):
        file.write_text(json.dumps(values))
        try:
            found = ps.load(tmp_path)(TOKENS)
        except ps.PathsumError:
            continue
        expected = theirs(tmp_path)
        if expected is not None and (case, name) not in EXCEPTIONS:
            torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-3, msg=name)
            compared += 1
    assert compared > 3
