"""Readers of model folders and files, as functions of bytes; see `tests.fuzz.readers`."""

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import save

import pathsum as ps
from pathsum.explorer.session import open_model
from pathsum.sources.load import open_path
from pathsum.text.tokenizer import Tokenizer

WORDS = ["<|start|>", "a", "b", "c"]
CONFIG = ps.Config(n_layers=1, n_heads=2, d_model=4, d_head=2, d_vocab=4, n_ctx=6, start_token=0)


@dataclass(frozen=True)
class Reader:
    """A reader, a valid input for it, and whether that input is JSON."""

    read: Callable[[bytes, Path], object]
    base: Callable[[], bytes]
    json: bool = False


def model() -> ps.Model:
    made = ps.random_model(CONFIG)
    return ps.Model(made.weights, "tiny", Tokenizer.of_words(WORDS), torch.tensor([9, 5, 3, 1]))


@cache
def saved() -> dict[str, bytes]:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        model().save(folder)
        return {file.name: file.read_bytes() for file in Path(folder).iterdir()}


def place(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).write_bytes(content)


def _use(model: ps.Model) -> None:
    """What the first command would do."""
    model.trace([0, 1, 1] if model.tokenizer is None else "a a")
    _ = model.name, model.token_pool()


def _in_model(name: str) -> Callable[[bytes, Path], None]:
    def read(content: bytes, folder: Path) -> None:
        place(folder, saved() | {name: content})
        _use(open_path(folder))

    return read


def _without_checksum() -> bytes:
    head = json.loads(saved()["config.json"])
    return json.dumps({key: value for key, value in head.items() if key != "tokenizer"}).encode()


def _tokenizer(content: bytes, folder: Path) -> None:
    place(folder, saved() | {"tokenizer.json": content, "config.json": _without_checksum()})
    _use(open_path(folder))


def bpe_json() -> bytes:
    from pathsum.text.tokenizer import train_bpe

    return train_bpe(["the cat and the hat, the cat"] * 9, 262).to_json().encode()


@cache
def bpe_json_once() -> bytes:
    return bpe_json()


def _bare_tokenizer(content: bytes, folder: Path) -> None:
    (folder / "tokenizer.json").write_bytes(content)
    found = Tokenizer.from_file(folder / "tokenizer.json")
    found.decode(found.encode("the cat"))
    _ = found.special_tokens, [found.show(token) for token in range(4)]


def _journal(content: bytes, folder: Path) -> None:
    """A save that was killed while files were renamed."""
    place(folder, saved() | {".saving.json": content, ".config.json.7.part": b"{}"})
    place(folder, {".config.json.7.part": saved()["config.json"]})
    _use(open_path(folder))
    assert not (folder / ".saving.json").exists()


def _journal_base() -> bytes:
    renamed = {".config.json.7.part": "config.json"}
    return json.dumps({"rename": renamed, "remove": ["held_out.safetensors"]}).encode()


def _held_out_base() -> bytes:
    about = {"format": "pathsum-held-out", "version": "1"}
    return save({"tokens": torch.tensor([[0, 1, 2], [0, 3, 1]], dtype=torch.int32)}, about)


@cache
def _edited() -> dict[str, bytes]:
    import tempfile

    made = model().edited(
        {"embed→L0H0.k": torch.ones(4), "L0H1.pattern": "L0H0", "L0H0.pattern": torch.eye(6)}
    )
    with tempfile.TemporaryDirectory() as folder:
        made.save(folder)
        return {file.name: file.read_bytes() for file in Path(folder).iterdir()}


def _edits(content: bytes, folder: Path) -> None:
    place(folder, _edited() | {"config.json": content})
    _use(open_path(folder))


def _card(content: bytes, folder: Path) -> None:
    place(folder, saved() | {"card.md": content})
    assert isinstance(open_model(folder).card, str)


# ---- Hugging Face


_LLAMA = {
    "model_type": "llama",
    "vocab_size": 5,
    "hidden_size": 4,
    "intermediate_size": 6,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 8,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 100.0,
        "factor": 4.0,
        "original_max_position_embeddings": 4,
    },
    "sliding_window": 3,
    "layer_types": ["sliding_attention"],
}
_SHAPES = {
    "model.embed_tokens.weight": (5, 4),
    "model.norm.weight": (4,),
    "model.layers.0.input_layernorm.weight": (4,),
    "model.layers.0.post_attention_layernorm.weight": (4,),
    "model.layers.0.self_attn.q_proj.weight": (4, 4),
    "model.layers.0.self_attn.k_proj.weight": (2, 4),
    "model.layers.0.self_attn.v_proj.weight": (2, 4),
    "model.layers.0.self_attn.o_proj.weight": (4, 4),
    "model.layers.0.mlp.up_proj.weight": (6, 4),
    "model.layers.0.mlp.gate_proj.weight": (6, 4),
    "model.layers.0.mlp.down_proj.weight": (4, 6),
}


@cache
def _llama_tensors() -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=draw) for name, shape in _SHAPES.items()}


def _foreign_config(content: bytes, folder: Path) -> None:
    place(folder, {"model.safetensors": save(_llama_tensors()), "config.json": content})
    _use(open_path(folder))


