"""What is special about Gemma: YaRN, bidirectional attention, and a part that reads images."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.sources import tiny
from tests.sources.family_table import TOKENS

import pathsum as ps
from pathsum.base.errors import ConfigError

YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "rope_theta": 5_000.0,
    "original_max_position_embeddings": 16,
}


def change(folder: Path, **changes: Any) -> None:
    """Other values in a config.json."""
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize("case", ["gemma", "gemma2", "gemma3"])
def test_yarn_multiplies_the_queries(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In Gemma 3, the queries of layers without a window only."""
    config, model, fields = tiny.CASES[case]
    local = {"rope_type": "default", "rope_theta": 100.0}
    rope = {"sliding_attention": local, "full_attention": YARN} if case == "gemma3" else YARN
    fields = fields | {"rope_parameters": rope, "head_dim": 16, "max_position_embeddings": 64}
    monkeypatch.setitem(tiny.CASES, case, (config, model, fields))
    theirs = tiny.write(case, tmp_path)
    ours = ps.load(tmp_path)
    torch.testing.assert_close(ours(TOKENS), theirs(TOKENS), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("case", ["gemma", "gemma3"])
def test_bidirectional_attention_is_refused(case: str, tmp_path: Path) -> None:
    tiny.write(case, tmp_path)
    change(tmp_path, use_bidirectional_attention=True)
    with pytest.raises(ConfigError, match="use_bidirectional_attention=True.*does not compute"):
        ps.load(tmp_path)


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_the_text_part_of_a_model_that_reads_images(prefix: str, tmp_path: Path) -> None:
    theirs = tiny.write("gemma3", tmp_path)
    text = json.loads((tmp_path / "config.json").read_text())
    text.pop("model_type")
    wrapper = {"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 8}}
    (tmp_path / "config.json").write_text(json.dumps(wrapper))
    tensors = load_file(tmp_path / "model.safetensors")
    renamed = {name.replace("model.", prefix, 1): tensor for name, tensor in tensors.items()}
    renamed["vision_tower.vision_model.post_layernorm.weight"] = torch.ones(8)
    renamed["multi_modal_projector.mm_soft_emb_norm.weight"] = torch.ones(8)
    save_file(renamed, tmp_path / "model.safetensors")
    torch.testing.assert_close(ps.load(tmp_path)(TOKENS), theirs(TOKENS), atol=1e-4, rtol=1e-4)


def test_sizes_that_a_text_config_leaves_out() -> None:
    from pathsum.model.store import MemoryStore
    from pathsum.sources.foreign_config import ForeignConfig
    from pathsum.sources.hugging_face import text_part

    published = {"hidden_size": 2560, "num_hidden_layers": 34, "sliding_window": 1024}
    facts = ForeignConfig({"model_type": "gemma3", "text_config": published}, "config.json")
    text, _ = text_part(facts, MemoryStore({}))
    assert text.values["model_type"] == "gemma3_text"
    assert (text.size("num_attention_heads"), text.size("num_key_value_heads")) == (8, 4)
    assert (text.size("head_dim"), text.number("rope_theta")) == (256, 1e6)
