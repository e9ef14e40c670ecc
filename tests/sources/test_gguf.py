"""GGUF files, written by the gguf package: the same model as the checkpoint they were made from."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.sources import tiny
from tests.sources.gguf_files import convert
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers

import pathsum as ps
from pathsum.base.errors import ConfigError, FileError
from pathsum.sources.gguf_file import GgufFile, read_tokenizer, start_token
from pathsum.text import Tokenizer

gguf: Any = pytest.importorskip("gguf")

TOKENS = torch.randint(0, 61, (2, 11), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    "case",
    [
        *("llama", "qwen2", "qwen3", "phi3", "phi3-windows", "olmo2"),
        *("gemma", "gemma2", "gemma3", "gpt2", "gpt_neox", "gpt_neox-serial", "gptj", "phi"),
        *("stablelm", "stablelm-parallel", "stablelm-yarn", "qwen3-yarn"),
        *("llama-llama3", "llama-yarn", "llama-linear", "llama-biases", "phi3-longrope", "gpt_oss"),
    ],
)
def test_logits_are_those_of_transformers(case: str, tmp_path: Path) -> None:
    theirs = tiny.write(case, tmp_path)
    model = ps.load(convert(case, tmp_path))
    assert model.config.tied is (case in ("gpt2", "llama-biases"))
    # Past the length that scaled rotations were trained at.
    tokens = torch.cat((TOKENS, TOKENS.flip(1)), 1)
    torch.testing.assert_close(model(tokens), theirs(tokens), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["attn_factor", "yarn_ext_factor", "yarn_log_multiplier"])
def test_rotations_that_are_not_computed(name: str, tmp_path: Path) -> None:
    tiny.write("llama-yarn", tmp_path)
    file = convert("llama-yarn", tmp_path, **{f"llama__rope__scaling__{name}": 3})
    with pytest.raises(ConfigError, match=f"rope.scaling.{name}=3"):
        ps.load(file)


@pytest.mark.parametrize("name", ["scale_linear", "scaling__factor"])
def test_a_scale_without_a_type_is_linear(name: str, tmp_path: Path) -> None:
    tiny.write("llama", tmp_path)
    plain = ps.load(convert("llama", tmp_path))
    scaled = ps.load(convert("llama", tmp_path, **{f"llama__rope__{name}": 4}))
    assert scaled.config == plain.config.replace(rotary_factors=(4.0,) * 4)
    tiny.write("llama-llama3", tmp_path)
    plain = ps.load(convert("llama-llama3", tmp_path))
    scaled = ps.load(convert("llama-llama3", tmp_path, **{f"llama__rope__{name}": 4}))
    factors = tuple(4 * factor for factor in plain.config.rotary_factors)
    assert scaled.config.rotary_factors == factors


@pytest.mark.parametrize(
    "kind", [gguf.GGMLQuantizationType.F16, gguf.GGMLQuantizationType.BF16], ids=str
)
def test_half_precision_is_computed_in_float32(kind: Any, tmp_path: Path) -> None:
    tiny.write("llama", tmp_path)
    whole = ps.load(tmp_path).weights
    half = ps.load(convert("llama", tmp_path, kind)).weights
    rounded = torch.float16 if kind is gguf.GGMLQuantizationType.F16 else torch.bfloat16
    assert half.W_E.dtype == torch.float32
    assert torch.equal(half.W_E, whole.W_E.to(rounded).float())
    assert torch.equal(half.layers[1].W_O, whole.layers[1].W_O.to(rounded).float())


def test_blocks_are_dequantized(tmp_path: Path) -> None:
    file = tmp_path / "blocks.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    numbers = np.random.default_rng(0).normal(size=(6, 64)).astype(np.float32)
    kinds = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
    packed = {
        name: gguf.quants.quantize(numbers, gguf.GGMLQuantizationType[name]) for name in kinds
    }
    for name, data in packed.items():
        writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType[name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    opened = GgufFile(file)
    for name, data in packed.items():
        expected = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[name])
        assert torch.equal(opened.get(name), torch.from_numpy(expected))
        assert float((opened.get(name) - torch.from_numpy(numbers)).abs().max()) < 0.5


def test_nothing_is_dequantized_before_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.write("llama", tmp_path)
    file = convert("llama", tmp_path, gguf.GGMLQuantizationType.F16)
    read: list[str] = []
    get = GgufFile.get
    monkeypatch.setattr(GgufFile, "get", lambda self, name: (read.append(name), get(self, name))[1])
    model = ps.load(file)
    assert read == []
    model(TOKENS)
    assert "token_embd.weight" in read


class TestBadFiles:
    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        tiny.write("llama", tmp_path)
        return convert("llama", tmp_path)

    @pytest.mark.parametrize("keep", [4, 10, 60, 500, -50])
    def test_cut_short(self, file: Path, keep: int) -> None:
        file.write_bytes(file.read_bytes()[:keep])
        with pytest.raises(FileError, match="download it again"):
            ps.load(file)

    def test_of_another_format(self, file: Path) -> None:
        file.write_bytes(b"GGML" + file.read_bytes()[4:])
        with pytest.raises(FileError, match="does not begin with GGUF"):
            ps.load(file)

    def test_of_another_version(self, file: Path) -> None:
        file.write_bytes(b"GGUF" + (9).to_bytes(4, "little") + file.read_bytes()[8:])
        with pytest.raises(FileError, match="version 9"):
            ps.load(file)

    def test_a_part_of_a_split_file(self, tmp_path: Path) -> None:
        tiny.write("llama", tmp_path)
        file = convert("llama", tmp_path, split__count=3, split__no=1)
        with pytest.raises(FileError, match="part 2 of 3 of one model; join them with `llama-ggu"):
            ps.load(file)

    def test_with_one_bias_missing(self, tmp_path: Path) -> None:
        tiny.write("llama-biases", tmp_path)
        tensors = load_file(tmp_path / "model.safetensors")
        del tensors["model.layers.1.mlp.up_proj.bias"]
        save_file(tensors, tmp_path / "model.safetensors")
        with pytest.raises(FileError, match=r"no tensor blk\.1\.ffn_up\.bias, but other layers"):
            ps.load(convert("llama-biases", tmp_path))

    @pytest.mark.parametrize("offset", [0, 4])
    def test_with_tensors_that_overlap(self, file: Path, offset: int) -> None:
        # The tensor's name, its number of axes, its length, its layout; then its offset.
        data, name = file.read_bytes(), b"blk.0.ffn_norm.weight"
        at = data.index(name) + len(name) + 4 + 8 + 4
        file.write_bytes(data[:at] + offset.to_bytes(8, "little") + data[at + 8 :])
        with pytest.raises(FileError, match=r"which is inside .* or not a multiple of 32"):
            ps.load(file)

    def test_with_a_key_twice(self, file: Path) -> None:
        data = file.read_bytes()
        values = struct.pack("<Q17sII", 17, b"llama.block_count", 4, 2)
        count = int.from_bytes(data[16:24], "little")
        data = data[:16] + (count + 1).to_bytes(8, "little") + values + data[24:]
        file.write_bytes(data)
        with pytest.raises(FileError, match=r"has llama.block_count twice; download it again"):
            ps.load(file)

    @pytest.mark.parametrize("alignment", [0, 1, 3, 24])
    def test_of_an_alignment_that_is_none(self, alignment: int, tmp_path: Path) -> None:
        tiny.write("llama", tmp_path)
        file = convert("llama", tmp_path, None, general__alignment=alignment)
        with pytest.raises(FileError, match=f"general.alignment={alignment}, which is not a power"):
            ps.load(file)

    @pytest.mark.parametrize(("kind", "width"), [(0, 1), (6, 4), (8, 8)])
    def test_with_huge_arrays(self, file: Path, kind: int, width: int) -> None:
        length = 20_000_000
        header = (
            b"GGUF"
            + struct.pack("<IQQ", 3, 0, 1)
            + struct.pack("<Q1sIIQ", 1, b"x", 9, kind, length)
        )
        with file.open("wb") as opened:
            opened.write(header)
            opened.truncate(len(header) + width * length)
        with pytest.raises(FileError, match="lists of more than 4,194,304 entries"):
            ps.load(file)

    def test_of_an_unknown_architecture(self, file: Path) -> None:
        data = file.read_bytes().replace(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0lamma", 1)
        file.write_bytes(data)
        with pytest.raises(FileError, match="'lamma'.*did you mean 'llama'"):
            ps.load(file)


TEXT = "The cat's 123 hats, they're 4 o'clock.\n  New   lines\tand naïve 日本 <|end|> tokens"


def trained(pre: Any, alphabet: bool = True) -> Backend:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|start|>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if alphabet else [],
        show_progress=False,
    )
    backend.train_from_iterator([TEXT, "the cats and hats of then and there"] * 3, trainer)
    return backend


def metadata_of(backend: Backend, rule: str) -> dict[str, Any]:
    import json

    described = json.loads(backend.to_str())["model"]
    tokens = sorted(described["vocab"], key=described["vocab"].__getitem__)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": rule,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": [" ".join(pair) for pair in described["merges"]],
        "tokenizer.ggml.token_type": [3 if i < 2 else 1 for i in range(len(tokens))],
        "tokenizer.ggml.bos_token_id": 0,
    }


@pytest.mark.parametrize("rule", ["gpt-2", "smollm"])
def test_a_byte_level_tokenizer_cuts_text_as_the_original(rule: str) -> None:
    level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits = pre_tokenizers.Digits(individual_digits=True)
    pre = level if rule == "gpt-2" else pre_tokenizers.Sequence([digits, level])
    original = trained(pre)
    found = read_tokenizer(metadata_of(original, rule))
    assert found is not None
    assert found.encode(TEXT) == original.encode(TEXT).ids
    assert found.decode(found.encode(TEXT)) == TEXT


def test_rules_differ_in_how_digits_are_cut() -> None:
    pieces = {}
    for rule in ("llama-bpe", "qwen2"):
        found = read_tokenizer(metadata_of(trained(pre_tokenizers.ByteLevel(False)), rule))
        assert found is not None
        words = found.backend.pre_tokenizer.pre_tokenize_str("in 12345")
        pieces[rule] = [word for word, _ in words]
    assert pieces == {
        "llama-bpe": ["in", "Ġ", "123", "45"],
        "qwen2": ["in", "Ġ", "1", "2", "3", "4", "5"],
    }


def test_a_sentencepiece_tokenizer_joins_by_score() -> None:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    pieces = ["▁", "t", "h", "e", "c", "a", "▁t", "he", "▁the", "▁c", "at", "▁cat"]
    kinds = [2, 3, 3] + [6] * 256 + [1] * len(pieces)
    scores = [0.0] * 259 + [-float(1000 + i) for i in range(len(pieces))]
    for piece, score in {"▁t": -1, "he": -2, "▁the": -3, "▁c": -4, "at": -5, "▁cat": -6}.items():
        scores[259 + pieces.index(piece)] = float(score)
    found = read_tokenizer(
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": [*tokens, *pieces],
            "tokenizer.ggml.scores": scores,
            "tokenizer.ggml.token_type": kinds,
        }
    )
    assert isinstance(found, Tokenizer)
    ids = found.encode("the cat!")
    assert [found.backend.id_to_token(i) for i in ids] == ["▁the", "▁cat", "<0x21>"]
    assert found.decode(ids) == "the cat!"


@pytest.mark.parametrize("tokens", [["a", "b" * 2_000_000], ["a" * n for n in range(1, 6000)]])
def test_a_sentencepiece_tokenizer_of_huge_tokens(tokens: list[str]) -> None:
    metadata = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": tokens}
    with pytest.raises(ConfigError, match=r"a token of \S+ characters .*pathsum reads 512"):
        read_tokenizer({**metadata, "tokenizer.ggml.scores": [0.0] * len(tokens)})


def test_an_unknown_rule_leaves_the_model_without_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ps.PathsumError, match="rule 'martian'"):
        read_tokenizer(metadata_of(trained(pre_tokenizers.ByteLevel(False)), "martian"))


def test_the_start_token_is_the_one_that_the_file_adds() -> None:
    metadata = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.bos_token_id": 7}
    assert start_token(metadata) is None
    assert start_token({**metadata, "tokenizer.ggml.add_bos_token": True}) == 7
    assert start_token({**metadata, "tokenizer.ggml.model": "llama"}) == 7
