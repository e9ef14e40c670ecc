"""Models in memory: transformers' own, and checkpoints in TransformerLens's layout."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.sources import tiny

import pathsum as ps
from pathsum.base.errors import ConfigError, FileError, InputError
from pathsum.text import Tokenizer

TOKENS = torch.randint(0, 61, (2, 9), generator=torch.Generator().manual_seed(3))


class TestFromHf:
    @pytest.mark.parametrize("case", tiny.CASES)
    def test_logits_are_the_models_own(self, case: str) -> None:
        theirs = tiny.make(case)
        model = ps.from_hf(theirs)
        with torch.no_grad():
            expected = theirs(TOKENS).logits
        torch.testing.assert_close(model(TOKENS), expected, atol=1e-4, rtol=1e-4)

    def test_memory_is_shared(self) -> None:
        theirs = tiny.make("llama")
        model = ps.from_hf(theirs)
        ours = model.weights.layers[0].W_Q
        assert ours.data_ptr() == theirs.model.layers[0].self_attn.q_proj.weight.data_ptr()

    @pytest.mark.parametrize("case", ["llama", "gemma2", "granite", "qwen3-yarn", "bloom"])
    def test_half_precision_is_upcast(self, case: str) -> None:
        """Before anything is computed, as for weights that are multiplied or folded."""
        theirs = tiny.make(case).to(torch.bfloat16)
        model = ps.from_hf(theirs)
        assert model(TOKENS).dtype == torch.float32
        rounded = tiny.make(case)
        with torch.no_grad():
            for parameter in rounded.parameters():
                parameter.copy_(parameter.bfloat16())
            expected = rounded(TOKENS).logits
        torch.testing.assert_close(model(TOKENS), expected, atol=1e-4, rtol=1e-4)

    def test_a_tokenizer_of_the_tokenizers_library(self) -> None:
        words = Tokenizer.of_words([f"w{i}" for i in range(61)])
        model = ps.from_hf(tiny.make("llama"), words.backend, name="mine")
        assert model.name == "mine"
        assert model.trace("w3 w60").tokens.tolist() == [[3, 60]]

    @pytest.mark.parametrize(("given", "expected"), [(5, 5), (None, None), (99, None)])
    def test_the_start_token_of_a_model_without_a_tokenizer(
        self, given: int | None, expected: int | None, tmp_path: Path
    ) -> None:
        theirs = tiny.make("llama")
        theirs.config.bos_token_id = given
        assert ps.from_hf(theirs).config.start_token == expected
        theirs.generation_config.bos_token_id = given
        theirs.save_pretrained(tmp_path)
        assert ps.load(tmp_path).config.start_token == expected

    def test_something_else(self) -> None:
        with pytest.raises(InputError, match="takes a transformers model, not a Linear"):
            ps.from_hf(torch.nn.Linear(2, 2))
        with pytest.raises(InputError, match="HookedTransformer.*not a Linear"):
            ps.from_transformer_lens(torch.nn.Linear(2, 2))


def old_checkpoint(folder: Path, **changes: Any) -> ps.Model:
    """A folder as attention-only models were published in 2022, and the same model from memory."""
    config = ps.Config(2, 4, 24, 6, 61, 16, positions="qk", norm="layer")
    model = ps.random_model(config, seed=2, biases=True)
    state = {}
    for name, tensor in model.weights.items():
        layer, _, bare = name.rpartition(".")
        if layer:
            state[f"{layer.replace('layers', 'blocks')}.attn.{bare}"] = tensor
    for layer in range(2):
        state[f"blocks.{layer}.attn.mask"] = torch.ones(16, 16).tril().bool()
        state[f"blocks.{layer}.attn.IGNORE"] = torch.tensor(-1e5)
    state["embed.W_E"] = model.weights.W_E
    state["pos_embed.W_pos"] = model.weights.W_pos
    state["unembed.W_U"], state["unembed.b_U"] = model.weights.W_U, model.weights.b_U
    folder.mkdir(exist_ok=True)
    torch.save(state, folder / "model_final.pth")
    cfg = {
        "n_layers": 2,
        "n_heads": 4,
        "d_model": 24,
        "d_head": 6,
        "d_vocab": 61,
        "n_ctx": 16,
        "attn_only": True,
        "act_fn": "SoLU",
        "normalization": "LNPre",
        "shortformer_pos": True,
        **changes,
    }
    (folder / "config.json").write_text(json.dumps(cfg))
    return model


class TestOldCheckpoints:
    def test_positions_are_in_the_reads_of_queries_and_keys(self, tmp_path: Path) -> None:
        expected = old_checkpoint(tmp_path)
        model = ps.load(tmp_path)
        assert model.config.positions == "qk"
        assert model.config.norm == "layer"
        assert torch.equal(model(TOKENS), expected(TOKENS))

    def test_outputs_that_are_not_tokens(self, tmp_path: Path) -> None:
        old_checkpoint(tmp_path, d_vocab_out=7)
        state = torch.load(tmp_path / "model_final.pth")
        state |= {"unembed.W_U": torch.randn(24, 7), "unembed.b_U": torch.randn(7)}
        torch.save(state, tmp_path / "model_final.pth")
        model = ps.load(tmp_path)
        assert model.config.d_vocab_out == 7
        assert model(TOKENS).shape == (2, 9, 7)
        old_checkpoint(tmp_path, d_vocab_out=-1)  # TransformerLens's "one per token"
        assert ps.load(tmp_path).config.d_vocab_out == 61

    def test_the_final_checkpoint_is_taken(self, tmp_path: Path) -> None:
        old_checkpoint(tmp_path)
        torch.save({}, tmp_path / "model_step_100.pth")
        assert ps.load(tmp_path).config.n_layers == 2

    def test_a_choice_of_checkpoints(self, tmp_path: Path) -> None:
        old_checkpoint(tmp_path)
        (tmp_path / "model_final.pth").rename(tmp_path / "step_2.pth")
        torch.save({}, tmp_path / "step_1.pth")
        with pytest.raises(FileError, match="several state dicts .*step_1.pth, step_2.pth"):
            ps.load(tmp_path)

    def test_what_is_not_computed(self, tmp_path: Path) -> None:
        old_checkpoint(tmp_path, attn_only=False)
        with pytest.raises(ConfigError, match="act_fn='SoLU'.*does not compute"):
            ps.load(tmp_path)
        old_checkpoint(tmp_path, final_rms=True)
        with pytest.raises(ConfigError, match="final_rms=True"):
            ps.load(tmp_path)
