"""Checkpoints that are not what they say: a clear error, and nothing half-read is used."""

import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.sources import tiny

import pathsum as ps
from pathsum.base.errors import ConfigError, FileError, PathsumError, TokenError, WeightsError
from pathsum.text import Tokenizer

TOKENS = torch.tensor([[5, 9, 2, 17]])


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    tiny.write("llama", folder)
    return folder


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    return shutil.copytree(written, tmp_path / "copy")


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    tiny.write("llama", tmp_path / "shards", max_shard_size="20KB")
    return tmp_path / "shards"


def edit_config(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    values = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps(values))


def edit_tensors(folder: Path, edit: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    file = folder / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    edit(tensors)
    save_file(tensors, file)


class TestConfig:
    def test_more_experts_than_tensors(self, tmp_path: Path) -> None:
        tiny.write("mixtral", tmp_path)
        edit_config(tmp_path, num_local_experts=60_000)
        with pytest.raises(FileError, match="60000 experts in each of 2 layers; one of the two"):
            ps.load(tmp_path)

    def test_a_shared_expert_that_does_not_fit(self, tmp_path: Path) -> None:
        tiny.write("qwen2_moe", tmp_path)
        edit_config(tmp_path, shared_expert_intermediate_size=15)
        with pytest.raises(ConfigError, match="15, which is not a multiple of .*_size=8"):
            ps.load(tmp_path)
        edit_config(tmp_path, shared_expert_intermediate_size=16)
        gate = "model.layers.1.mlp.shared_expert_gate.weight"
        edit_tensors(tmp_path, lambda tensors: tensors.update({gate: torch.ones(1, 7)}))
        with pytest.raises(WeightsError, match="W_router is made from .*, whose shapes do not fit"):
            ps.load(tmp_path)

    def test_an_unknown_architecture_names_those_known_and_the_closest(self, folder: Path) -> None:
        edit_config(folder, model_type="lama")
        with pytest.raises(
            FileError, match="'lama'.*of Llama, with the same.*set model_type to 'llama'.*GPT-2"
        ):
            ps.load(folder)

    def test_no_architecture_at_all(self, folder: Path) -> None:
        edit_config(folder, model_type=None)
        with pytest.raises(FileError, match="has no model_type.*GPT-2"):
            ps.load(folder)

    def test_a_missing_size(self, folder: Path) -> None:
        edit_config(folder, hidden_size=None)
        with pytest.raises(ConfigError, match="has no hidden_size"):
            ps.load(folder)

    @pytest.mark.parametrize("value", [0, -3, 2.5, "24", True])
    def test_a_size_that_is_none(self, folder: Path, value: object) -> None:
        edit_config(folder, hidden_size=value)
        with pytest.raises(ConfigError, match="hidden_size=.*is not a size"):
            ps.load(folder)

    def test_an_activation_that_is_not_computed(self, folder: Path) -> None:
        edit_config(folder, hidden_act="relu2")
        with pytest.raises(ConfigError, match="hidden_act='relu2'.*does not compute"):
            ps.load(folder)

    def test_more_layers_than_the_tensors_have(self, folder: Path) -> None:
        edit_config(folder, num_hidden_layers=3)
        with pytest.raises(FileError, match=r"has no tensor model\.layers\.2\..*did you mean"):
            ps.load(folder)

    def test_fewer_layers_than_the_tensors_have(self, folder: Path) -> None:
        edit_config(folder, num_hidden_layers=1)
        with pytest.raises(FileError, match="tensors of a layer 1 .*config says that there are 1"):
            ps.load(folder)

    def test_biases_that_the_tensors_do_not_have(self, folder: Path) -> None:
        edit_config(folder, attention_bias=True)
        with pytest.raises(FileError, match=r"has no tensor model.layers.0.self_attn.q_proj.bias"):
            ps.load(folder)

    def test_a_quantized_checkpoint(self, folder: Path) -> None:
        edit_config(folder, quantization_config={"quant_method": "gptq", "bits": 4})
        with pytest.raises(FileError, match="quantized by 'gptq'.*GGUF"):
            ps.load(folder)

    def test_tied_embeddings_that_differ(self, folder: Path) -> None:
        edit_config(folder, tie_word_embeddings=True)
        with pytest.raises(FileError, match="are tied, but lm_head.weight differs"):
            ps.load(folder)

    def test_a_config_that_is_not_json(self, folder: Path) -> None:
        (folder / "config.json").write_text('{"model_type": ')
        with pytest.raises(FileError, match="config.json is not JSON"):
            ps.load(folder)

    def test_values_without_end(self, folder: Path) -> None:
        (folder / "config.json").write_text('{"x":[' + "[]," * 9_000_000 + "[]]}")
        with pytest.raises(FileError, match="more than 8,388,608 lists, names and values"):
            ps.load(folder)

    def test_attention_types_without_end(self, tmp_path: Path) -> None:
        tiny.write("gpt_neo", tmp_path)
        file = tmp_path / "config.json"
        values = json.loads(file.read_text()) | {"attention_layers": None, "num_layers": 10_000}
        values["attention_types"] = [[["global"] * 100_000, 10**9]]
        file.write_text(json.dumps(values))
        with pytest.raises(
            ConfigError, match="attention_types for 100000000000000 layers, but num"
        ):
            ps.load(tmp_path)


class TestTensors:
    def test_a_wrong_shape(self, folder: Path) -> None:
        def narrower(tensors: dict[str, torch.Tensor]) -> None:
            name = "model.layers.1.self_attn.k_proj.weight"
            tensors[name] = tensors[name][:-1].contiguous()

        edit_tensors(folder, narrower)
        message = (
            r"layers.1.self_attn.k_proj.weight .*\[15, 24\].*\[16, 24\] \(d = 24, g = 2, k = 8"
        )
        with pytest.raises(WeightsError, match=message):
            ps.load(folder)

    def test_a_missing_tensor(self, folder: Path) -> None:
        edit_tensors(folder, lambda tensors: tensors.pop("model.norm.weight"))
        with pytest.raises(FileError, match="has no tensor model.norm.weight, from which ln_f_w"):
            ps.load(folder)

    def test_a_tensor_too_many(self, folder: Path) -> None:
        extra = {"model.layers.0.self_attn.q_norm.weight": torch.ones(8)}
        edit_tensors(folder, lambda tensors: tensors.update(extra))
        with pytest.raises(FileError, match="1 tensors that its config gives no use for .*q_norm"):
            ps.load(folder)

    def test_float8(self, folder: Path) -> None:
        def eighth(tensors: dict[str, torch.Tensor]) -> None:
            name = "model.layers.0.mlp.up_proj.weight"
            tensors[name] = tensors[name].to(torch.float8_e4m3fn)

        edit_tensors(folder, eighth)
        with pytest.raises(FileError, match="up_proj.weight.*float8_e4m3fn.*quantized layout"):
            ps.load(folder)

    def test_int4_in_words(self, folder: Path) -> None:
        def packed(tensors: dict[str, torch.Tensor]) -> None:
            name = "model.layers.0.mlp.up_proj.weight"
            del tensors[name]
            tensors[name.replace("weight", "qweight")] = torch.zeros(3, 40, dtype=torch.int32)

        edit_tensors(folder, packed)
        with pytest.raises(FileError, match="has no tensor .*up_proj.weight.*up_proj.qweight"):
            ps.load(folder)

    def test_a_truncated_file(self, folder: Path) -> None:
        file = folder / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-100])
        with pytest.raises(FileError, match="not a complete safetensors file.*truncated"):
            ps.load(folder)

    def test_numbers_that_are_not_finite(self, folder: Path) -> None:
        edit_tensors(folder, lambda tensors: tensors["model.norm.weight"].fill_(torch.nan))
        model = ps.load(folder)
        with pytest.raises(WeightsError, match="ln_f_w holds 24 numbers that are NaN or infinite"):
            model(TOKENS)

    def test_no_weights(self, folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        with pytest.raises(FileError, match="contains no weights"):
            ps.load(folder)


class TestShards:
    def test_give_the_same_model_as_one_file(self, folder: Path, sharded: Path) -> None:
        assert len(list(sharded.glob("model-*.safetensors"))) > 2
        assert torch.equal(ps.load(sharded)(TOKENS), ps.load(folder)(TOKENS))

    def test_a_missing_shard(self, sharded: Path) -> None:
        gone = sorted(sharded.glob("model-*.safetensors"))[1]
        gone.unlink()
        with pytest.raises(FileError, match=f"lacks 1 of .* shards.*{gone.name}"):
            ps.load(sharded)

    def test_a_doubled_tensor(self, sharded: Path) -> None:
        first, second = sorted(sharded.glob("model-*.safetensors"))[:2]
        tensors = {**load_file(first), **load_file(second)}
        save_file({name: tensor.clone() for name, tensor in tensors.items()}, second)
        with pytest.raises(FileError, match="is in two shards"):
            ps.load(sharded)

    def test_a_shard_of_another_checkpoint(self, sharded: Path) -> None:
        first, second = sorted(sharded.glob("model-*.safetensors"))[:2]
        shutil.copy(first, second)
        with pytest.raises(FileError, match="different checkpoints"):
            ps.load(sharded)

    def test_shards_without_their_index(self, sharded: Path) -> None:
        (sharded / "model.safetensors.index.json").unlink()
        with pytest.raises(FileError, match="without model.safetensors.index.json"):
            ps.load(sharded)

    def test_an_index_that_leaves_the_folder(self, sharded: Path) -> None:
        file = sharded / "model.safetensors.index.json"
        found = json.loads(file.read_text())
        found["weight_map"]["lm_head.weight"] = "../other.safetensors"
        file.write_text(json.dumps(found))
        with pytest.raises(FileError, match="'../other.safetensors'"):
            ps.load(sharded)


class TestShardsNextToAWholeFile:
    """Saving again with another shard size leaves the files of the earlier save in the folder."""

    @pytest.fixture
    def both(self, folder: Path, sharded: Path) -> Path:
        shutil.copy(folder / "model.safetensors", sharded)
        return sharded

    @staticmethod
    def retrained(folder: Path) -> None:
        edit_tensors(folder, lambda tensors: tensors["model.norm.weight"][3:4].mul_(1.001))

    def test_are_read_if_both_are_the_same(self, both: Path, folder: Path) -> None:
        calls: list[tuple[int, int]] = []
        model = ps.load(both, progress=lambda done, total, what: calls.append((done, total)))
        assert torch.equal(model(TOKENS), ps.load(folder)(TOKENS))
        assert calls[0][0] == 0 and calls[-1][0] == calls[-1][1]

    def test_are_refused_if_they_differ(self, both: Path) -> None:
        self.retrained(both)
        message = "two different checkpoints: model.norm.weight of model.safetensors and of model-0"
        with pytest.raises(FileError, match=message):
            ps.load(both)

    @pytest.mark.parametrize("file", ["model.safetensors", "model-00001-of-00003.safetensors"])
    def test_are_refused_if_one_has_a_tensor_more(self, both: Path, file: str) -> None:
        tensors = {**load_file(both / file), "model.extra": torch.ones(2)}
        save_file(tensors, both / file)
        with pytest.raises(FileError, match="two different checkpoints: model.extra of"):
            ps.load(both)

    def test_are_compared_where_some_are_missing(self, both: Path, folder: Path) -> None:
        for shard in sorted(both.glob("model-*.safetensors"))[:2]:
            shard.unlink()
        assert torch.equal(ps.load(both)(TOKENS), ps.load(folder)(TOKENS))
        self.retrained(both)
        with pytest.raises(FileError, match="two different checkpoints: model.norm.weight"):
            ps.load(both)

    def test_an_index_alone_is_left_over(self, both: Path) -> None:
        for shard in both.glob("model-*.safetensors"):
            shard.unlink()
        self.retrained(both)
        assert ps.load(both).config.n_layers == 2

    def test_pickles_likewise(self, both: Path, folder: Path) -> None:
        expected = ps.load(folder)(TOKENS)
        for file in both.glob("*.safetensors"):
            torch.save(load_file(file), both / f"pytorch_{file.stem}.bin")
            file.unlink()
        index = both / "model.safetensors.index.json"
        text = index.read_text().replace("model-", "pytorch_model-").replace(".safetensors", ".bin")
        (both / "pytorch_model.bin.index.json").write_text(text)
        index.unlink()
        assert torch.equal(ps.load(both)(TOKENS), expected)
        whole = torch.load(both / "pytorch_model.bin", weights_only=True)
        torch.save({**whole, "model.norm.weight": torch.zeros(24)}, both / "pytorch_model.bin")
        with pytest.raises(FileError, match="two different checkpoints: model.norm.weight"):
            ps.load(both)


class TestPickles:
    @staticmethod
    def pickled(folder: Path, **options: Any) -> Path:
        tensors = load_file(folder / "model.safetensors")
        (folder / "model.safetensors").unlink()
        torch.save(tensors, folder / "pytorch_model.bin", **options)
        return folder

    def test_are_read_by_the_weights_only_loader(self, folder: Path) -> None:
        expected = ps.load(folder)(TOKENS)
        assert torch.equal(ps.load(self.pickled(folder))(TOKENS), expected)

    def test_of_before_torch_1_6(self, folder: Path) -> None:
        expected = ps.load(folder)(TOKENS)
        old = self.pickled(folder, _use_new_zipfile_serialization=False)
        assert torch.equal(ps.load(old)(TOKENS), expected)

    def test_that_hold_code_are_never_opened(self, folder: Path, tmp_path: Path) -> None:
        class Harmful:
            def __reduce__(self) -> Any:
                return (Path.touch, (tmp_path / "was-run",))

        (folder / "model.safetensors").unlink()
        torch.save({"model.norm.weight": Harmful()}, folder / "pytorch_model.bin")
        with pytest.raises(FileError, match="could run code.*convert it.*save_file"):
            ps.load(folder)
        assert not (tmp_path / "was-run").exists()

    @pytest.mark.parametrize("keep", [10, 3000])
    def test_cut_short(self, folder: Path, keep: int) -> None:
        file = self.pickled(folder) / "pytorch_model.bin"
        file.write_bytes(file.read_bytes()[:keep])
        with pytest.raises(FileError, match="pytorch_model.bin"):
            ps.load(folder)

    @pytest.mark.parametrize(
        ("tensor", "message"),
        [
            (torch.zeros(1).expand(1 << 40), "but stores only 4 bytes of it"),
            (torch.eye(3).to_sparse(), "torch.sparse_coo on cpu; save plain tensors"),
            (torch.zeros(1 << 40, device="meta"), "torch.strided on meta; save plain tensors"),
        ],
    )
    def test_tensors_that_are_not_stored_whole(
        self, folder: Path, tensor: torch.Tensor, message: str
    ) -> None:
        (folder / "model.safetensors").unlink()
        torch.save({"model.norm.weight": tensor}, folder / "pytorch_model.bin")
        with pytest.raises(FileError, match=message):
            ps.load(folder)

    def test_names_that_are_not_text(self, folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        torch.save({3: torch.ones(3)}, folder / "pytorch_model.bin")
        with pytest.raises(FileError, match="names a tensor 3, which is not text"):
            ps.load(folder)

    def test_that_are_compressed(self, folder: Path) -> None:
        file = self.pickled(folder) / "pytorch_model.bin"
        with zipfile.ZipFile(file) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in members.items():
                archive.writestr(name, content)
        with pytest.raises(FileError, match="compressed, which torch.save does not write; convert"):
            ps.load(folder)
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("archive/data.pkl", bytes(100_000_000))
        with pytest.raises(FileError, match=r"in 100,000,000 bytes, and at most 67,108,864 are"):
            ps.load(folder)

    def test_of_something_else(self, folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        torch.save([torch.ones(3)], folder / "pytorch_model.bin")
        with pytest.raises(FileError, match="holds a list that is not a state dict"):
            ps.load(folder)


class TestTokenizers:
    @staticmethod
    def add(folder: Path, words: int) -> None:
        tokenizer = Tokenizer.of_words([f"w{i}" for i in range(words)])
        (folder / "tokenizer.json").write_text(tokenizer.to_json())

    def test_a_vocabulary_padded_past_the_tokenizer(self, folder: Path) -> None:
        self.add(folder, 50)
        model = ps.load(folder)
        assert model.tokenizer is not None and model.tokenizer.size == 50
        assert model.config.d_vocab == 61
        assert model.token_text(60) == "<60>"
        assert model.trace("w3 w49").logits.shape == (1, 2, 61)

    def test_a_tokenizer_past_the_vocabulary(self, folder: Path) -> None:
        self.add(folder, 62)
        with pytest.raises(TokenError, match="62 tokens.*61"):
            ps.load(folder)


def test_every_error_is_one_sentence_of_ours(folder: Path) -> None:
    edit_config(folder, model_type="mamba")
    with pytest.raises(PathsumError) as caught:
        ps.load(folder)
    assert "\n" not in str(caught.value)