def _foreign_base() -> bytes:
    return json.dumps(_LLAMA).encode()


_INDEX = "model.safetensors.index.json"


def _index(content: bytes, folder: Path) -> None:
    place(folder, {"part.safetensors": save(_llama_tensors()), _INDEX: content})
    place(folder, {"config.json": _foreign_base()})
    _use(open_path(folder))


def _index_base() -> bytes:
    return json.dumps({"weight_map": dict.fromkeys(_SHAPES, "part.safetensors")}).encode()


def _pickle(content: bytes, folder: Path) -> None:
    place(folder, {"config.json": _foreign_base(), "pytorch_model.bin": content})
    _use(open_path(folder))


def _pickle_base(zipped: bool) -> bytes:
    out = io.BytesIO()
    torch.save(_llama_tensors(), out, _use_new_zipfile_serialization=zipped)
    return out.getvalue()


# ---- TransformerLens


def _lens_tensors() -> dict[str, torch.Tensor]:
    shapes = {"embed.W_E": (5, 4), "pos_embed.W_pos": (8, 4), "unembed.W_U": (4, 5)}
    shapes |= {f"blocks.0.attn.W_{part}": (2, 4, 2) for part in "QKV"}
    shapes |= {"blocks.0.attn.W_O": (2, 2, 4), "blocks.0.attn.b_O": (4,)}
    return {name: torch.ones(shape) for name, shape in shapes.items()}


def _lens_config(content: bytes, folder: Path) -> None:
    place(folder, {"config.json": content, "model.safetensors": save(_lens_tensors())})
    _use(open_path(folder))


def _lens_state(content: bytes, folder: Path) -> None:
    place(folder, {"config.json": _lens_base(), "model.pth": content})
    _use(open_path(folder))


def _lens_base() -> bytes:
    values = {"n_layers": 1, "n_heads": 2, "d_model": 4, "d_head": 2, "d_vocab": 5, "n_ctx": 8}
    values |= {"attn_only": True, "normalization_type": None, "act_fn": None, "d_mlp": None}
    return json.dumps(values | {"positional_embedding_type": "standard"}).encode()


def _lens_state_base() -> bytes:
    out = io.BytesIO()
    torch.save(_lens_tensors(), out)
    return out.getvalue()


# ---- GGUF


@cache
def _gguf_base() -> bytes:
    import tempfile

    import gguf

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.gguf"
        writer = gguf.GGUFWriter(file, "llama")
        writer.add_block_count(1)
        writer.add_context_length(8)
        writer.add_embedding_length(4)
        writer.add_feed_forward_length(6)
        writer.add_head_count(2)
        writer.add_head_count_kv(1)
        writer.add_layer_norm_rms_eps(1e-6)
        writer.add_tokenizer_model("llama")
        writer.add_token_list(["<s>", "▁", "a", "b", "▁a"])
        writer.add_token_scores([0.0, -1.0, -2.0, -3.0, -4.0])
        writer.add_token_types([3, 1, 1, 1, 1])
        writer.add_bos_token_id(0)
        names = {
            "model.embed_tokens": "token_embd",
            "model.norm": "output_norm",
            "model.layers.0": "blk.0",
            "input_layernorm": "attn_norm",
            "post_attention_layernorm": "ffn_norm",
            **{f"self_attn.{part}_proj": f"attn_{part}" for part in "qkv"},
            "self_attn.o_proj": "attn_output",
            **{f"mlp.{part}_proj": f"ffn_{part}" for part in ("up", "gate", "down")},
        }
        for name, tensor in _llama_tensors().items():
            for theirs, ours in names.items():
                name = name.replace(theirs, ours)
            writer.add_tensor(name, tensor.numpy())
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return file.read_bytes()


def _gguf(content: bytes, folder: Path) -> None:
    (folder / "model.gguf").write_bytes(content)
    _use(open_path(folder / "model.gguf"))


MODEL_READERS: dict[str, Reader] = {
    "config": Reader(_in_model("config.json"), lambda: saved()["config.json"], json=True),
    "safetensors": Reader(_in_model("model.safetensors"), lambda: saved()["model.safetensors"]),
    "tokenizer-of-a-model": Reader(_tokenizer, lambda: saved()["tokenizer.json"], json=True),
    "tokenizer": Reader(_bare_tokenizer, bpe_json_once, json=True),
    "saving": Reader(_journal, _journal_base, json=True),
    "held-out": Reader(_in_model("held_out.safetensors"), _held_out_base),
    "edits": Reader(_edits, lambda: _edited()["config.json"], json=True),
    "card": Reader(_card, lambda: b"# a model\n"),
    "pickle": Reader(_pickle, lambda: _pickle_base(zipped=True)),
    "old-pickle": Reader(_pickle, lambda: _pickle_base(zipped=False)),
    "transformer-lens-config": Reader(_lens_config, _lens_base, json=True),
    "transformer-lens-state": Reader(_lens_state, _lens_state_base),
    "hugging-face-config": Reader(_foreign_config, _foreign_base, json=True),
    "index": Reader(_index, _index_base, json=True),
    "gguf": Reader(_gguf, _gguf_base),
}
